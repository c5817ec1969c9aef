//! What packing may take, and how it is divided.

use vramstream::ring::{Ring, page_bytes};

use crate::{
    error::{Error, Result},
    transport::Destination,
};

/// The share of a budget that the ring may take, and the indexes of the shards too.
const SHARE: u64 = 4;
/// The largest ring: more chunks do not make anything faster.
const RING_BYTES: usize = 32 << 20;
/// The fewest chunks: one being filled, one in each other stage, one to go on with.
const FEWEST_CHUNKS: usize = 8;

/// What packing may take.
#[derive(Debug)]
pub enum Memory {
    /// So many bytes for everything: what the destination takes for itself, a quarter of the rest
    /// at most for a ring made for it, and a quarter at most for the indexes.
    Budget(u64),
    /// The caller's ring, and beside it so many bytes at most for the indexes. What the destination
    /// takes, and the buffers of stage threads that compress, come on top.
    Ring {
        /// The ring.
        ring: Ring,
        /// For the indexes of all shards together.
        index_bytes: usize,
    },
}

impl Memory {
    /// The ring, and the bytes for indexes.
    pub(super) fn divide(self, destination: &dyn Destination) -> Result<(Ring, usize)> {
        let budget = match self {
            Memory::Ring { ring, index_bytes } => return Ok((ring, index_bytes)),
            Memory::Budget(bytes) => bytes,
        };
        let elsewhere = destination.memory_bytes();
        if elsewhere > budget / 2 {
            return Err(Error::Usage(format!(
                "{} shards take {elsewhere} bytes, more than half of --memory {budget}: give more memory or fewer --shards",
                destination.shards()
            )));
        }
        let rest = budget - elsewhere;
        let index_bytes = usize::try_from(rest / SHARE).unwrap_or(usize::MAX);
        Ok((ring(rest, destination.chunk_bytes())?, index_bytes))
    }
}

/// A ring within its share.
fn ring(memory_bytes: u64, wanted_bytes: usize) -> Result<Ring> {
    let bytes = usize::try_from(memory_bytes / SHARE).unwrap_or(usize::MAX);
    let page = page_bytes();
    let chunk_bytes = (bytes / FEWEST_CHUNKS).min(wanted_bytes) / page * page;
    if chunk_bytes == 0 {
        return Err(Error::Usage(format!(
            "--memory {memory_bytes} is too little: give at least {}",
            page as u64 * FEWEST_CHUNKS as u64 * SHARE
        )));
    }
    let chunks = (bytes / chunk_bytes).min(RING_BYTES / chunk_bytes).max(FEWEST_CHUNKS);
    Ring::new(chunk_bytes, chunks).map_err(|error| Error::Usage(error.to_string()))
}
