//! The index at the end of a shard: where every chunk is, so that one file can be read without the
//! others.
//!
//! A chunk's record is a flag byte, then the fields that the flags ask for, in this order, as
//! LEB128 varints, then the CRC-32 of the raw bytes in 4 bytes:
//!
//! | flag | field if set | otherwise |
//! |---|---|---|
//! | bits 0 to 1 | | the codec |
//! | bit 2 | file number | the previous record's |
//! | bit 3 | offset | where the previous record ended |
//! | bit 4 | raw length | the previous record's |
//! | bit 5 | gap: bytes of other frames before this frame | 0 |
//! | bit 6 | padding | 0 |
//! | bit 7 | must be 0 | |
//! | | header length, prefix included (always) | |
//! | | stored length (only codec lz4) | from codec and raw length |
//!
//! "Previous" for the first record is file 0, offset 0, length 0, and a frame that ended at byte
//! [`PROLOGUE_BYTES`]. Some ten bytes for a chunk: the index of a terabyte in 1 MiB chunks takes
//! 10 MB of the writer's memory.

use super::{ChunkHeader, PROLOGUE_BYTES};

mod build;
mod read;
mod trailer;

pub(super) use build::IndexBuilder;
pub use read::{Index, IndexedFile};
pub(super) use trailer::decode_prefix;
pub use trailer::{Trailer, index_len};

/// Size of what stands in front of the index: its length and CRC-32.
pub const INDEX_PREFIX_BYTES: usize = 12;
/// Size of the trailer.
pub const TRAILER_BYTES: usize = 32;

const FLAG_CODEC: u8 = 0b11;
const FLAG_FILE: u8 = 1 << 2;
const FLAG_OFFSET: u8 = 1 << 3;
const FLAG_RAW_LEN: u8 = 1 << 4;
const FLAG_GAP: u8 = 1 << 5;
const FLAG_PAD: u8 = 1 << 6;
const FLAG_RESERVED: u8 = 1 << 7;

/// Where a chunk is in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRecord {
    /// The chunk's header.
    pub header: ChunkHeader,
    /// Where its frame starts.
    pub frame_at: u64,
    /// Bytes of prefix and header.
    pub frame_len: u64,
}

impl ChunkRecord {
    /// Where its payload starts.
    pub fn payload_at(&self) -> u64 {
        self.frame_at + self.frame_len + u64::from(self.header.pad)
    }

    fn end(&self) -> u64 {
        self.payload_at() + u64::from(self.header.stored_len)
    }
}

/// What a record is told relative to.
#[derive(Debug)]
struct Previous {
    file: u32,
    offset_end: u64,
    raw_len: u32,
    frame_end: u64,
}

impl Default for Previous {
    fn default() -> Self {
        Previous { file: 0, offset_end: 0, raw_len: 0, frame_end: PROLOGUE_BYTES as u64 }
    }
}

impl Previous {
    fn follow(&mut self, record: &ChunkRecord) {
        self.file = record.header.file;
        self.offset_end = record.header.end();
        self.raw_len = record.header.raw_len;
        self.frame_end = record.end();
    }
}

/// A set of file numbers, a bit for each.
#[derive(Debug, Default, Clone)]
pub(super) struct FileSet(Vec<u64>);

impl FileSet {
    pub(super) fn contains(&self, file: u32) -> bool {
        self.0.get(file as usize / 64).is_some_and(|word| word >> (file % 64) & 1 == 1)
    }

    /// Adds a number below [`MAX_FILES`](super::MAX_FILES); whether it was new.
    pub(super) fn insert(&mut self, file: u32) -> bool {
        let word = file as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let new = !self.contains(file);
        self.0[word] |= 1 << (file % 64);
        new
    }
}
