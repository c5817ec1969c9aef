//! Copies between BOs and chunks by SDMA, several at a time.
//!
//! A [`CopyQueue`] has a render node of its own, and in that node's empty address space:
//!
//! ```text
//!  ┌ the ring, as one userptr BO ┐┌ IBs: a slot for each copy in flight ┐┌ BOs, while they are copied ···
//!  │ chunk 0 │ chunk 1 │ ...     ││ packets │ packets │ ...             ││
//!  └─────────────────────────────┘└─────────────────────────────────────┘└──────────────────────────────
//! ```
//!
//! [`read`](CopyQueue::read) and [`write`](CopyQueue::write) take a chunk by value; it belongs to
//! the device until [`finish_one`](CopyQueue::finish_one) gives it back after its fence. A chunk
//! whose fence never came, or came as an error, is condemned: nobody uses its memory again.
//!
//! Everything is made in the beginning, and nothing is allocated for a copy. Dropping the queue waits
//! for what is in flight (not longer than the deadline) and releases every mapping, handle and
//! context.

use std::time::Duration;

use crate::ring::Chunk;

mod bos;
mod engines;
mod queue;
mod space;
#[cfg(test)]
mod tests;

pub use queue::CopyQueue;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From BOs to chunks: a dump.
    ToHost,
    /// From chunks to BOs: a restore.
    ToDevice,
}

/// How much can be in flight, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Copies in flight on each DMA ring: two keep an engine busy.
    pub copies_per_ring: usize,
    /// Copies in flight altogether.
    pub copies: usize,
    /// How long a copy may take before the engine counts as hung.
    pub fence_deadline: Duration,
}

/// The most pieces of one copy: so many packets, and as many for pieces that are cut, fit in a slot.
pub const MOST_PIECES: usize = 1024;
/// The most pieces of one fill, each of which may need three packets.
pub const MOST_ZERO_PIECES: usize = 512;
/// The most bytes of one fill: a slow engine should be done with it long before the deadline.
pub const MOST_ZEROS: u64 = 64 << 20;

/// A BO that is mapped, by its place in the queue's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BoId(usize);

/// A range of a BO and where its bytes are in the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The BO.
    pub bo: BoId,
    /// Where in the BO.
    pub bo_offset: u64,
    /// Where in the chunk. A fill has no chunk and ignores this.
    pub chunk_offset: usize,
    /// How many bytes, at least one.
    pub len: u64,
}

/// A copy that is done.
#[derive(Debug)]
pub struct Finished {
    /// What the caller gave it.
    pub tag: u64,
    /// The chunk, if there was one: its bytes are readable now.
    pub chunk: Option<Chunk>,
}
