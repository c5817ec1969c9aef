//! Reads one chunk and checks it.

use std::os::unix::fs::FileExt;

use vramstream::stage::{self, Crc32, ZeroChecksums};

use super::{Located, SeekableImage, Shard};
use crate::{
    error::{Error, Result},
    format::{ChunkHeader, Codec, FormatError, Header, index::ChunkRecord},
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
        let Located { record, .. } = chunk;
        let (shard, header) = (self.shard_of(chunk)?, &record.header);
        let Scratch { frame, raw, zeros } = scratch;
        let (head_len, payload_at) = head_of(record);
        let frame = sized(frame, payload_at + header.stored_len as usize);
        shard.file.read_exact_at(frame, record.frame_at).map_err(shard.io(record.frame_at))?;
        let (head, payload) = frame.split_at(payload_at);
        shard.check_head(head, head_len, record)?;
        if header.codec == Codec::Zero {
            let matches = zeros.of(header.raw_len) == header.crc;
            let zeros = ChunkBytes::Zeros(header.raw_len.into());
            return matches.then_some(zeros).ok_or_else(|| self.damaged(shard, header));
        }
        let bytes = if header.codec == Codec::Lz4 {
            let raw = sized(raw, header.raw_len as usize);
            if !stage::decompress_lz4(payload, raw) {
                return Err(self.damaged(shard, header));
            }
            raw
        } else {
            payload
        };
        if Crc32::of(bytes).value != header.crc {
            return Err(self.damaged(shard, header));
        }
        Ok(ChunkBytes::Bytes(bytes))
    }

    /// The same for a chunk that has bytes, into memory of the caller's, which is as long as they are.
    /// Where they are stored raw they are read there and nowhere else.
    pub fn read_chunk_into(
        &self,
        chunk: &Located,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        let Located { record, .. } = chunk;
        let (shard, header) = (self.shard_of(chunk)?, &record.header);
        let (head_len, payload_at) = head_of(record);
        let is_raw = header.codec == Codec::Raw;
        let in_frame = if is_raw { 0 } else { header.stored_len as usize };
        let frame = sized(&mut scratch.frame, payload_at + in_frame);
        shard.file.read_exact_at(frame, record.frame_at).map_err(shard.io(record.frame_at))?;
        let (head, payload) = frame.split_at(payload_at);
        shard.check_head(head, head_len, record)?;
        if is_raw {
            let at = record.frame_at + payload_at as u64;
            shard.file.read_exact_at(out, at).map_err(shard.io(at))?;
        } else if header.codec == Codec::Zero || !stage::decompress_lz4(payload, out) {
            return Err(self.damaged(shard, header));
        }
        let matches = out.len() == header.raw_len as usize && Crc32::of(out).value == header.crc;
        if matches { Ok(()) } else { Err(self.damaged(shard, header)) }
    }

    fn shard_of(&self, chunk: &Located) -> Result<&Shard> {
        let number = chunk.shard;
        self.shards.get(number as usize).ok_or_else(|| {
            Error::Usage(format!("the image has no shard {number}: a chunk of another image"))
        })
    }

    fn damaged(&self, shard: &Shard, header: &ChunkHeader) -> Error {
        Error::Payload {
            shard: shard.name.clone(),
            file: self.name(header.file),
            offset: header.offset,
        }
    }

    fn name(&self, file: u32) -> String {
        let files = &self.manifest.files;
        let place = files.binary_search_by_key(&file, |summary| summary.file);
        place.ok().and_then(|at| files.get(at)).map(|f| f.name.to_string()).unwrap_or_default()
    }
}

impl Shard {
    /// The frame in the shard is the one that the index means, and its padding is zero.
    fn check_head(&self, head: &[u8], head_len: usize, record: &ChunkRecord) -> Result<()> {
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

/// How long the head of a frame is, and where its payload begins.
fn head_of(record: &ChunkRecord) -> (usize, usize) {
    let head_len = usize::try_from(record.frame_len).unwrap_or(usize::MAX);
    (head_len, head_len.saturating_add(record.header.pad as usize))
}

/// The first `len` bytes of a buffer that only ever grows.
fn sized(buf: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buf.len() < len {
        buf.resize(len, 0);
    }
    &mut buf[..len]
}
