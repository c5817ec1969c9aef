//! A chunk before anybody has looked at it, and the look.

use std::sync::Arc;

use vramstream::stage::{self, Crc32, ZeroChecksums};

use super::frames::FileState;
use crate::{
    format::{ChunkHeader, Codec},
    payload::Payload,
};

/// A chunk on its way to the shards.
pub(super) struct Job {
    pub state: Arc<FileState>,
    pub offset: u64,
    pub payload: Payload,
    /// What is known of it, if somebody has looked at it already: then it is worth a try.
    pub header: Option<ChunkHeader>,
}

/// Looks at the bytes of a chunk. One that is zero gives its memory back.
pub(super) fn look(
    state: &FileState,
    offset: u64,
    payload: Payload,
    zeros: &mut ZeroChecksums,
) -> (ChunkHeader, Option<Payload>) {
    let bytes = payload.bytes();
    // What is longer than the format allows is refused where it is encoded.
    let raw_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let zero = stage::is_zero(bytes);
    let crc = if zero { zeros.of(raw_len) } else { Crc32::of(bytes).value };
    let (codec, stored_len) = if zero { (Codec::Zero, 0) } else { (Codec::Raw, raw_len) };
    let header = ChunkHeader { file: state.file, offset, raw_len, stored_len, codec, crc, pad: 0 };
    (header, (!zero).then_some(payload))
}
