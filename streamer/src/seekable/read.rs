//! Reads one chunk and checks it.

use std::os::unix::fs::FileExt;

use vramstream::stage::{self, Crc32, ZeroChecksums};

use super::{Located, SeekableImage, Shard};
use crate::{
    error::{Error, Result},
    format::{Codec, FormatError, Header},
};

/// Memory to read chunks into; grows to the largest chunk and is used again and again.
#[derive(Debug, Default)]
pub struct Scratch {
    /// A frame as it is in the shard.
    frame: Vec<u8>,
    raw: Vec<u8>,
    zeros: ZeroChecksums,
}

/// The bytes of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkBytes<'a> {
    /// These.
    Bytes(&'a [u8]),
    /// That many zeros: up to a gigabyte, so they are not spelled out.
    Zeros(u64),
}

impl SeekableImage {
    /// Reads a chunk of this image: its raw bytes, which have the checksum that they had at the
    /// source.
    pub fn read_chunk<'a>(
        &self,
        chunk: &Located,
        scratch: &'a mut Scratch,
    ) -> Result<ChunkBytes<'a>> {
        let Located { shard, record } = chunk;
        let shard = self.shards.get(*shard as usize).ok_or_else(|| {
            Error::Usage(format!("the image has no shard {shard}: a chunk of another image"))
        })?;
        let header = &record.header;
        let Scratch { frame, raw, zeros } = scratch;
        let damaged = || Error::Payload {
            shard: shard.name.clone(),
            file: self.name(header.file),
            offset: header.offset,
        };
        let head_len = usize::try_from(record.frame_len).unwrap_or(usize::MAX);
        let payload_at = head_len + header.pad as usize;
        let frame = sized(frame, payload_at + header.stored_len as usize);
        shard.file.read_exact_at(frame, record.frame_at).map_err(shard.io(record.frame_at))?;
        let (head, payload) = frame.split_at(payload_at);
        shard.check_head(head, head_len, record)?;
        if header.codec == Codec::Zero {
            let matches = zeros.of(header.raw_len) == header.crc;
            return matches.then_some(ChunkBytes::Zeros(header.raw_len.into())).ok_or_else(damaged);
        }
        let bytes = if header.codec == Codec::Lz4 {
            let raw = sized(raw, header.raw_len as usize);
            if !stage::decompress_lz4(payload, raw) {
                return Err(damaged());
            }
            raw
        } else {
            payload
        };
        if Crc32::of(bytes).value != header.crc {
            return Err(damaged());
        }
        Ok(ChunkBytes::Bytes(bytes))
    }

    fn name(&self, file: u32) -> String {
        let files = &self.manifest.files;
        let place = files.binary_search_by_key(&file, |summary| summary.file);
        place.ok().and_then(|at| files.get(at)).map(|f| f.name.to_string()).unwrap_or_default()
    }
}

impl Shard {
    /// The frame in the shard is the one that the index means, and its padding is zero.
    fn check_head(
        &self,
        head: &[u8],
        head_len: usize,
        record: &crate::format::index::ChunkRecord,
    ) -> Result<()> {
        let at = record.frame_at;
        let malformed = |what| self.refuse(FormatError::Malformed { what, at });
        let (head, pad) = head.split_at(head_len);
        match Header::decode_frame(head, at).map_err(|e| self.refuse(e))? {
            Header::Chunk(header) if header == record.header => {}
            _ => return Err(malformed("a frame that is not what the index says")),
        }
        if !stage::is_zero(pad) {
            return Err(malformed("padding that is not zero"));
        }
        Ok(())
    }
}

/// The first `len` bytes of a buffer that only ever grows.
fn sized(buf: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buf.len() < len {
        buf.resize(len, 0);
    }
    &mut buf[..len]
}
