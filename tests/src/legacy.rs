//! The format of criu-image-streamer, written by hand: for streams that no writer would make.

use prost::Message;

/// A record's marker.
#[derive(Clone, PartialEq, Message)]
struct Marker {
    #[prost(uint64, tag = "1")]
    seq: u64,
    #[prost(bytes = "vec", optional, tag = "2")]
    filename: Option<Vec<u8>>,
    #[prost(uint32, optional, tag = "3")]
    file_data: Option<u32>,
    #[prost(bool, optional, tag = "4")]
    file_eof: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    image_eof: Option<bool>,
}

/// Builds a stream of one shard.
#[derive(Debug, Default)]
pub struct Stream {
    bytes: Vec<u8>,
    seq: u64,
}

impl Stream {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole file.
    #[must_use]
    pub fn file(self, name: &[u8], content: &[u8]) -> Self {
        self.name(name).data(content).end_of_file()
    }

    /// What follows belongs to this file.
    #[must_use]
    pub fn name(self, name: &[u8]) -> Self {
        self.marker(Marker { filename: Some(name.to_vec()), ..Marker::default() })
    }

    /// A piece of the file.
    #[must_use]
    pub fn data(self, content: &[u8]) -> Self {
        self.data_of_length(u32::try_from(content.len()).unwrap_or(u32::MAX), content)
    }

    /// A piece that claims another length.
    #[must_use]
    pub fn data_of_length(self, length: u32, content: &[u8]) -> Self {
        self.marker(Marker { file_data: Some(length), ..Marker::default() }).raw(content)
    }

    /// The end of the file.
    #[must_use]
    pub fn end_of_file(self) -> Self {
        self.marker(Marker { file_eof: Some(true), ..Marker::default() })
    }

    /// The end of the image.
    #[must_use]
    pub fn end_of_image(self) -> Vec<u8> {
        self.marker(Marker { image_eof: Some(true), ..Marker::default() }).bytes
    }

    /// Bytes outside of the format.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The stream so far.
    pub fn bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn marker(mut self, mut marker: Marker) -> Self {
        marker.seq = self.seq;
        self.seq += 1;
        let body = marker.encode_to_vec();
        self.bytes.extend((body.len() as u64).to_le_bytes().iter().take(4));
        self.bytes.extend(body);
        self
    }
}
