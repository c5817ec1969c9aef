//! The contents of GPUs to chunks and back: one worker per GPU, several copies in flight.
//!
//! ```text
//!  dump     BOs ──SDMA──► chunk ──► Drain (stages, shards)            one worker per GPU
//!  restore  BOs ◄──SDMA── chunk ◄── Write, through a bounded channel
//! ```
//!
//! What is copied is a GPU's *contents*: its BOs one after the other, in the order of the image,
//! without anything between them. A chunk is a window of that, so small BOs share chunks, and ten
//! thousand BOs of a page are ten copies. A dump reads ahead, across BOs, as far as the ring goes;
//! a restore takes its windows in any order.
//!
//! Where a byte is: in its BO until the worker submits the window that it is in; then in flight,
//! owned by the worker's [`CopyQueue`](crate::device::copy::CopyQueue); after the fence in a chunk
//! that the worker owns, at once given to the [`Drain`]; and the chunk comes back to the ring when
//! whoever took it drops it.
//!
//! # Failures
//!
//! The first failure ends all workers, and is what the caller gets; those that follow from it are
//! dropped. Workers release what they have on the device on every path. One that is stuck in a call
//! (a hung driver) is left behind after a while rather than waited for.
//!
//! This module does not know what the contents are for, nor where they go.

use std::{os::fd::OwnedFd, path::PathBuf, time::Duration};

use crate::{
    device::{DeviceError, Driver, RenderNode},
    ring::Ring,
};

mod by_gpu;
mod dump;
mod freeze;
mod plan;
mod restore;
#[cfg(test)]
mod tests;
mod turns;
mod workers;

pub use by_gpu::NoWay;
pub use dump::{Drain, DumpJob, dump};
pub use freeze::Paused;
pub use plan::MOST_BOS;
pub use restore::{Restore, RestoreJob, Watch, Write};

/// A BO with contents.
#[derive(Debug)]
pub struct Bo {
    /// Its size in bytes.
    pub size: u64,
    /// Where they are.
    pub dma_buf: OwnedFd,
}

/// A render node to copy through. Its GPU address space must be empty.
#[derive(Debug)]
pub enum Render {
    /// Is opened where it is needed.
    At(PathBuf),
    /// Was opened elsewhere, perhaps by another process, and nobody else uses it.
    Open {
        /// What it is called there, for messages.
        path: PathBuf,
        /// The open file.
        file: OwnedFd,
    },
}

impl Render {
    fn open(self, driver: &dyn Driver) -> Result<RenderNode, DeviceError> {
        match self {
            Render::At(path) => RenderNode::open(driver, &path),
            Render::Open { path, file } => RenderNode::adopt(driver, &path, file),
        }
    }
}

impl From<PathBuf> for Render {
    fn from(path: PathBuf) -> Self {
        Render::At(path)
    }
}

/// What a GPU has.
#[derive(Debug)]
pub struct Contents {
    /// What the topology calls it, for messages and statistics.
    pub gpu_id: u32,
    /// Its render node.
    pub node: Render,
    /// Its BOs, in the order of the image.
    pub bos: Vec<Bo>,
}

impl Contents {
    /// The sum of the BOs' sizes; `None` if that is more than 64 bits, which no GPU has.
    pub fn bytes(&self) -> Option<u64> {
        self.bos.iter().try_fold(0_u64, |sum, bo| sum.checked_add(bo.size))
    }
}

/// How to copy.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// How long a copy may take before the engine counts as hung.
    pub fence_deadline: Duration,
    /// How long workers may take to end after one has failed.
    pub grace: Duration,
    /// Copies in flight on each DMA ring.
    pub copies_per_ring: usize,
    /// A dump has at most so many bytes in flight, on all its GPUs together (but a page at least),
    /// where that is less than what the ring would allow.
    pub most_in_flight: Option<u64>,
}

impl Default for Options {
    /// The kernel itself gives up on an SDMA job after 10 s.
    fn default() -> Self {
        Options {
            fence_deadline: Duration::from_secs(10),
            grace: Duration::from_secs(3),
            copies_per_ring: 2,
            most_in_flight: None,
        }
    }
}

/// Why contents were not copied. `E` is what the other end of the chunks fails with.
#[derive(Debug, thiserror::Error)]
pub enum GpuError<E: std::error::Error + 'static> {
    /// A device failed.
    #[error("GPU {gpu_id}")]
    Device {
        /// Which GPU.
        gpu_id: u32,
        /// What happened.
        #[source]
        source: DeviceError,
    },
    /// Whoever takes or gives the chunks failed.
    #[error(transparent)]
    Other(E),
    /// The contents are not what the BOs have room for.
    #[error("GPU {gpu_id}: {what}")]
    Contents {
        /// Which GPU.
        gpu_id: u32,
        /// What is wrong.
        what: String,
    },
    /// The system refused a thread.
    #[error("cannot start a worker for GPU {gpu_id}: raise the limit on processes")]
    Thread {
        /// Which GPU.
        gpu_id: u32,
        /// What it answered.
        #[source]
        source: std::io::Error,
    },
    /// A worker panicked: a bug.
    #[error("internal error: the worker of GPU {gpu_id} panicked; please report this")]
    Panicked {
        /// Which GPU.
        gpu_id: u32,
    },
    /// Copies that never ended have cost the ring its last chunk.
    #[error(
        "no memory is left to copy through: copies that never ended may still write to all of it; start the program again"
    )]
    NoChunks,
    /// The caller gave up, and no GPU was the cause.
    #[error("given up")]
    GivenUp,
    /// A worker does not come back from a call to its device.
    #[error("the worker of GPU {gpu_id} does not come back from its device: the driver hangs")]
    Stuck {
        /// Which GPU.
        gpu_id: u32,
    },
}

/// What a worker did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuStats {
    /// Which GPU.
    pub gpu_id: u32,
    /// Bytes of contents.
    pub bytes: u64,
    /// Copies that were submitted.
    pub copies: u64,
    /// From its first call to its last.
    pub elapsed: Duration,
    /// Of that, waiting for a chunk to come back: what follows is slower than the GPU.
    pub waiting_for_chunk: Duration,
    /// Waiting for copies: the GPU is slower than what follows.
    pub waiting_for_copy: Duration,
    /// Handing chunks over.
    pub handing_over: Duration,
}

/// How many copies each of so many GPUs may have in flight, so that half of the ring can be on its
/// way elsewhere. At least one: where there are fewer chunks than GPUs, these take turns. An error
/// where there is none to take turns at.
fn copies_in_flight<E: std::error::Error>(ring: &Ring, gpus: usize) -> Result<usize, GpuError<E>> {
    match ring.chunks().saturating_sub(ring.condemned()) {
        0 => Err(GpuError::NoChunks),
        chunks => Ok((chunks / gpus.max(1) / 2).max(1)),
    }
}

#[cfg(test)]
mod unit_tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn gpus_share_one_half_of_what_is_left_of_a_ring() {
        let ring = Ring::new(4096, 9).unwrap();
        let copies = |gpus| copies_in_flight::<Infallible>(&ring, gpus).ok();
        assert_eq!([0, 1, 2, 3, 64].map(copies), [4, 4, 2, 1, 1].map(Some));
        (0..5).for_each(|_| ring.try_take().unwrap().condemn());
        assert_eq!([1, 2].map(copies), [2, 1].map(Some));
        (0..4).for_each(|_| ring.try_take().unwrap().condemn());
        assert_eq!(copies(1), None);
    }
}
