//! Where a chunk is, in 40 bytes: an image of a terabyte has a million of them.

use super::Located;
use crate::format::{ChunkHeader, Codec, MAX_SHARDS, index::ChunkRecord};

/// One chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) offset: u64,
    frame_at: u64,
    pub(super) file: u32,
    raw_len: u32,
    stored_len: u32,
    crc: u32,
    pad: u32,
    frame_len: u16,
    shard: u8,
    codec: Codec,
}

const _: () = assert!(size_of::<Entry>() == 40 && MAX_SHARDS <= 1 << u8::BITS);

impl Entry {
    /// `None` where the frame's header is longer than one can be.
    pub(super) fn new(shard: u32, record: &ChunkRecord) -> Option<Self> {
        let ChunkRecord { header, frame_at, frame_len } = *record;
        let ChunkHeader { file, offset, raw_len, stored_len, codec, crc, pad } = header;
        let frame_len = u16::try_from(frame_len).ok()?;
        let shard = u8::try_from(shard).ok()?;
        Some(Entry {
            offset,
            frame_at,
            file,
            raw_len,
            stored_len,
            crc,
            pad,
            frame_len,
            shard,
            codec,
        })
    }

    pub(super) fn located(&self) -> Located {
        let Entry { offset, frame_at, file, raw_len, stored_len, crc, pad, .. } = *self;
        let header = ChunkHeader { file, offset, raw_len, stored_len, codec: self.codec, crc, pad };
        let record = ChunkRecord { header, frame_at, frame_len: self.frame_len.into() };
        Located { shard: self.shard.into(), record }
    }
}
