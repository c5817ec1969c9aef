//! A destination that takes everything and keeps nothing: what comes before it can be measured by
//! itself.

use super::{Destination, ShardWriter};
use crate::{error::Result, format::ImageId, payload::Payload};

/// As many shards as are asked for, and nothing behind them.
#[derive(Debug)]
pub struct NullDestination {
    shards: u32,
}

impl NullDestination {
    /// With so many shards.
    pub fn new(shards: u32) -> Self {
        NullDestination { shards }
    }
}

impl Destination for NullDestination {
    fn shards(&self) -> u32 {
        self.shards
    }

    fn open(&mut self, _image: ImageId) -> Result<Vec<Box<dyn ShardWriter>>> {
        let name = |shard| format!("shard {shard} (discarded)");
        Ok((0..self.shards).map(|shard| Box::new(NullWriter(name(shard))) as _).collect())
    }

    fn commit(&mut self, _check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn abort(&mut self, _reason: &str) {}
}

struct NullWriter(String);

impl ShardWriter for NullWriter {
    fn describe(&self) -> &str {
        &self.0
    }

    fn write(&mut self, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    fn write_chunk(&mut self, _head: &[u8], _payload: Payload) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use vramstream::{ring::Ring, stage::Compression};

    use super::*;
    use crate::{
        format::FileName,
        pack::{Memory, Options, Packer, StageThreads, Totals},
        progress::Progress,
    };

    #[test]
    fn an_image_of_any_size_can_be_packed_into_nothing() {
        let ring = Ring::new(64 << 10, 4).unwrap();
        let options = Options {
            compression: Compression::None,
            memory: Memory::Ring { ring: ring.clone(), index_bytes: 1 << 20 },
            stages: StageThreads::Compress,
        };
        let destination = Box::new(NullDestination::new(3));
        let mut packer =
            Packer::start(destination, options, || Ok(()), &Progress::silent()).unwrap();
        let mut feed = packer.feed();
        let file = feed.file(0, FileName::new("pages-1.img").unwrap());
        let chunks = 100;
        for number in 0..chunks {
            let mut payload = feed.take().unwrap();
            payload.len = payload.chunk.len();
            payload.chunk.fill(1);
            feed.chunk(&file, number * payload.len as u64, payload).unwrap();
        }
        let raw_bytes = chunks * ring.chunk_bytes() as u64;
        feed.end(&file, raw_bytes).unwrap();
        let totals = Totals { files: 1, raw_bytes, superseded: Vec::new() };
        let stats = packer.commit(&totals).unwrap();
        assert_eq!(stats.len(), 3);
        assert!(stats.iter().map(|shard| shard.bytes).sum::<u64>() > raw_bytes);
        assert_eq!(ring.free(), 4, "a chunk was kept");
    }
}
