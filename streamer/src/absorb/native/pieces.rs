//! Chunks for a lane that takes a few bytes at a time.

use vramstream::stage::{self, Crc32};

use super::{Lane, Shard, fill};
use crate::{
    error::Result,
    format::{ChunkHeader, Codec},
};

/// Memory of one reader, for compressed chunks. It grows to the largest that comes.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    stored: Vec<u8>,
    raw: Vec<u8>,
}

impl Scratch {
    /// For so many decompressed bytes.
    pub(super) fn raw(&mut self, len: usize) -> &mut [u8] {
        sized(&mut self.raw, len)
    }
}

/// Takes a raw chunk in pieces; whether it is what was dumped, which its end tells.
pub(super) fn raw(
    shard: &mut Shard,
    chunk: &ChunkHeader,
    lane: &mut impl Lane,
    end: u64,
    piece_bytes: usize,
) -> Result<bool> {
    let mut whole = Crc32::default();
    for (offset, len) in cut(chunk, piece_bytes) {
        let payload = lane.payload(len as usize)?;
        fill(shard, payload, end - (chunk.end() - offset - u64::from(len)))?;
        let crc = Crc32::of(payload);
        whole = whole.followed_by(crc);
        // The last piece, and a chunk that is all of one, is not handed over if it is wrong.
        if whole.len == u64::from(chunk.raw_len) && whole.value != chunk.crc {
            return Ok(false);
        }
        lane.chunk(&piece(chunk, offset, len, crc), None)?;
    }
    Ok(true)
}

/// Takes a compressed chunk in pieces; whether it is what was dumped. If it is not, no piece of it
/// was handed over.
pub(super) fn lz4(
    shard: &mut Shard,
    chunk: &ChunkHeader,
    lane: &mut impl Lane,
    end: u64,
    piece_bytes: usize,
    scratch: &mut Scratch,
) -> Result<bool> {
    let stored = sized(&mut scratch.stored, chunk.stored_len as usize);
    fill(shard, stored, end)?;
    if chunk.raw_len as usize <= piece_bytes {
        let payload = lane.payload(chunk.raw_len as usize)?;
        let good = stage::decompress_lz4(stored, payload) && Crc32::of(payload) == chunk.checksum();
        if good {
            lane.chunk(&piece(chunk, chunk.offset, chunk.raw_len, chunk.checksum()), None)?;
        }
        return Ok(good);
    }
    let raw = sized(&mut scratch.raw, chunk.raw_len as usize);
    if !stage::decompress_lz4(stored, raw) || Crc32::of(raw) != chunk.checksum() {
        return Ok(false);
    }
    let mut rest = &*raw;
    for (offset, len) in cut(chunk, piece_bytes) {
        let Some((bytes, after)) = rest.split_at_checked(len as usize) else { break };
        rest = after;
        lane.payload(bytes.len())?.copy_from_slice(bytes);
        lane.chunk(&piece(chunk, offset, len, Crc32::of(bytes)), None)?;
    }
    Ok(true)
}

/// Where the pieces of a chunk are in the file, and how long.
fn cut(chunk: &ChunkHeader, piece_bytes: usize) -> impl Iterator<Item = (u64, u32)> + use<> {
    let most = u32::try_from(piece_bytes).unwrap_or(u32::MAX).max(1);
    let (offset, raw_len) = (chunk.offset, chunk.raw_len);
    (0..raw_len)
        .step_by(most as usize)
        .map(move |at| (offset + u64::from(at), most.min(raw_len - at)))
}

/// A piece as a chunk of its own.
fn piece(chunk: &ChunkHeader, offset: u64, len: u32, checksum: Crc32) -> ChunkHeader {
    ChunkHeader {
        file: chunk.file,
        offset,
        raw_len: len,
        stored_len: len,
        codec: Codec::Raw,
        crc: checksum.value,
        pad: 0,
    }
}

fn sized(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}
