//! What the records mean, taken one by one in their order: which file a payload is of, where in it,
//! and whether the image is whole.
//!
//! Knows nothing of shards but what [`Sequence::finish`] is told, and trusts the caller to say of
//! each payload that it was taken ([`Sequence::piece`]), which may be later than the next records.

use std::collections::HashMap;

use vramstream::stage::Crc32;

use super::{Marker, MarkerBody, MarkerError, WRITER};
use crate::format::{
    FileName, FileSummary, ImageEnd, ImageId, MAX_FILE_BYTES, MAX_FILES, MAX_SUPERSEDED, Manifest,
    Runs,
};

/// What to do about a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Next,
    /// A file appears: its number and name.
    Begin(u32, FileName),
    /// Take the payload that follows the record.
    Data {
        /// The file.
        file: u32,
        /// Where in the file.
        offset: u64,
        /// How many bytes.
        len: u32,
    },
}

/// The image so far.
#[derive(Debug, Default)]
pub struct Sequence {
    next: u64,
    ended: bool,
    /// By number.
    files: Vec<FileState>,
    current: Option<u32>,
    /// The files that have not ended.
    open: HashMap<FileName, u32>,
    /// The files that have, the last of each name.
    whole: HashMap<FileName, u32>,
    superseded: Vec<u32>,
}

#[derive(Debug)]
struct FileState {
    name: FileName,
    /// Bytes announced.
    size: u64,
    /// Bytes that came.
    runs: Runs,
    pieces: u64,
}

impl Sequence {
    /// The number of the record that comes next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether the image has ended.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Takes the next record.
    pub fn record(&mut self, marker: &Marker) -> Result<Step, MarkerError> {
        let seq = marker.seq;
        if self.ended {
            return Err(MarkerError::AfterImageEof);
        }
        if seq != self.next {
            return Err(MarkerError::OutOfOrder { found: seq, expected: self.next });
        }
        self.next += 1;
        match &marker.body {
            MarkerBody::File(name) => self.select(name),
            MarkerBody::Data(len) => {
                let file = self.current.ok_or(MarkerError::NoFile(seq))?;
                let state = self.files.get_mut(file as usize).ok_or(MarkerError::NoFile(seq))?;
                let offset = state.size;
                state.size += u64::from(*len);
                if state.size > MAX_FILE_BYTES {
                    return Err(MarkerError::TooLarge(state.name.clone()));
                }
                Ok(Step::Data { file, offset, len: *len })
            }
            MarkerBody::FileEof => {
                let file = self.current.take().ok_or(MarkerError::NoFile(seq))?;
                let state = self.files.get(file as usize).ok_or(MarkerError::NoFile(seq))?;
                self.open.remove(&state.name);
                if let Some(earlier) = self.whole.insert(state.name.clone(), file) {
                    if self.superseded.len() >= MAX_SUPERSEDED {
                        return Err(MarkerError::TooManySuperseded);
                    }
                    self.superseded.push(earlier);
                }
                Ok(Step::Next)
            }
            MarkerBody::ImageEof => match self.open.keys().next() {
                Some(name) => Err(MarkerError::FileOpen(name.clone())),
                None => {
                    self.ended = true;
                    Ok(Step::Next)
                }
            },
        }
    }

    fn select(&mut self, name: &FileName) -> Result<Step, MarkerError> {
        if let Some(&file) = self.open.get(name) {
            self.current = Some(file);
            return Ok(Step::Next);
        }
        let file = match u32::try_from(self.files.len()) {
            Ok(file) if file < MAX_FILES => file,
            _ => return Err(MarkerError::TooManyFiles),
        };
        let (name, size, pieces) = (name.clone(), 0, 0);
        self.files.push(FileState { name: name.clone(), size, runs: Runs::default(), pieces });
        self.open.insert(name.clone(), file);
        self.current = Some(file);
        Ok(Step::Begin(file, name))
    }

    /// A part of a payload was taken: so many bytes from `offset` of the file, with this checksum.
    pub fn piece(&mut self, file: u32, offset: u64, checksum: Crc32) {
        if let Some(state) = self.files.get_mut(file as usize) {
            state.pieces += 1;
            // No two payloads have the same place; if they had, `finish` would miss bytes.
            let _ = state.runs.add(offset, checksum);
        }
    }

    /// All shards have ended: is it an image? In the manifest the totals of "this shard" are those
    /// of all, and the stored bytes of a file are all its bytes.
    pub fn finish(self, shards: u32) -> Result<Manifest, MarkerError> {
        if !self.ended {
            return Err(MarkerError::NoImageEof);
        }
        let mut superseded = self.superseded;
        superseded.sort_unstable();
        let mut files = Vec::with_capacity(self.whole.len());
        let (mut raw_bytes, mut shard_chunks, mut shard_stored_bytes) = (0, 0, 0);
        for (state, file) in self.files.into_iter().zip(0u32..) {
            let FileState { name, size, runs, pieces } = state;
            let checksum = match runs.whole() {
                Ok(checksum) if checksum.len == size => checksum,
                Ok(Crc32 { len: have, .. }) | Err(have) => {
                    return Err(MarkerError::FileIncomplete { name, have, size });
                }
            };
            shard_chunks += pieces;
            shard_stored_bytes += size;
            if superseded.binary_search(&file).is_err() {
                raw_bytes += size;
                files.push(FileSummary {
                    file,
                    name,
                    checksum,
                    stored_bytes: size,
                    chunks: pieces,
                });
            }
        }
        let end = ImageEnd {
            files: u32::try_from(files.len()).unwrap_or(u32::MAX),
            raw_bytes,
            superseded,
            created_unix_ms: 0,
            writer: WRITER.to_owned(),
            shard_chunks,
            shard_stored_bytes,
        };
        Ok(Manifest { image: ImageId([0; 16]), shards, files, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MarkerBody::{Data, FileEof, ImageEof};

    fn file(name: &str) -> MarkerBody {
        MarkerBody::File(FileName::new(name).unwrap())
    }

    /// Takes records, and all payloads as zeros, up to the first error.
    fn run(bodies: impl IntoIterator<Item = MarkerBody>) -> Result<Sequence, MarkerError> {
        let mut sequence = Sequence::default();
        for (body, seq) in bodies.into_iter().zip(0..) {
            if let Step::Data { file, offset, len } = sequence.record(&Marker { seq, body })? {
                sequence.piece(file, offset, Crc32::of(&vec![0; len as usize]));
            }
        }
        Ok(sequence)
    }

    #[test]
    fn files_may_be_open_at_once_and_come_again() {
        let bodies = [
            file("a"),
            Data(3),
            file("b"),
            Data(0),
            file("a"),
            Data(4),
            FileEof,
            file("b"),
            FileEof,
            file("a"), // again: this one counts
            Data(1),
            FileEof,
            ImageEof,
        ];
        let manifest = run(bodies).unwrap().finish(2).unwrap();
        let files: Vec<_> =
            manifest.files.iter().map(|f| (f.file, f.name.as_str(), f.checksum)).collect();
        assert_eq!(files, [(1, "b", Crc32::default()), (2, "a", Crc32::of(&[0]))]);
        assert_eq!(manifest.end.superseded, [0]);
        assert_eq!((manifest.end.files, manifest.end.raw_bytes, manifest.shards), (2, 1, 2));
    }

    #[test]
    fn what_cannot_be() {
        let name = || FileName::new("a").unwrap();
        let cases = [
            (vec![Data(1)], MarkerError::NoFile(0)),
            (vec![FileEof], MarkerError::NoFile(0)),
            (vec![file("a"), FileEof, Data(1)], MarkerError::NoFile(2)),
            (vec![file("a"), FileEof, FileEof], MarkerError::NoFile(2)),
            (vec![file("a"), ImageEof], MarkerError::FileOpen(name())),
            (vec![file("a"), file("b"), FileEof, ImageEof], MarkerError::FileOpen(name())),
            (vec![ImageEof, ImageEof], MarkerError::AfterImageEof),
            (vec![ImageEof, file("a")], MarkerError::AfterImageEof),
        ];
        for (bodies, error) in cases {
            assert_eq!(run(bodies.clone()).err(), Some(error), "{bodies:?}");
        }
        let seq = |seq| Sequence::default().record(&Marker { seq, body: ImageEof }).err();
        assert_eq!(seq(1), Some(MarkerError::OutOfOrder { found: 1, expected: 0 }));
        let unfinished = run([file("a"), FileEof]).unwrap().finish(1);
        assert_eq!(unfinished.err(), Some(MarkerError::NoImageEof));
    }

    #[test]
    fn limits() {
        let many = (0..=MAX_FILES).flat_map(|n| [file(&n.to_string()), FileEof]);
        assert_eq!(run(many).err(), Some(MarkerError::TooManyFiles));
        let again = (0..MAX_SUPERSEDED + 2).flat_map(|_| [file("a"), FileEof]);
        assert_eq!(run(again).err(), Some(MarkerError::TooManySuperseded));
        let mut sequence = Sequence::default();
        let mut take = |seq, body| sequence.record(&Marker { seq, body });
        take(0, file("a")).unwrap();
        let full = (1..).map(|seq| take(seq, Data(u32::MAX))).find_map(Result::err);
        assert_eq!(full, Some(MarkerError::TooLarge(FileName::new("a").unwrap())));
    }

    #[test]
    fn a_payload_that_was_not_taken_is_missed() {
        let mut sequence = run([file("a"), Data(5)]).unwrap();
        for (body, seq) in [Data(6), FileEof, ImageEof].into_iter().zip(2..) {
            sequence.record(&Marker { seq, body }).unwrap();
        }
        let name = FileName::new("a").unwrap();
        let error = MarkerError::FileIncomplete { name, have: 5, size: 11 };
        assert_eq!(sequence.finish(1).err(), Some(error));
    }
}
