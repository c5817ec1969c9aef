//! The header of one record: checked on the way in, bounded on the way out.

use bytes::{BufMut, BytesMut};
use prost::Message;

use super::{LENGTH_BYTES, MARKER_LIMIT};
use crate::{
    format::{FileName, MAX_FILE_BYTES, MAX_FILES, MAX_SUPERSEDED, NameError},
    proto::criu_image_streamer::{self as pb, marker::Body},
};

/// What is wrong with a stream of records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MarkerError {
    /// A length that no marker has.
    #[error("a marker of {0} bytes, the limits are 1 and {max}", max = MARKER_LIMIT - 1)]
    Length(u32),
    /// The bytes of a marker are no marker.
    #[error("a marker that is not protobuf")]
    NotProtobuf,
    /// A marker that says nothing, or denies an end.
    #[error("marker {0} has no meaning")]
    NoBody(u64),
    /// A name that cannot be one.
    #[error("refused: {0}")]
    Name(#[from] NameError),
    /// The stream ends inside a record.
    #[error("it ends in the middle of {0}")]
    Truncated(&'static str),
    /// All shards end, and the image does not.
    #[error("it ends before the end of the image: the capture did not complete")]
    NoImageEof,
    /// Every shard waits for a record that none has.
    #[error("record {0} of the image is in none of the shards: is a shard missing?")]
    Missing(u64),
    /// Two records of one number.
    #[error("record {0} of the image came twice: was a shard given twice?")]
    Twice(u64),
    /// The records are not given in their order.
    #[error("record {found} came where record {expected} was expected")]
    OutOfOrder {
        /// The number it has.
        found: u64,
        /// The number it should have.
        expected: u64,
    },
    /// A record after the last one.
    #[error("data after the end of the image")]
    AfterImageEof,
    /// The image ends, and a file does not.
    #[error("the image ends before the end of {0}")]
    FileOpen(FileName),
    /// The image ends, and records that precede nothing wait for their turn.
    #[error("the image ends at record {end}, and there is a record {waiting}")]
    Pending {
        /// The record that ends it.
        end: u64,
        /// The one that comes later.
        waiting: u64,
    },
    /// Data or the end of a file, of no file.
    #[error("record {0} is of a file and no file is open")]
    NoFile(u64),
    /// More files than an image may have.
    #[error("refused: more than {MAX_FILES} files")]
    TooManyFiles,
    /// Too many names that were written again.
    #[error("refused: more than {MAX_SUPERSEDED} files are there more than once")]
    TooManySuperseded,
    /// A file past the limit.
    #[error("refused: {0} has more than {MAX_FILE_BYTES} bytes")]
    TooLarge(FileName),
    /// Pieces of a file did not get where they should.
    #[error("{name} has {have} bytes of {size}")]
    FileIncomplete {
        /// The file.
        name: FileName,
        /// How many came without a gap.
        have: u64,
        /// How many were announced.
        size: u64,
    },
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkerBody {
    /// What follows is of this file.
    File(FileName),
    /// So many bytes of the current file follow in this shard.
    Data(u32),
    /// The current file is whole.
    FileEof,
    /// The image is whole.
    ImageEof,
}

/// The header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Its place in the image, from 0.
    pub seq: u64,
    /// What it says.
    pub body: MarkerBody,
}

impl Marker {
    /// Appends length and marker to `out`.
    pub fn encode(&self, out: &mut BytesMut) {
        let body = match &self.body {
            MarkerBody::File(name) => Body::Filename(name.as_str().to_owned()),
            MarkerBody::Data(len) => Body::FileData(*len),
            MarkerBody::FileEof => Body::FileEof(true),
            MarkerBody::ImageEof => Body::ImageEof(true),
        };
        let marker = pb::Marker { seq: self.seq, body: Some(body) };
        // A name has at most 255 bytes, so this is far below the limit.
        let len = u32::try_from(marker.encoded_len()).unwrap_or(u32::MAX);
        debug_assert!(len < MARKER_LIMIT);
        out.put_u32_le(len);
        marker.encode_raw(out);
    }

    /// How many bytes the marker after these has.
    pub fn length(bytes: [u8; LENGTH_BYTES]) -> Result<usize, MarkerError> {
        match u32::from_le_bytes(bytes) {
            len if len == 0 || len >= MARKER_LIMIT => Err(MarkerError::Length(len)),
            len => Ok(len as usize),
        }
    }

    /// Reads a marker, without its length.
    pub fn decode(bytes: &[u8]) -> Result<Self, MarkerError> {
        let marker = pb::Marker::decode(bytes).map_err(|_| MarkerError::NotProtobuf)?;
        let seq = marker.seq;
        let body = match marker.body {
            Some(Body::Filename(name)) => MarkerBody::File(FileName::new(&name)?),
            Some(Body::FileData(len)) => MarkerBody::Data(len),
            Some(Body::FileEof(true)) => MarkerBody::FileEof,
            Some(Body::ImageEof(true)) => MarkerBody::ImageEof,
            Some(Body::FileEof(false) | Body::ImageEof(false)) | None => {
                return Err(MarkerError::NoBody(seq));
            }
        };
        Ok(Marker { seq, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_body() -> impl Strategy<Value = MarkerBody> {
        prop_oneof![
            "[a-z.-]{3,255}".prop_map(|name| MarkerBody::File(FileName::new(&name).unwrap())),
            any::<u32>().prop_map(MarkerBody::Data),
            Just(MarkerBody::FileEof),
            Just(MarkerBody::ImageEof),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seq: u64, body in any_body()) {
            let marker = Marker { seq, body };
            let mut out = BytesMut::new();
            marker.encode(&mut out);
            let (len, rest) = out.split_first_chunk::<4>().unwrap();
            prop_assert_eq!(Marker::length(*len), Ok(rest.len()));
            prop_assert_eq!(Marker::decode(rest), Ok(marker));
        }
    }

    /// The bytes of the original program: a field of value 0 is left out, except inside a oneof.
    #[test]
    fn bytes_on_the_wire() {
        let encoded = |seq, body| {
            let mut out = BytesMut::new();
            Marker { seq, body }.encode(&mut out);
            out.to_vec()
        };
        let name = MarkerBody::File(FileName::new("a.img").unwrap());
        assert_eq!(encoded(0, name), b"\x07\0\0\0\x12\x05a.img");
        assert_eq!(encoded(1, MarkerBody::Data(0)), b"\x04\0\0\0\x08\x01\x18\0");
        assert_eq!(encoded(300, MarkerBody::FileEof), b"\x05\0\0\0\x08\xac\x02\x20\x01");
        assert_eq!(encoded(2, MarkerBody::ImageEof), b"\x04\0\0\0\x08\x02\x28\x01");
    }

    #[test]
    fn lengths_that_the_original_aborts_at() {
        for len in [0, MARKER_LIMIT, 1 << 31, u32::MAX] {
            assert_eq!(Marker::length(len.to_le_bytes()), Err(MarkerError::Length(len)));
        }
        assert_eq!(Marker::length((MARKER_LIMIT - 1).to_le_bytes()), Ok(10239));
    }

    #[test]
    fn markers_that_say_nothing() {
        let cases: [(&[u8], MarkerError); 5] = [
            (b"\x08\x07", MarkerError::NoBody(7)),
            (b"\x08\x07\x20\0", MarkerError::NoBody(7)),
            (b"\x28\0", MarkerError::NoBody(0)),
            (b"\x12\x05a.im", MarkerError::NotProtobuf),
            (b"\x12\x01\xff", MarkerError::NotProtobuf),
        ];
        for (bytes, error) in cases {
            assert_eq!(Marker::decode(bytes), Err(error), "{bytes:02x?}");
        }
        for name in ["", ".", "..", "../x", "/etc/x", "a/b", "a\0b", &"x".repeat(300)] {
            let body = Some(Body::Filename(name.to_owned()));
            let bytes = pb::Marker { seq: 0, body }.encode_to_vec();
            assert!(matches!(Marker::decode(&bytes), Err(MarkerError::Name(_))), "{name:?}");
        }
    }
}
