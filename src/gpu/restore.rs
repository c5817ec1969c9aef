//! Chunks to BOs.

use std::{collections::VecDeque, ops::Range, os::fd::AsFd, sync::Arc, time::Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, TryRecvError};

use super::{
    Bo, Contents, GpuError, GpuStats, Options, copies_in_flight,
    plan::{Part, Plan},
    workers::{self, Ended, LOOK_UP, Stop, Work, Workers, device},
};
use crate::{
    device::{
        Driver,
        copy::{
            BoId, CopyQueue, Direction, Finished, Limits, MOST_PIECES, MOST_ZERO_PIECES,
            MOST_ZEROS, Piece,
        },
    },
    ring::{Chunk, Ring},
};

/// A range of a GPU's contents. Ranges may come in any order, each byte once.
#[derive(Debug)]
pub enum Write {
    /// Bytes of a chunk.
    Bytes {
        /// Where in the contents.
        offset: u64,
        /// Has the bytes.
        chunk: Chunk,
        /// Which of its bytes.
        range: Range<usize>,
    },
    /// Zeros.
    Zeros {
        /// Where in the contents.
        offset: u64,
        /// How many.
        len: u64,
    },
}

/// A GPU whose contents are to be written.
#[derive(Debug)]
pub struct RestoreJob {
    /// Where to.
    pub contents: Contents,
}

/// The workers of a restore.
#[derive(Debug)]
pub struct Restore<E: std::error::Error + 'static> {
    workers: Workers<E>,
}

impl<E: std::error::Error + Send + 'static> Restore<E> {
    /// Starts a worker for each GPU; what is sent to it is written to that GPU. Dropping all of a
    /// sender's clones tells its worker that this was all, and it fails if something is missing.
    ///
    /// Whoever waits for a chunk or for room in a channel must look up now and then whether the
    /// restore [is failing](Watch::is_failing).
    pub fn start(
        driver: &Arc<dyn Driver>,
        ring: &Ring,
        jobs: Vec<RestoreJob>,
        options: Options,
    ) -> Result<(Self, Vec<Sender<Write>>), GpuError<E>> {
        let copies = copies_in_flight(ring, jobs.len())?;
        let mut senders = Vec::with_capacity(jobs.len());
        let mut work = Vec::with_capacity(jobs.len());
        for RestoreJob { contents } in jobs {
            // Chunks that wait here are a GPU's share of the ring; zeros cost nothing.
            let (sender, writes) = crossbeam_channel::bounded(copies);
            senders.push(sender);
            let (driver, ring) = (Arc::clone(driver), ring.clone());
            let gpu_id = contents.gpu_id;
            let run: Work<E> = Box::new(move |stop| {
                let limits = Limits {
                    copies_per_ring: options.copies_per_ring,
                    copies,
                    fence_deadline: options.fence_deadline,
                };
                Worker::new(&*driver, &ring, contents, limits, stop)?.run(&writes)
            });
            work.push((gpu_id, run));
        }
        let workers = Workers::start(work, options.grace)?;
        Ok((Restore { workers }, senders))
    }

    /// Tells whether it is failing, on any thread.
    pub fn watch(&self) -> Watch {
        Watch(self.workers.stop().clone())
    }

    /// Waits until everything is in the BOs, asking `check` several times a second whether to go on.
    pub fn finish(
        self,
        check: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<Vec<GpuStats>, GpuError<E>> {
        self.workers.wait(check)
    }

    /// Ends the workers: the first failure, and [`GpuError::GivenUp`] if none of them was it.
    pub fn give_up(mut self) -> GpuError<E> {
        self.workers.give_up()
    }
}

/// Tells whether a restore is failing.
#[derive(Debug, Clone)]
pub struct Watch(Stop);

impl Watch {
    /// Whether a worker has failed, or the restore was given up.
    pub fn is_failing(&self) -> bool {
        self.0.is_raised()
    }

    /// Waits for a chunk; `None` if the restore is failing.
    pub fn take(&self, ring: &Ring) -> Option<Chunk> {
        loop {
            if self.is_failing() {
                return None;
            }
            if let Some(chunk) = ring.take(LOOK_UP) {
                return Some(chunk);
            }
        }
    }

    /// Sends something to a worker, waiting for room; `None` if the restore is failing.
    pub fn send(&self, worker: &Sender<Write>, mut write: Write) -> Option<()> {
        loop {
            match worker.send_timeout(write, LOOK_UP) {
                Ok(()) => return Some(()),
                Err(SendTimeoutError::Timeout(_)) if self.is_failing() => return None,
                Err(SendTimeoutError::Timeout(back)) => write = back,
                Err(SendTimeoutError::Disconnected(_)) => return None,
            }
        }
    }
}

/// What a worker knows of a BO.
#[derive(Debug, Clone, Copy)]
struct Progress {
    mapped: Option<BoId>,
    /// Bytes that were not submitted yet.
    missing: u64,
    /// Copies in flight that write to it.
    in_flight: u32,
}

struct Worker<'a> {
    stop: &'a Stop,
    queue: CopyQueue,
    bos: Vec<Bo>,
    plan: Plan,
    /// By BO.
    progress: Vec<Progress>,
    stats: GpuStats,
    began: Instant,
    // Kept between windows so that none allocates.
    parts: Vec<Part>,
    pieces: Vec<Piece>,
    /// For each copy in flight, in order: the BOs it writes to, first and last.
    touched: VecDeque<(usize, usize)>,
}

impl<'a> Worker<'a> {
    fn new<E: std::error::Error + 'static>(
        driver: &dyn Driver,
        ring: &Ring,
        contents: Contents,
        limits: Limits,
        stop: &'a Stop,
    ) -> Result<Self, Ended<E>> {
        let gpu_id = contents.gpu_id;
        let began = Instant::now();
        let plan = workers::plan(&contents)?;
        let Contents { node, bos, .. } = contents;
        let queue = node
            .open(driver)
            .and_then(|render| CopyQueue::new(render, ring, Direction::ToDevice, limits))
            .map_err(device(gpu_id))?;
        let progress = |size| Progress { mapped: None, missing: size, in_flight: 0 };
        Ok(Worker {
            stop,
            progress: bos.iter().map(|bo| progress(bo.size)).collect(),
            touched: VecDeque::with_capacity(queue.depth()),
            queue,
            bos,
            plan,
            stats: GpuStats { gpu_id, ..GpuStats::default() },
            began,
            parts: Vec::with_capacity(MOST_PIECES),
            pieces: Vec::with_capacity(MOST_PIECES),
        })
    }

    fn run<E: std::error::Error + 'static>(
        mut self,
        writes: &Receiver<Write>,
    ) -> Result<GpuStats, Ended<E>> {
        while let Some(write) = self.next(writes)? {
            match write {
                Write::Bytes { offset, chunk, range } => self.bytes(offset, chunk, range)?,
                Write::Zeros { offset, len } => self.zeros(offset, len)?,
            }
        }
        self.finish_all()?;
        if let Some(bo) = self.progress.iter().position(|bo| bo.missing > 0) {
            let missing: u64 = self.progress.iter().map(|bo| bo.missing).sum();
            return Err(self.wrong(format!(
                "{missing} bytes of its contents are missing, the first in BO {bo}"
            )));
        }
        self.stats.bytes = self.plan.bytes();
        self.stats.elapsed = self.began.elapsed();
        Ok(self.stats)
    }

    /// The next write; `None` when there are no more. While there is none, takes care of what is in
    /// flight, so that its chunks come back.
    fn next<E: std::error::Error + 'static>(
        &mut self,
        writes: &Receiver<Write>,
    ) -> Result<Option<Write>, Ended<E>> {
        loop {
            self.stop.check()?;
            match writes.try_recv() {
                Ok(write) => return Ok(Some(write)),
                Err(TryRecvError::Disconnected) => return Ok(None),
                Err(TryRecvError::Empty) => {}
            }
            if self.finish_one()?.is_some() {
                continue;
            }
            let since = Instant::now();
            let write = writes.recv_timeout(LOOK_UP);
            self.stats.waiting_for_chunk += since.elapsed();
            match write {
                Ok(write) => return Ok(Some(write)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn bytes<E: std::error::Error + 'static>(
        &mut self,
        offset: u64,
        chunk: Chunk,
        range: Range<usize>,
    ) -> Result<(), Ended<E>> {
        if range.start > range.end || range.end > chunk.len() {
            return Err(self.wrong(format!("a chunk is said to have bytes {range:?}")));
        }
        let (mut chunk, len, mut done) = (chunk, range.len() as u64, 0);
        while done < len {
            let (at, left) = (offset.saturating_add(done), len - done);
            let taken = self.plan.parts(at, left, MOST_PIECES, &mut self.parts);
            if taken == 0 {
                return Err(self.past_the_end(at, left));
            }
            self.room()?;
            self.pieces(range.start as u64 + done)?;
            self.queue.write(chunk, &self.pieces, at).map_err(device(self.stats.gpu_id))?;
            self.submitted();
            done += taken;
            if done == len {
                break;
            }
            // More BOs than one copy has room for: the rest once this has been read.
            let Some(back) = self.finish_all()? else { break };
            chunk = back;
        }
        Ok(())
    }

    fn zeros<E: std::error::Error + 'static>(
        &mut self,
        mut offset: u64,
        mut len: u64,
    ) -> Result<(), Ended<E>> {
        while len > 0 {
            let most = len.min(MOST_ZEROS);
            let taken = self.plan.parts(offset, most, MOST_ZERO_PIECES, &mut self.parts);
            if taken == 0 {
                return Err(self.past_the_end(offset, len));
            }
            self.room()?;
            self.pieces(0)?;
            self.queue.zero(&self.pieces, offset).map_err(device(self.stats.gpu_id))?;
            self.submitted();
            offset += taken;
            len -= taken;
        }
        Ok(())
    }

    fn past_the_end<E: std::error::Error + 'static>(&self, at: u64, len: u64) -> Ended<E> {
        let end = self.plan.bytes();
        self.wrong(format!("{len} bytes at {at} are past the end of its contents at {end}"))
    }

    /// Maps the BOs of `self.parts`, and makes them pieces of a chunk from `base` on.
    fn pieces<E: std::error::Error + 'static>(&mut self, base: u64) -> Result<(), Ended<E>> {
        self.pieces.clear();
        for part in &self.parts {
            let progress = &mut self.progress[part.bo];
            let Some(missing) = progress.missing.checked_sub(part.len) else {
                let what = format!("bytes of BO {} come twice", part.bo);
                return Err(self.wrong(what));
            };
            let bo = match progress.mapped {
                Some(id) => id,
                None => {
                    let bo = &self.bos[part.bo];
                    let imported = self.queue.import(bo.dma_buf.as_fd(), bo.size);
                    imported.map_err(device(self.stats.gpu_id))?
                }
            };
            progress.mapped = Some(bo);
            progress.missing = missing;
            progress.in_flight += 1;
            self.pieces.push(Piece {
                bo,
                bo_offset: part.offset,
                // A window is not larger than a chunk; a fill has none.
                chunk_offset: usize::try_from(base + part.at).unwrap_or(usize::MAX),
                len: part.len,
            });
        }
        Ok(())
    }

    fn submitted(&mut self) {
        self.stats.copies += 1;
        let first = self.parts.first().map_or(0, |part| part.bo);
        let last = self.parts.last().map_or(0, |part| part.bo);
        self.touched.push_back((first, last));
    }

    /// Waits until one more copy can be in flight.
    fn room<E: std::error::Error + 'static>(&mut self) -> Result<(), Ended<E>> {
        while !self.queue.has_room() {
            self.finish_one()?;
        }
        Ok(())
    }

    /// Waits for all copies: the chunk of the last, if it had one.
    fn finish_all<E: std::error::Error + 'static>(&mut self) -> Result<Option<Chunk>, Ended<E>> {
        let mut last = None;
        while let Some(finished) = self.finish_one()? {
            last = finished.chunk;
        }
        Ok(last)
    }

    /// Waits for the oldest copy, if there is one.
    fn finish_one<E: std::error::Error + 'static>(&mut self) -> Result<Option<Finished>, Ended<E>> {
        let failed = device(self.stats.gpu_id);
        let since = Instant::now();
        let finished = self.queue.finish_one().map_err(failed)?;
        self.stats.waiting_for_copy += since.elapsed();
        if let (Some(_), Some((first, last))) = (&finished, self.touched.pop_front()) {
            for progress in &mut self.progress[first..=last] {
                // BOs of no bytes in between are in no copy.
                let Some(id) = progress.mapped else { continue };
                progress.in_flight = progress.in_flight.saturating_sub(1);
                if progress.missing == 0 && progress.in_flight == 0 {
                    progress.mapped = None;
                    self.queue.release(id).map_err(failed)?;
                }
            }
        }
        Ok(finished)
    }

    fn wrong<E: std::error::Error + 'static>(&self, what: String) -> Ended<E> {
        Ended::Failed(GpuError::Contents { gpu_id: self.stats.gpu_id, what })
    }
}
