//! The payload of a chunk on its way to a shard.
//!
//! It is always a copy of what CRIU handed over. CRIU's pipes hold references to pages of the dumped
//! process, and they change under the pipe as soon as the process goes on or is killed (the kernel
//! itself writes to some when a thread exits): handing them on after the checksum was computed
//! makes images that do not match their checksums.

use vramstream::ring::Chunk;

/// Bytes to write to a shard. Dropping it gives the chunk back.
#[derive(Debug)]
pub struct Payload {
    /// Holds the bytes.
    pub chunk: Chunk,
    /// How many of its bytes, from the first.
    pub len: usize,
}

impl Payload {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.chunk[..self.len]
    }
}
