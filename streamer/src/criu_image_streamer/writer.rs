//! Makes the records of an image. Only their headers: the caller moves the payloads, and chooses
//! the shard that each header goes to.

use bytes::BytesMut;

use super::{Marker, MarkerBody};
use crate::format::FileName;

/// Appends the headers of an image's records to buffers.
///
/// What one call appends must go to one shard, and the headers of later calls to a shard after
/// those of earlier ones; which shard a call's go to is free.
///
/// The format knows a file by its name alone, so the caller must not have two files of one name
/// open at the same time. One after the other is fine: readers take the last.
#[derive(Debug, Default)]
pub struct MarkerWriter {
    seq: u64,
    /// What a reader takes the next data to be of.
    current: Option<FileName>,
}

impl MarkerWriter {
    /// At the first record of an image.
    pub fn new() -> Self {
        Self::default()
    }

    /// Announces `len` bytes of a file, which the caller writes next to the same shard. Nothing is
    /// announced for no bytes.
    pub fn file_data(&mut self, name: &FileName, len: u32, out: &mut BytesMut) {
        if len > 0 {
            self.select(name, out);
            self.record(MarkerBody::Data(len), out);
        }
    }

    /// A file is whole.
    pub fn file_eof(&mut self, name: &FileName, out: &mut BytesMut) {
        self.select(name, out);
        self.record(MarkerBody::FileEof, out);
        // A reader has no current file now. The original program takes it to be still this one,
        // so two files of one name in a row make a stream that cannot be read.
        self.current = None;
    }

    /// The image is whole.
    pub fn image_eof(mut self, out: &mut BytesMut) {
        self.record(MarkerBody::ImageEof, out);
    }

    fn select(&mut self, name: &FileName, out: &mut BytesMut) {
        if self.current.as_ref() != Some(name) {
            self.current = Some(name.clone());
            self.record(MarkerBody::File(name.clone()), out);
        }
    }

    fn record(&mut self, body: MarkerBody, out: &mut BytesMut) {
        Marker { seq: self.seq, body }.encode(out);
        self.seq += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records in `out`, whose payloads were not written.
    fn records(mut out: &[u8]) -> Vec<Marker> {
        let mut records = Vec::new();
        while let Some((len, rest)) = out.split_first_chunk::<4>() {
            let (marker, rest) = rest.split_at(Marker::length(*len).unwrap());
            records.push(Marker::decode(marker).unwrap());
            out = rest;
        }
        records
    }

    #[test]
    fn a_name_is_written_when_a_reader_does_not_know_it() {
        let [a, b] = ["a", "b"].map(|name| FileName::new(name).unwrap());
        let mut out = BytesMut::new();
        let mut writer = MarkerWriter::new();
        writer.file_data(&a, 1, &mut out);
        writer.file_data(&a, 2, &mut out);
        writer.file_data(&b, 3, &mut out);
        writer.file_data(&b, 0, &mut out);
        writer.file_eof(&b, &mut out);
        writer.file_eof(&a, &mut out);
        writer.file_data(&a, 4, &mut out); // a again
        writer.file_eof(&a, &mut out);
        writer.file_eof(&a, &mut out); // and empty
        writer.image_eof(&mut out);
        use MarkerBody::{Data, File, FileEof, ImageEof};
        let expected = [
            File(a.clone()),
            Data(1),
            Data(2),
            File(b),
            Data(3),
            FileEof,
            File(a.clone()),
            FileEof,
            File(a.clone()),
            Data(4),
            FileEof,
            File(a),
            FileEof,
            ImageEof,
        ];
        let expected: Vec<_> =
            expected.into_iter().zip(0..).map(|(body, seq)| Marker { seq, body }).collect();
        assert_eq!(records(&out), expected);
    }
}
