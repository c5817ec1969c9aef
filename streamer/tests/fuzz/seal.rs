//! Makes the checksums and lengths of an altered native shard right, as far as it is one.

use prost::Message;
use vramstream::stage::Crc32;
use vramstream_streamer::{
    format::{
        PROLOGUE_BYTES,
        index::{INDEX_PREFIX_BYTES, TRAILER_BYTES},
    },
    proto::format::{FrameHeader, frame_header::Body},
};

/// All of a shard.
pub(crate) fn native(shard: &mut [u8]) {
    if shard.len() < PROLOGUE_BYTES {
        return;
    }
    let crc = Crc32::of(&shard[..60]).value.to_le_bytes();
    shard[60..64].copy_from_slice(&crc);
    let mut at = PROLOGUE_BYTES;
    while let Some(prefix) = shard.get(at..at + 8) {
        let len = u32::from_le_bytes([prefix[0], prefix[1], prefix[2], prefix[3]]);
        let Some(header) = shard.get(at + 8..at + 8 + len as usize) else { break };
        let decoded = FrameHeader::decode(header);
        let crc = Crc32::of(&[&len.to_le_bytes(), header].concat()).value.to_le_bytes();
        shard[at + 4..at + 8].copy_from_slice(&crc);
        at += 8 + len as usize;
        match decoded.map(|header| header.body) {
            Ok(Some(Body::Chunk(chunk))) => at += chunk.pad as usize + chunk.stored_len as usize,
            Ok(Some(Body::ImageEnd(_))) => {
                index(shard, at);
                break;
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
}

/// The index that starts at a byte, and the trailer after it.
pub(crate) fn index(shard: &mut [u8], at: usize) {
    let len = shard.len();
    let Some(body_len) = len.checked_sub(at + INDEX_PREFIX_BYTES + TRAILER_BYTES) else { return };
    let (body_at, trailer_at) = (at + INDEX_PREFIX_BYTES, len - TRAILER_BYTES);
    let crc = Crc32::of(&shard[body_at..trailer_at]).value.to_le_bytes();
    shard[at..at + 8].copy_from_slice(&(body_len as u64).to_le_bytes());
    shard[at + 8..at + 12].copy_from_slice(&crc);
    let trailer = &mut shard[trailer_at..];
    trailer[..8].copy_from_slice(&(at as u64).to_le_bytes());
    trailer[8..16].copy_from_slice(&(len as u64).to_le_bytes());
    trailer[16..20].fill(0);
    let crc = Crc32::of(&trailer[..20]).value.to_le_bytes();
    trailer[20..24].copy_from_slice(&crc);
    trailer[24..].copy_from_slice(b"VRAMSEND");
}
