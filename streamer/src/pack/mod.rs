//! Chunks of files to shards: whoever has bytes feeds them, from any thread and in any order, and
//! they become an image, or nothing.
//!
//! ```text
//!  feeding threads                          stage threads               a thread for each shard
//!  Feed::chunk ──► zero scan, CRC ──┬──────────────────────────► ┐
//!                                   └─► compression ───────────► ├─ frames ──► transport
//!  Feed::chunk_later ─────────────────► zero scan, CRC, ... ───► ┘
//! ```
//!
//! A [`Packer`] owns the threads and the [`Destination`]; the one who has it decides how it ends,
//! with [`commit`](Packer::commit) or [`abort`](Packer::abort). Every thread that has bytes gets a
//! [`Feed`]: chunks that are warm in its cache it checksums itself, the others are left to the
//! stage threads. Each chunk goes to whichever shard is ready first.
//!
//! # What it promises
//!
//! * A file ends in the image when its end was announced and all its chunks have been sent; an
//!   image with a file that has not ended is not committed.
//! * Whatever waits for room looks up, several times a second, whether there is still a reason to
//!   wait. After a failure every feed gets [`Error::GivenUp`]; the first cause is kept for the one
//!   who has the packer, see [`Packer::explain`].
//! * Sending a chunk allocates nothing.
//!
//! # Memory
//!
//! What the destination needs for itself, the ring, a buffer of a chunk's size for each stage
//! thread that compresses, and the indexes of the shards, see [`Memory`]. Everything else is
//! bounded by the rings that the chunks are of: whoever has no chunk waits for one.
//!
//! This module knows nothing of CRIU, of devices, or of where the bytes come from.

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use vramstream::stage::{Compression, lz4_bound};

use crate::{
    absorb::ShardStat,
    error::{Error, Result},
    fault::Fault,
    format::{ImageEnd, ImageId},
    progress::Progress,
    transport::Destination,
};

mod feed;
mod frames;
mod job;
mod memory;
mod queue;
mod shared;
mod stages;
#[cfg(test)]
mod tests;
mod writers;

pub use feed::{Feed, FileHandle};
pub use memory::Memory;

use queue::Queue;
use shared::Shared;
use stages::Stages;
use writers::{Finishing, Outcome, Writers};

/// How often a wait looks up whether there is still a reason to wait.
const WAIT: Duration = Duration::from_millis(100);

/// How to pack.
#[derive(Debug)]
pub struct Options {
    /// What to try on chunks.
    pub compression: Compression,
    /// What it may take.
    pub memory: Memory,
    /// Who computes checksums.
    pub stages: StageThreads,
}

/// What the stage threads are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageThreads {
    /// Compression only, so without it there are none: for feeds that checksum what they read.
    Compress,
    /// Checksums as well: for feeds that use [`Feed::chunk_later`].
    Checksum,
}

/// What a whole image consists of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    /// Files that count.
    pub files: u32,
    /// Sum of their sizes.
    pub raw_bytes: u64,
    /// Numbers of files that do not count, since another one of the same name does.
    pub superseded: Vec<u32>,
}

/// See the [module](self).
pub struct Packer {
    destination: Box<dyn Destination>,
    shared: Arc<Shared>,
    stages: Stages,
    writers: Option<Writers>,
    created_unix_ms: u64,
}

impl Packer {
    /// Opens the destination's shards and starts the threads. `check` is asked on any thread, while
    /// it waits, whether to go on; its error stops everything.
    pub fn start(
        mut destination: Box<dyn Destination>,
        options: Options,
        check: impl Fn() -> Result<()> + Send + Sync + 'static,
        progress: &Progress,
    ) -> Result<Self> {
        let (ring, index_bytes) = options.memory.divide(destination.as_ref())?;
        let image = ImageId::random().map_err(Error::io(|| "read /dev/urandom"))?;
        let shards = destination.open(image)?;
        let (frames, frames_out) = Queue::bounded(2 * ring.chunks());
        let (jobs, jobs_out) = Queue::bounded(ring.chunks());
        let stages = match (options.stages, options.compression) {
            (StageThreads::Compress, Compression::None) => 0,
            // Without buffers, more threads than chunks would have nothing to do.
            (StageThreads::Checksum, Compression::None) => cores().min(ring.chunks()),
            // Together their buffers take less than the ring does.
            _ => cores().min(ring.chunks() / 4).max(1),
        };
        let buffer = match options.compression {
            Compression::None => 0,
            _ => lz4_bound(ring.chunk_bytes()),
        };
        let shared = Arc::new(Shared {
            fault: Arc::new(Fault::new()?),
            check: Box::new(check),
            ring,
            compression: options.compression,
            has_stages: stages > 0,
            frames,
            jobs,
            unended: AtomicUsize::new(0),
        });
        let writers =
            Writers::start(image, shards, &frames_out, &shared.fault, index_bytes, progress)?;
        let mut packer = Packer {
            destination,
            shared,
            stages: Stages::default(),
            writers: Some(writers),
            created_unix_ms: unix_ms(),
        };
        for _ in 0..stages {
            packer.stages.start(&jobs_out, &frames_out, &packer.shared, buffer)?;
        }
        Ok(packer)
    }

    /// A way in, for one thread.
    pub fn feed(&self) -> Feed {
        Feed::new(&self.shared)
    }

    /// A descriptor that becomes readable when something has failed.
    pub fn alarm(&self) -> BorrowedFd<'_> {
        self.shared.fault.alarm()
    }

    /// Whether everything is well, from the feeds to the destination. Asked when the alarm rings
    /// and about once a second.
    pub fn health(&mut self) -> Result<()> {
        self.shared.fault.check()?;
        self.destination.health()
    }

    /// All files have ended: makes the image safe and publishes it. What went to each shard.
    pub fn commit(&mut self, totals: &Totals) -> Result<Vec<ShardStat>> {
        let Packer { destination, shared, stages, .. } = self;
        let mut check = || {
            shared.fault.check()?;
            (shared.check)()?;
            destination.health()
        };
        // These first: what they hold still goes to the shards.
        shared.jobs.close(&mut check)?;
        stages.finish(&mut check)?;
        shared.fault.check()?;
        shared.check_ended()?;
        let Some(writers) = self.writers.take() else { return Ok(Vec::new()) };
        let end = ImageEnd {
            files: totals.files,
            raw_bytes: totals.raw_bytes,
            superseded: totals.superseded.clone(),
            created_unix_ms: self.created_unix_ms,
            writer: crate::WRITER.to_owned(),
            shard_chunks: 0,
            shard_stored_bytes: 0,
        };
        let waiting = writers.finish(Outcome::Complete(end));
        let stats = shared.frames.close(&mut check).and_then(|()| {
            // A feed that is not done yet may have begun another.
            shared.check_ended()?;
            loop {
                match waiting.poll(WAIT)? {
                    Some(stats) => break Ok(stats),
                    None => check()?,
                }
            }
        });
        let stats = stats.inspect_err(|_| {
            // So that no shard says any more that the image is whole.
            shared.fault.raise(Error::DumpIncomplete("the image was given up".into()));
        })?;
        shared.fault.check()?;
        destination.commit(&mut || (shared.check)())?;
        Ok(stats)
    }

    /// Publishes nothing. Feeds that are still there get errors from now on.
    pub fn abort(&mut self, reason: &str) {
        if let Some(finishing) = self.stop(reason) {
            finishing.wait_briefly();
        }
        self.destination.abort(reason);
    }

    /// The cause behind an error of a feed or of the packer.
    pub fn explain(&mut self, error: Error) -> Error {
        let error = match error {
            Error::GivenUp => self.shared.fault.check().err().unwrap_or(Error::GivenUp),
            error => error,
        };
        self.destination.explain(error)
    }

    /// Ends all threads, as soon as they can be ended.
    fn stop(&mut self, reason: &str) -> Option<Finishing> {
        let writers = self.writers.take();
        let finishing = writers.map(|writers| writers.finish(Outcome::Abort(reason.to_owned())));
        // After this nobody waits for room any more, and what is in the queues is thrown away.
        self.shared.fault.raise(Error::DumpIncomplete(reason.to_owned()));
        self.shared.jobs.close_soon();
        self.shared.frames.close_soon();
        finishing
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        // Nothing is left to do after a commit or an abort.
        drop(self.stop("the image was given up"));
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn unix_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}
