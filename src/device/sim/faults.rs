//! Faults by plan: which call goes wrong, and how.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use nix::errno::Errno;
//! # use vramstream::device::sim::{Fault, Machine, Profile, SimHost};
//! # let host = SimHost::new(Machine::new(&Profile::gfx90a(), 2))?;
//! host.plan(Fault::call("GEM_VA").nth(3).answers(Errno::EIO));
//! host.plan(Fault::call("open").on_gpu(1).always().answers(Errno::ENOMEM));
//! let slow = host.plan(Fault::call("CS").always().takes(Duration::from_millis(1)));
//! let hang = host.plan(Fault::engine_hangs(0));
//! hang.release();
//! # Ok::<(), Errno>(())
//! ```
//!
//! A fault comes before the handler: a call that was answered this way has done nothing.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nix::errno::Errno;

use super::names;

/// What is to go wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    what: What,
    pid: Option<u32>,
    gpu: Option<usize>,
    /// Which of the matching events, counted from 1.
    first: u64,
    last: u64,
    effect: Effect,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Call(String),
    EngineHangs,
    FenceNeverSignals,
    VramFull,
    Vanished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Answer(Errno),
    Take(Duration),
    Block,
}

impl Fault {
    /// A call: an ioctl by its name in the headers without the prefix of its family ("GEM_VA",
    /// "CRIU_OP"), or "open" or "mmap". Unless told otherwise, the first one, answered with EIO.
    pub fn call(name: &str) -> Self {
        Fault::new(What::Call(name.to_owned()), None)
    }

    /// An engine of a GPU takes a submission and never does anything with it. Unless told
    /// otherwise, the first.
    pub fn engine_hangs(gpu: usize) -> Self {
        Fault::new(What::EngineHangs, Some(gpu))
    }

    /// An engine of a GPU does what a submission says, and never says that it has. Unless told
    /// otherwise, with the first.
    pub fn fence_never_signals(gpu: usize) -> Self {
        Fault::new(What::FenceNeverSignals, Some(gpu))
    }

    /// The VRAM of a GPU is full.
    pub fn vram_full(gpu: usize) -> Self {
        Fault::new(What::VramFull, Some(gpu)).always()
    }

    /// A GPU is gone: ENODEV to all calls on its render node and to those on `/dev/kfd` whose
    /// argument names it, ECANCELED to its submissions.
    pub fn vanished(gpu: usize) -> Self {
        Fault::new(What::Vanished, Some(gpu)).always()
    }

    fn new(what: What, gpu: Option<usize>) -> Self {
        let effect = Effect::Answer(Errno::EIO);
        Fault { what, pid: None, gpu, first: 1, last: 1, effect }
    }

    /// Only the n-th, counted from 1, from now on.
    pub fn nth(self, n: u64) -> Self {
        Fault { first: n, last: n, ..self }
    }

    /// The first `n`.
    pub fn times(self, n: u64) -> Self {
        Fault { first: 1, last: n, ..self }
    }

    /// Each one.
    pub fn always(self) -> Self {
        Fault { first: 1, last: u64::MAX, ..self }
    }

    /// Only of this process.
    pub fn on(self, pid: u32) -> Self {
        Fault { pid: Some(pid), ..self }
    }

    /// Only on the render node of this GPU, by its place in the machine, and in those calls on
    /// `/dev/kfd` whose argument names it.
    pub fn on_gpu(self, gpu: usize) -> Self {
        Fault { gpu: Some(gpu), ..self }
    }

    /// The call does nothing and answers this.
    pub fn answers(self, errno: Errno) -> Self {
        Fault { effect: Effect::Answer(errno), ..self }
    }

    /// The call takes so long, and then does what it does.
    pub fn takes(self, time: Duration) -> Self {
        Fault { effect: Effect::Take(time), ..self }
    }

    /// The call blocks until the fault is released, and then does what it does.
    pub fn blocks(self) -> Self {
        Fault { effect: Effect::Block, ..self }
    }

    fn concerns(&self, pid: Option<u32>, gpu: Option<usize>) -> bool {
        let same = |mine: Option<u32>| mine.is_none() || mine == pid;
        same(self.pid) && (self.gpu.is_none() || self.gpu == gpu)
    }
}

/// A fault that was planned. It stays when this is dropped.
#[derive(Debug, Clone)]
pub struct Planned {
    entry: Arc<Entry>,
    faults: Arc<Faults>,
}

impl Planned {
    /// It is over: what it blocks goes on, and it strikes no more.
    pub fn release(&self) {
        let mut entries = self.faults.entries();
        entries.retain(|entry| !Arc::ptr_eq(entry, &self.entry));
        self.entry.released.store(true, Ordering::Release);
        drop(entries);
        self.faults.changed.notify_all();
    }

    /// How often it has struck.
    pub fn hits(&self) -> u64 {
        self.entry.hits.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    fault: Fault,
    seen: AtomicU64,
    hits: AtomicU64,
    released: AtomicBool,
}

impl Entry {
    /// Whether this event is one that the fault is about.
    fn strikes(&self) -> bool {
        let number = self.seen.fetch_add(1, Ordering::AcqRel) + 1;
        let strikes = (self.fault.first..=self.fault.last).contains(&number);
        if strikes {
            self.hits.fetch_add(1, Ordering::AcqRel);
        }
        strikes
    }

    pub(super) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }
}

/// The plan of a machine, and how often each request was called.
#[derive(Debug, Default)]
pub(super) struct Faults {
    entries: Mutex<Vec<Arc<Entry>>>,
    changed: Condvar,
    calls: Mutex<HashMap<&'static str, u64>>,
}

impl Faults {
    /// Adds a fault, and says whether there is a call of its name.
    pub(super) fn plan(self: &Arc<Self>, fault: Fault) -> (Planned, bool) {
        let known = match &fault.what {
            What::Call(name) => names::exists(name),
            _ => true,
        };
        let entry = Arc::new(Entry {
            fault,
            seen: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            released: AtomicBool::new(false),
        });
        self.entries().push(Arc::clone(&entry));
        (Planned { entry, faults: Arc::clone(self) }, known)
    }

    /// Has its say before a call.
    pub(super) fn before(
        &self,
        name: &'static str,
        pid: u32,
        gpu: Option<usize>,
    ) -> nix::Result<()> {
        *self.calls.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
        if gpu.is_some_and(|gpu| self.vanished(gpu)) {
            return Err(Errno::ENODEV);
        }
        for entry in self.matching(|what| matches!(what, What::Call(call) if call == name)) {
            if !entry.fault.concerns(Some(pid), gpu) || !entry.strikes() {
                continue;
            }
            match entry.fault.effect {
                Effect::Answer(errno) => return Err(errno),
                Effect::Take(time) => self.block(&entry, Some(time)),
                Effect::Block => self.block(&entry, None),
            }
        }
        Ok(())
    }

    /// How often a request was called.
    pub(super) fn calls(&self, name: &str) -> u64 {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.get(name).copied().unwrap_or(0)
    }

    /// How often each request was called.
    pub(super) fn all_calls(&self) -> BTreeMap<&'static str, u64> {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().map(|(&name, &times)| (name, times)).collect()
    }

    /// What keeps an engine from a submission that it has just taken.
    pub(super) fn hang(&self, gpu: usize, pid: u32) -> Option<Arc<Entry>> {
        self.strike(gpu, pid, &What::EngineHangs)
    }

    /// What keeps a submission that has been executed from being done.
    pub(super) fn lost_fence(&self, gpu: usize, pid: u32) -> Option<Arc<Entry>> {
        self.strike(gpu, pid, &What::FenceNeverSignals)
    }

    /// Whether engines of a GPU hang by plan, so that nobody is to blame for what is not done.
    pub(super) fn may_hang(&self, gpu: usize) -> bool {
        let hangs = |what: &What| matches!(what, What::EngineHangs | What::FenceNeverSignals);
        let struck = |entry: &Arc<Entry>| {
            entry.fault.gpu == Some(gpu) && entry.hits.load(Ordering::Acquire) > 0
        };
        self.vanished(gpu) || self.matching(hangs).iter().any(struck)
    }

    pub(super) fn vram_is_full(&self, gpu: usize) -> bool {
        self.strike(gpu, 0, &What::VramFull).is_some()
    }

    pub(super) fn vanished(&self, gpu: usize) -> bool {
        self.strike(gpu, 0, &What::Vanished).is_some()
    }

    fn strike(&self, gpu: usize, pid: u32, of: &What) -> Option<Arc<Entry>> {
        let entries = self.matching(|what| what == of);
        let pid = (pid != 0).then_some(pid);
        entries.into_iter().find(|entry| entry.fault.concerns(pid, Some(gpu)) && entry.strikes())
    }

    fn matching(&self, what: impl Fn(&What) -> bool) -> Vec<Arc<Entry>> {
        // (Nothing is allocated where nothing is planned.)
        self.entries().iter().filter(|entry| what(&entry.fault.what)).cloned().collect()
    }

    fn block(&self, entry: &Entry, time: Option<Duration>) {
        let until = time.and_then(|time| Instant::now().checked_add(time));
        let mut entries = self.entries();
        while !entry.is_released() {
            entries = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(entries).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return,
                Some(left) => {
                    let waited = self.changed.wait_timeout(entries, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(fault: Fault) -> (Arc<Faults>, Planned) {
        let faults = Arc::new(Faults::default());
        let (planned, known) = faults.plan(fault);
        assert!(known);
        (faults, planned)
    }

    #[test]
    fn the_third_call_and_no_other() {
        let (faults, planned) = plan(Fault::call("CS").nth(3).answers(Errno::EBUSY));
        let answers: Vec<_> = (0..4).map(|_| faults.before("CS", 1, None)).collect();
        assert_eq!(answers, [Ok(()), Ok(()), Err(Errno::EBUSY), Ok(())]);
        assert_eq!(faults.before("CTX", 1, None), Ok(()));
        assert_eq!((planned.hits(), faults.calls("CS"), faults.calls("CTX")), (1, 4, 1));
    }

    #[test]
    fn only_this_process_on_this_gpu_until_released() {
        let fault = Fault::call("open").on(7).on_gpu(1).always();
        let (faults, planned) = plan(fault);
        assert_eq!(faults.before("open", 7, Some(0)), Ok(()));
        assert_eq!(faults.before("open", 8, Some(1)), Ok(()));
        assert_eq!(faults.before("open", 7, Some(1)), Err(Errno::EIO));
        planned.release();
        assert_eq!(faults.before("open", 7, Some(1)), Ok(()));
    }

    #[test]
    fn a_blocked_call_goes_on_when_released() {
        let (faults, planned) = plan(Fault::call("CS").blocks());
        std::thread::scope(|scope| {
            let call = scope.spawn(|| faults.before("CS", 1, None));
            while planned.hits() == 0 {
                std::thread::yield_now();
            }
            assert!(!call.is_finished());
            planned.release();
            assert_eq!(call.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_name_that_is_none_is_noticed() {
        assert!(!Arc::new(Faults::default()).plan(Fault::call("GEM_AV")).1);
    }
}
