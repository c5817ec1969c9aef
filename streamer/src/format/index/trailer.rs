//! What leads a reader that starts at the end of a shard to its index.

use vramstream::stage::Crc32;

use super::{
    super::{FormatError, MAX_INDEX_BYTES, PROLOGUE_BYTES},
    INDEX_PREFIX_BYTES, TRAILER_BYTES,
};

const TRAILER_MAGIC: [u8; 8] = *b"VRAMSEND";

/// The prefix of an index: length and CRC-32 of what follows.
pub(in super::super) fn decode_prefix(
    bytes: &[u8; INDEX_PREFIX_BYTES],
    at: u64,
) -> Result<(u64, u32), FormatError> {
    let (len, crc) = bytes.split_at(8);
    let len = len.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
    let crc = crc.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
    if len > MAX_INDEX_BYTES {
        return Err(FormatError::Limit {
            what: "length of the index",
            value: len,
            limit: MAX_INDEX_BYTES,
            at,
        });
    }
    Ok((len, crc))
}

/// The last bytes of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Where the index starts.
    pub index_at: u64,
    /// Length of the whole shard.
    pub shard_len: u64,
}

impl Trailer {
    pub(super) fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut out = [0; TRAILER_BYTES];
        out[..8].copy_from_slice(&self.index_at.to_le_bytes());
        out[8..16].copy_from_slice(&self.shard_len.to_le_bytes());
        let crc = Crc32::of(&out[..20]).value;
        out[20..24].copy_from_slice(&crc.to_le_bytes());
        out[24..].copy_from_slice(&TRAILER_MAGIC);
        out
    }

    /// Reads the trailer of a shard of `shard_len` bytes.
    pub fn decode(bytes: &[u8; TRAILER_BYTES], shard_len: u64) -> Result<Self, FormatError> {
        let at = shard_len.saturating_sub(TRAILER_BYTES as u64);
        let word = |range: std::ops::Range<usize>| {
            bytes[range].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
        };
        if bytes[24..] != TRAILER_MAGIC {
            return Err(FormatError::Truncated {
                what: "the image: it has no trailer",
                at: shard_len,
            });
        }
        if word(20..24) != u64::from(Crc32::of(&bytes[..20]).value) || word(16..20) != 0 {
            return Err(FormatError::Checksum { what: "trailer", at });
        }
        let trailer = Trailer { index_at: word(0..8), shard_len: word(8..16) };
        let first = (PROLOGUE_BYTES + TRAILER_BYTES + INDEX_PREFIX_BYTES) as u64;
        if trailer.shard_len != shard_len {
            return Err(FormatError::Malformed { what: "a trailer that gives another length", at });
        }
        if shard_len < first
            || trailer.index_at > shard_len - (TRAILER_BYTES + INDEX_PREFIX_BYTES) as u64
        {
            return Err(FormatError::Malformed {
                what: "a trailer whose index is not in the shard",
                at,
            });
        }
        Ok(trailer)
    }
}

/// Reads the index prefix of a shard that is open at its end; the index must fill the place between
/// its start and the trailer.
pub fn index_len(
    prefix: &[u8; INDEX_PREFIX_BYTES],
    trailer: &Trailer,
) -> Result<(u64, u32), FormatError> {
    let (len, crc) = decode_prefix(prefix, trailer.index_at)?;
    let end = trailer.shard_len - TRAILER_BYTES as u64;
    if trailer.index_at + INDEX_PREFIX_BYTES as u64 + len != end {
        let at = trailer.index_at;
        return Err(FormatError::Malformed {
            what: "an index that does not end at the trailer",
            at,
        });
    }
    Ok((len, crc))
}
