//! Serves an image from shards that can be read at any place, as CRIU asks for it.

use std::sync::Arc;

use super::{ImageFiles, Pieces, PipeOut, Step, Took, WHOLE_BYTES};
use crate::{
    error::Result,
    format::{Codec, FileName},
    seekable::{ChunkBytes, Located, Scratch, SeekableImage},
};

/// The files of a seekable image.
#[derive(Debug)]
pub struct SeekableFiles(Arc<SeekableImage>);

impl SeekableFiles {
    /// Of this image.
    pub fn new(image: SeekableImage) -> Self {
        SeekableFiles(Arc::new(image))
    }
}

impl ImageFiles for SeekableFiles {
    fn open(&self, name: &FileName) -> Result<Option<Box<dyn Pieces>>> {
        let Some(file) = self.0.file(name.as_str()) else { return Ok(None) };
        Ok(Some(Box::new(Reading {
            image: Arc::clone(&self.0),
            name: name.clone(),
            size: file.summary.checksum.len,
            offset: 0,
            scratch: Scratch::default(),
        })))
    }
}

/// A file being read. It holds one chunk at a time, or all of a small file.
struct Reading {
    image: Arc<SeekableImage>,
    name: FileName,
    size: u64,
    offset: u64,
    scratch: Scratch,
}

impl Reading {
    fn next(&self) -> Option<Located> {
        self.image.file(self.name.as_str())?.chunk_at(self.offset)
    }
}

impl Pieces for Reading {
    fn size(&self) -> u64 {
        self.size
    }

    fn give(&mut self, pipe: &mut PipeOut) -> Result<Step> {
        if self.size <= WHOLE_BYTES {
            let mut whole = Vec::new();
            self.read_all(&mut whole)?;
            pipe.copy(&whole)?;
            return Ok(Step::End);
        }
        let Some(chunk) = self.next() else { return Ok(Step::End) };
        match self.image.read_chunk(&chunk, &mut self.scratch)? {
            ChunkBytes::Bytes(bytes) => pipe.copy(bytes)?,
            ChunkBytes::Zeros(len) => pipe.zeros(len)?,
        }
        self.offset = chunk.record.header.end();
        Ok(if self.offset < self.size { Step::More } else { Step::End })
    }

    fn take(&mut self, out: &mut [u8]) -> Result<Took> {
        let Some(chunk) = self.next() else { return Ok(Took::End) };
        let header = chunk.record.header;
        let len = header.raw_len as usize;
        let took = match header.codec {
            Codec::Zero => match self.image.read_chunk(&chunk, &mut self.scratch)? {
                ChunkBytes::Zeros(len) => Took::Zeros(len),
                ChunkBytes::Bytes(_) => Took::Zeros(header.raw_len.into()),
            },
            Codec::Raw | Codec::Lz4 => {
                let Some(out) = out.get_mut(..len) else { return Ok(Took::Larger(len)) };
                self.image.read_chunk_into(&chunk, &mut self.scratch, out)?;
                Took::Bytes(len)
            }
        };
        self.offset = header.end();
        Ok(took)
    }

    fn read_all(&mut self, out: &mut Vec<u8>) -> Result<()> {
        while let Some(chunk) = self.next() {
            match self.image.read_chunk(&chunk, &mut self.scratch)? {
                ChunkBytes::Bytes(bytes) => out.extend_from_slice(bytes),
                ChunkBytes::Zeros(len) => {
                    out.resize(out.len() + usize::try_from(len).unwrap_or(usize::MAX), 0);
                }
            }
            self.offset = chunk.record.header.end();
        }
        Ok(())
    }
}
