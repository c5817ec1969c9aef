//! Reads an image to its end and keeps nothing: is it whole, and is every byte what was dumped?
//!
//! Every payload is read, decompressed and checked, whatever the image comes from; what it takes in
//! memory is one chunk for each shard.

use std::sync::Arc;

use crate::{
    absorb::{Absorbed, ImageSink, Lane, Progress, absorb},
    error::Result,
    format::{ChunkHeader, FileName},
    transport::ShardReader,
};

/// What is in the image, if it is one.
pub fn verify(shards: Vec<Box<dyn ShardReader>>, progress: &Progress) -> Result<Absorbed> {
    // Nothing to clean up: a signal may end the program at any time.
    absorb(shards, &Arc::new(Discard), progress, &mut || Ok(()))
}

/// Takes an image and keeps nothing.
struct Discard;

impl ImageSink for Discard {
    type Lane = Scratch;

    fn lane(self: &Arc<Self>) -> Result<Scratch> {
        Ok(Scratch::default())
    }

    fn file_begin(&self, _file: u32, _name: &FileName) -> Result<()> {
        Ok(())
    }
}

/// Memory for one payload after the other.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    /// So many bytes, with anything in them.
    pub(crate) fn take(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len {
            self.0.resize(len, 0);
        }
        &mut self.0[..len]
    }
}

impl Lane for Scratch {
    fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        Ok(self.take(len))
    }

    fn chunk(&mut self, _header: &ChunkHeader, _decompressed: Option<&[u8]>) -> Result<()> {
        Ok(())
    }

    fn finish(self) -> Result<()> {
        Ok(())
    }
}
