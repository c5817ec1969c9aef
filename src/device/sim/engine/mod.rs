//! The SDMA engines of a GPU: a thread each, which executes the packets of indirect buffers.
//!
//! What a process calls a ring of a context is an [`Entity`]: its [jobs](Job) are executed in their
//! order. An entity that has nothing to do goes with its next job to the engine that has the
//! least, as the kernel's scheduler does it. An engine takes its jobs in the order of submission,
//! but passes over those that wait for the fences of others.
//!
//! A job whose packets make no sense, or touch memory that they may not, is cancelled (ECANCELED)
//! and its context is guilty: later submissions on it are cancelled too. (A real engine would hang
//! until the kernel resets it, with the same result, or drop the access and say so in the kernel's
//! log.)
//!
//! User queues, which processes fill themselves, have [engines of their own](UserEngine).
//!
//! # Limits
//!
//! Nothing orders the jobs of different entities but their dependencies: there is no implicit
//! synchronisation on objects. That the memory behind a userptr is still there cannot be seen from
//! inside the process that owns it: a caller that unmaps it in the middle of a copy crashes.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::errno::Errno;

use self::{execute::Engine, packets::Dialect};
use super::{
    drm::Context,
    faults::{Entry, Faults},
    fence::{Ending, Fence},
    flight::{Claim, InFlight},
    host::FileId,
    link::Link,
    log::Log,
    machine::GpuSpec,
    object::Object,
    vm::Vm,
};
use crate::abi::sdma::packet_bytes;

mod claims;
mod execute;
mod packets;
mod traffic;
mod transfer;
mod user;

pub use traffic::Copied;
use traffic::Traffic;
pub(super) use user::{Ring, SharedRanges, Step, Trouble, UserEngine};

/// How often an engine that hangs looks whether it still does.
const LOOK: Duration = Duration::from_millis(2);

/// A ring of a context, as processes call it.
#[derive(Debug, Default)]
pub(super) struct Entity {
    place: Mutex<Place>,
    pub timeline: Mutex<Timeline>,
}

/// Where an entity's jobs are. (Changed under the lock of the engines' queues only.)
#[derive(Debug, Default)]
struct Place {
    engine: usize,
    unfinished: usize,
}

/// The submissions of an entity: the number of the last, and the fences of the latest.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub last: u64,
    pub fences: VecDeque<Arc<Fence>>,
}

/// A submission.
#[derive(Debug)]
pub(super) struct Job {
    pub file: FileId,
    pub pid: u32,
    pub context: Arc<Context>,
    pub entity: Arc<Entity>,
    pub ring: u32,
    /// Its number on its ring.
    pub number: u64,
    pub vm: Arc<Mutex<Vm>>,
    /// Addresses and lengths of its indirect buffers.
    pub buffers: Vec<(u64, u64)>,
    /// What it said that it uses, ordered by address.
    pub objects: Vec<Arc<Object>>,
    pub dependencies: Vec<Arc<Fence>>,
    /// The memory of processes that it uses.
    pub claims: Vec<Claim>,
    /// Where its number is written when it is done.
    pub user_fence: Option<(Arc<Object>, u64)>,
    pub fence: Arc<Fence>,
    pub submitted: Instant,
    pub cancelled: AtomicBool,
}

impl Job {
    /// Whether an object is one of those that it said it uses.
    pub(super) fn lists(&self, object: &Arc<Object>) -> bool {
        self.objects.binary_search_by_key(&Arc::as_ptr(object), Arc::as_ptr).is_ok()
    }

    fn is_ready(&self) -> bool {
        self.dependencies.iter().all(|fence| fence.ending().is_some())
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "submission {} on ring {} of context {}", self.number, self.ring, self.context.id)
    }
}

/// The engines of a GPU.
#[derive(Debug)]
pub(super) struct Engines {
    gpu: usize,
    node: String,
    dialect: Dialect,
    link: Link,
    log: Arc<Log>,
    faults: Arc<Faults>,
    in_flight: Arc<InFlight>,
    traffic: Traffic,
    queues: Mutex<Queues>,
    changed: Condvar,
    stopping: AtomicBool,
}

#[derive(Debug)]
struct Queues {
    of: Vec<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Arc<Job>>,
    /// The jobs that are here or being executed.
    load: usize,
    executed: u64,
    thread: Option<JoinHandle<()>>,
}

impl Engines {
    pub(super) fn new(
        gpu: usize,
        spec: &GpuSpec,
        log: &Arc<Log>,
        faults: &Arc<Faults>,
        in_flight: &Arc<InFlight>,
    ) -> Arc<Self> {
        let (major, minor) = spec.profile.sdma_version;
        let queues = (0..spec.profile.sdma_engines.max(1)).map(|_| Queue::default());
        Arc::new(Engines {
            gpu,
            node: spec.render_node().display().to_string(),
            dialect: Dialect { family: spec.profile.family, most: packet_bytes(major, minor) },
            link: Link::new(spec.speed),
            log: Arc::clone(log),
            faults: Arc::clone(faults),
            in_flight: Arc::clone(in_flight),
            traffic: Traffic::default(),
            queues: Mutex::new(Queues { of: queues.collect() }),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        })
    }

    /// Queues a job; its engine's thread begins with its first job.
    pub(super) fn submit(self: &Arc<Self>, mut job: Job) -> nix::Result<()> {
        job.claims = claims::of(&job, self.dialect);
        let job = Arc::new(job);
        let mut queues = self.queues();
        let mut place = job.entity.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.unfinished == 0 {
            let least = queues.of.iter().enumerate().min_by_key(|(_, queue)| queue.load);
            place.engine = least.map_or(0, |(index, _)| index);
        }
        let index = place.engine;
        let queue = &mut queues.of[index];
        if queue.thread.is_none() {
            let engine = Engine::new(Arc::clone(self), index);
            let thread = std::thread::Builder::new().name(format!("sdma{index}.{}", self.gpu));
            let thread = thread.spawn(move || engine.run()).map_err(|_| Errno::ENOMEM)?;
            queue.thread = Some(thread);
        }
        place.unfinished += 1;
        drop(place);
        queue.load += 1;
        if let Some(claim) = self.in_flight.enter(&job) {
            let what = if claim.written { "writes" } else { "reads" };
            let (start, end) = (claim.start, claim.end);
            self.log.complain(
                job.pid,
                format!(
                    "{job} on {} {what} memory at {start:#x}..{end:#x} that another uses",
                    self.node
                ),
            );
        }
        for dependency in &job.dependencies {
            let engines = Arc::downgrade(self);
            dependency.then(move || {
                if let Some(engines) = engines.upgrade() {
                    // Whoever is about to wait has the lock: they must not miss this.
                    drop(engines.queues());
                    engines.changed.notify_all();
                }
            });
        }
        queue.jobs.push_back(job);
        drop(queues);
        self.changed.notify_all();
        Ok(())
    }

    /// Cancels the jobs of a file, and waits until none of them is at work.
    pub(super) fn cancel(&self, file: FileId) {
        let jobs = self.in_flight.of_file(file);
        for job in &jobs {
            job.cancelled.store(true, Ordering::Release);
        }
        let mut queued = Vec::new();
        for queue in &mut self.queues().of {
            let (theirs, others) = queue.jobs.drain(..).partition(|job| job.file == file);
            queue.jobs = others;
            queued.push(theirs);
        }
        for (index, jobs) in queued.into_iter().enumerate() {
            jobs.into_iter().for_each(|job| self.finish(index, job, Err(Errno::ECANCELED)));
        }
        for job in jobs {
            let _ = job.fence.wait();
        }
    }

    /// Ends the threads; what they had to do is cancelled.
    pub(super) fn stop(&self) {
        let threads: Vec<_> = {
            // Under the lock, so that no thread that is about to wait misses it.
            let mut queues = self.queues();
            self.stopping.store(true, Ordering::Release);
            queues.of.iter_mut().filter_map(|queue| queue.thread.take()).collect()
        };
        self.changed.notify_all();
        for thread in threads {
            // A thread that panicked has failed its test already.
            let _ = thread.join();
        }
    }

    /// What the engines have copied.
    pub(super) fn copied(&self) -> Copied {
        self.traffic.read()
    }

    /// How many jobs each engine has executed.
    pub(super) fn executed(&self) -> Vec<u64> {
        self.queues().of.iter().map(|queue| queue.executed).collect()
    }

    /// Whether a job's engine should give it up.
    fn is_over(&self, job: &Job) -> bool {
        job.cancelled.load(Ordering::Acquire) || self.stopping.load(Ordering::Acquire)
    }

    /// The next job of an engine; `None` when it is to end.
    fn next(&self, index: usize) -> Option<Arc<Job>> {
        let mut queues = self.queues();
        loop {
            if self.stopping.load(Ordering::Acquire) {
                let rest = std::mem::take(&mut queues.of[index].jobs);
                drop(queues);
                for job in rest {
                    self.finish(index, job, Err(Errno::ECANCELED));
                }
                return None;
            }
            if let Some(job) = queues.of[index].take_ready() {
                return Some(job);
            }
            queues = self.changed.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits while an engine hangs by plan.
    fn hang(&self, job: &Job, entry: &Entry) {
        while !entry.is_released() && !self.is_over(job) && !self.faults.vanished(self.gpu) {
            std::thread::sleep(LOOK);
        }
    }

    /// A job is done. What it used is free before its fence says so.
    fn finish(&self, index: usize, job: Arc<Job>, ending: Ending) {
        if let (Ok(()), Some((object, offset))) = (ending, &job.user_fence) {
            // (The object has a page: this was checked when the job was submitted.)
            let _ = object.fill_from(*offset, &job.number.to_le_bytes());
        }
        self.in_flight.leave(&job);
        let mut queues = self.queues();
        job.entity.place.lock().unwrap_or_else(PoisonError::into_inner).unfinished -= 1;
        queues.of[index].load -= 1;
        drop(queues);
        let fence = Arc::clone(&job.fence);
        drop(job);
        fence.signal(ending);
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// The first job that waits for nothing, not even for an earlier one of its entity.
    fn take_ready(&mut self) -> Option<Arc<Job>> {
        let ready = |(index, job): &(usize, &Arc<Job>)| {
            let first = |other: &Arc<Job>| Arc::ptr_eq(&other.entity, &job.entity);
            job.is_ready() && !self.jobs.iter().take(*index).any(first)
        };
        let (index, _) = self.jobs.iter().enumerate().find(ready)?;
        self.executed += 1;
        self.jobs.remove(index)
    }
}
