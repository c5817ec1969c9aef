//! BOs to chunks.

use std::{
    collections::VecDeque,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Bo, Contents, GpuError, GpuStats, Options, copies_in_flight,
    plan::{Part, Plan},
    turns::{Turn, Turns},
    workers::{self, Ended, LOOK_UP, Stop, Work, Workers, device},
};
use crate::{
    device::{
        Driver,
        copy::{BoId, CopyQueue, Direction, Limits, MOST_PIECES, Piece},
    },
    ring::{Chunk, Ring},
};

/// Takes the contents of one GPU, on its worker's thread, in order.
pub trait Drain: Send {
    /// Why it cannot.
    type Error: std::error::Error + Send + 'static;

    /// The bytes from `offset` of the contents: the first `len` of the chunk. Waits while there is
    /// no room, but not for ever: what it waits for may have failed.
    fn chunk(&mut self, offset: u64, chunk: Chunk, len: usize) -> Result<(), Self::Error>;

    /// All of it was given.
    fn end(&mut self, bytes: u64) -> Result<(), Self::Error>;
}

/// A GPU, and who takes its contents.
#[derive(Debug)]
pub struct DumpJob<D> {
    /// What to copy.
    pub contents: Contents,
    /// Where to.
    pub drain: D,
}

/// Copies the contents of all GPUs at the same time, through chunks of `ring`. `check` is asked
/// several times a second whether to go on.
pub fn dump<D: Drain + 'static>(
    driver: &Arc<dyn Driver>,
    ring: &Ring,
    jobs: Vec<DumpJob<D>>,
    options: Options,
    check: &mut dyn FnMut() -> Result<(), D::Error>,
) -> Result<Vec<GpuStats>, GpuError<D::Error>> {
    let copies = copies_in_flight(ring, jobs.len())?;
    let turns = Turns::new(ring.chunk_bytes(), options.most_in_flight);
    let work = jobs.into_iter().map(|DumpJob { contents, drain }| {
        let (driver, ring, turns) = (Arc::clone(driver), ring.clone(), turns.clone());
        let gpu_id = contents.gpu_id;
        let work: Work<D::Error> = Box::new(move |stop| {
            let limits = Limits {
                copies_per_ring: options.copies_per_ring,
                copies,
                fence_deadline: options.fence_deadline,
            };
            Worker::new(&*driver, (ring, turns), contents, drain, limits, stop)?.run()
        });
        (gpu_id, work)
    });
    Workers::start(work.collect(), options.grace)?.wait(check)
}

struct Worker<'a, D> {
    stop: &'a Stop,
    queue: CopyQueue,
    ring: Ring,
    turns: Turns,
    bos: Vec<Bo>,
    plan: Plan,
    drain: D,
    stats: GpuStats,
    began: Instant,
    /// How far windows were submitted.
    submitted: u64,
    /// BOs that are mapped now: what was submitted last begins or ends in them.
    mapped: Vec<(usize, BoId)>,
    // Kept between windows so that none allocates.
    parts: Vec<Part>,
    pieces: Vec<Piece>,
    /// For each window in flight, in order: where it begins and ends, and its turn.
    windows: VecDeque<(u64, u64, Turn)>,
}

impl<'a, D: Drain> Worker<'a, D> {
    fn new(
        driver: &dyn Driver,
        (ring, turns): (Ring, Turns),
        contents: Contents,
        drain: D,
        limits: Limits,
        stop: &'a Stop,
    ) -> Result<Self, Ended<D::Error>> {
        let gpu_id = contents.gpu_id;
        let began = Instant::now();
        let plan = workers::plan(&contents)?;
        let Contents { node, bos, .. } = contents;
        let queue = node
            .open(driver)
            .and_then(|render| CopyQueue::new(render, &ring, Direction::ToHost, limits))
            .map_err(device(gpu_id))?;
        let depth = queue.depth();
        Ok(Worker {
            stop,
            queue,
            ring,
            turns,
            bos,
            plan,
            drain,
            stats: GpuStats { gpu_id, ..GpuStats::default() },
            began,
            submitted: 0,
            mapped: Vec::with_capacity(MOST_PIECES + 1),
            parts: Vec::with_capacity(MOST_PIECES),
            pieces: Vec::with_capacity(MOST_PIECES),
            windows: VecDeque::with_capacity(depth),
        })
    }

    fn run(mut self) -> Result<GpuStats, Ended<D::Error>> {
        let bytes = self.plan.bytes();
        loop {
            self.stop.check()?;
            while self.submitted < bytes && self.queue.has_room() {
                let Some((chunk, turn)) = self.chunk()? else { break };
                self.submit(chunk, turn)?;
            }
            if !self.finish_one()? {
                break;
            }
        }
        let other = |error| Ended::Failed(GpuError::Other(error));
        self.drain.end(bytes).map_err(other)?;
        self.stats.bytes = bytes;
        self.stats.elapsed = self.began.elapsed();
        Ok(self.stats)
    }

    /// A chunk to copy into, and a turn. Waits for them only when there is nothing else to wait for.
    fn chunk(&mut self) -> Result<Option<(Chunk, Turn)>, Ended<D::Error>> {
        if let Some(turn) = self.turns.take(Duration::ZERO)
            && let Some(chunk) = self.ring.try_take()
        {
            return Ok(Some((chunk, turn)));
        }
        if self.queue.in_flight() > 0 {
            return Ok(None);
        }
        let since = Instant::now();
        let turn = loop {
            self.stop.check()?;
            if let Some(turn) = self.turns.take(LOOK_UP) {
                break turn;
            }
        };
        // Those who have chunks wait for no turn.
        let chunk = self.stop.take(&self.ring)?;
        self.stats.waiting_for_chunk += since.elapsed();
        Ok(Some((chunk, turn)))
    }

    /// Submits the next window.
    fn submit(&mut self, chunk: Chunk, turn: Turn) -> Result<(), Ended<D::Error>> {
        let failed = device(self.stats.gpu_id);
        let start = self.submitted;
        let len = self.plan.parts(start, self.turns.window_bytes(), MOST_PIECES, &mut self.parts);
        self.pieces.clear();
        for part in &self.parts {
            let bo = match self.mapped.last() {
                Some(&(bo, id)) if bo == part.bo => id,
                _ => {
                    let bo = &self.bos[part.bo];
                    let id = self.queue.import(bo.dma_buf.as_fd(), bo.size).map_err(failed)?;
                    self.mapped.push((part.bo, id));
                    id
                }
            };
            self.pieces.push(Piece {
                bo,
                bo_offset: part.offset,
                // A window is not larger than a chunk.
                chunk_offset: usize::try_from(part.at).unwrap_or(usize::MAX),
                len: part.len,
            });
        }
        self.queue.read(chunk, &self.pieces, start).map_err(failed)?;
        self.windows.push_back((start, start + len, turn));
        self.submitted = start + len;
        self.stats.copies += 1;
        Ok(())
    }

    /// Waits for the oldest window and hands it over; `false` if there is none.
    fn finish_one(&mut self) -> Result<bool, Ended<D::Error>> {
        let since = Instant::now();
        let finished = self.queue.finish_one().map_err(device(self.stats.gpu_id))?;
        self.stats.waiting_for_copy += since.elapsed();
        let (Some(finished), Some((start, end, turn))) = (finished, self.windows.pop_front())
        else {
            return Ok(false);
        };
        drop(turn);
        self.release_up_to(end)?;
        if let Some(chunk) = finished.chunk {
            let since = Instant::now();
            // A window is not larger than a chunk.
            let len = usize::try_from(end - start).unwrap_or(usize::MAX);
            let taken = self.drain.chunk(start, chunk, len);
            self.stats.handing_over += since.elapsed();
            taken.map_err(|error| Ended::Failed(GpuError::Other(error)))?;
        }
        Ok(true)
    }

    /// Unmaps the BOs that end at or before a place in the contents.
    fn release_up_to(&mut self, end: u64) -> Result<(), Ended<D::Error>> {
        let done = self.mapped.iter().take_while(|(bo, _)| self.plan.end(*bo) <= end).count();
        for (_, id) in self.mapped.drain(..done) {
            self.queue.release(id).map_err(device(self.stats.gpu_id))?;
        }
        Ok(())
    }
}
