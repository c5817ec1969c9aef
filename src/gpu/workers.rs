//! A thread for each GPU, and the first thing that goes wrong on any of them.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::{Contents, GpuError, GpuStats, plan::Plan};
use crate::{
    device::DeviceError,
    ring::{Chunk, Ring},
};

/// How often a wait looks up whether there is still a reason to wait.
pub(super) const LOOK_UP: Duration = Duration::from_millis(50);

/// Another worker has failed, or the caller has given up: there is nothing more to say.
#[derive(Debug)]
pub(super) struct Stopped;

/// Why a worker ends early.
#[derive(Debug)]
pub(super) enum Ended<E: std::error::Error + 'static> {
    /// It failed.
    Failed(GpuError<E>),
    /// Something else did.
    Stopped,
}

impl<E: std::error::Error + 'static> From<Stopped> for Ended<E> {
    fn from(Stopped: Stopped) -> Self {
        Ended::Stopped
    }
}

/// What all workers share: whether to go on.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(super) fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// An error once it is raised.
    pub(super) fn check(&self) -> Result<(), Stopped> {
        if self.is_raised() { Err(Stopped) } else { Ok(()) }
    }

    /// A chunk, waiting for one as long as nothing has failed.
    pub(super) fn take(&self, ring: &Ring) -> Result<Chunk, Stopped> {
        loop {
            self.check()?;
            if let Some(chunk) = ring.take(LOOK_UP) {
                return Ok(chunk);
            }
        }
    }
}

/// Whose it is, by its place in the caller's list.
type Answer = (usize, Result<GpuStats, Outcome>);

/// What a thread says in the end, when it has not finished. The failure itself is kept elsewhere,
/// so that the first one wins.
#[derive(Debug)]
struct Outcome;

/// The threads.
#[derive(Debug)]
pub(super) struct Workers<E: std::error::Error + 'static> {
    stop: Stop,
    first: Arc<Mutex<Option<GpuError<E>>>>,
    answers: Receiver<Answer>,
    /// Those that have not ended.
    running: Vec<Running>,
    stats: Vec<(usize, GpuStats)>,
    grace: Duration,
}

/// A thread that has not ended.
#[derive(Debug)]
struct Running {
    place: usize,
    gpu_id: u32,
    thread: JoinHandle<()>,
}

/// What a thread does.
pub(super) type Work<E> = Box<dyn FnOnce(&Stop) -> Result<GpuStats, Ended<E>> + Send>;

impl<E: std::error::Error + Send + 'static> Workers<E> {
    /// Starts a thread for each piece of work, which is named by its GPU.
    pub(super) fn start(work: Vec<(u32, Work<E>)>, grace: Duration) -> Result<Self, GpuError<E>> {
        let (send, answers) = crossbeam_channel::bounded(work.len());
        let mut workers = Workers {
            stop: Stop::default(),
            first: Arc::default(),
            answers,
            running: Vec::with_capacity(work.len()),
            stats: Vec::with_capacity(work.len()),
            grace,
        };
        for (place, (gpu_id, work)) in work.into_iter().enumerate() {
            let (stop, first, send) =
                (workers.stop.clone(), Arc::clone(&workers.first), send.clone());
            let thread = move || {
                let mut guard = Guard { gpu_id, stop: &stop, first: &first, unwinding: true };
                let answer = work(&stop);
                guard.unwinding = false;
                let answer = answer.map_err(|ended| {
                    if let Ended::Failed(error) = ended {
                        raise(&stop, &first, error);
                    }
                    Outcome
                });
                drop(guard);
                let _ = send.send((place, answer));
            };
            let started = std::thread::Builder::new().name(format!("gpu-{gpu_id}")).spawn(thread);
            match started {
                Ok(thread) => workers.running.push(Running { place, gpu_id, thread }),
                Err(source) => {
                    let error = GpuError::Thread { gpu_id, source };
                    raise(&workers.stop, &workers.first, error);
                    break;
                }
            }
        }
        drop(send);
        if workers.stop.is_raised() {
            return Err(workers.give_up());
        }
        Ok(workers)
    }

    /// Is raised when something has failed.
    pub(super) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Waits for all workers, asking `check` several times a second whether to go on. After a
    /// failure the others get a while to end.
    pub(super) fn wait(
        mut self,
        check: &mut dyn FnMut() -> Result<(), E>,
    ) -> Result<Vec<GpuStats>, GpuError<E>> {
        while !self.running.is_empty() {
            self.answer(LOOK_UP);
            if let Err(error) = check() {
                raise(&self.stop, &self.first, GpuError::Other(error));
            }
            if self.stop.is_raised() {
                return Err(self.give_up());
            }
        }
        if self.stop.is_raised() {
            return Err(self.give_up());
        }
        // In the order of the caller's list, whoever came first.
        self.stats.sort_unstable_by_key(|(place, _)| *place);
        Ok(self.stats.drain(..).map(|(_, stats)| stats).collect())
    }

    /// Ends the workers: the first failure, which may be told only now.
    pub(super) fn give_up(&mut self) -> GpuError<E> {
        self.stop.raise();
        let deadline = Instant::now() + self.grace;
        while !self.running.is_empty()
            && let Some(left) = deadline.checked_duration_since(Instant::now())
        {
            self.answer(left);
        }
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stuck = self.running.first().map(|running| GpuError::Stuck { gpu_id: running.gpu_id });
        first.or(stuck).unwrap_or(GpuError::GivenUp)
    }

    fn answer(&mut self, timeout: Duration) {
        match self.answers.recv_timeout(timeout) {
            Ok((place, answer)) => {
                self.ended(|running| running.place == place);
                self.stats.extend(answer.ok().map(|stats| (place, stats)));
            }
            Err(RecvTimeoutError::Timeout) => {}
            // Every thread has ended, and those that did not say so have panicked.
            Err(RecvTimeoutError::Disconnected) => self.ended(|_| true),
        }
    }

    /// Waits for the last of threads that have nothing left to do. A process that is being restored
    /// gets its memory taken away next, and a thread must not still run then, not even its end.
    fn ended(&mut self, is_ended: impl Fn(&Running) -> bool) {
        for Running { thread, .. } in self.running.extract_if(.., |running| is_ended(running)) {
            // Whether it has panicked is known already.
            let _ = thread.join();
        }
    }
}

impl<E: std::error::Error + 'static> Drop for Workers<E> {
    fn drop(&mut self) {
        self.stop.raise();
    }
}

/// Notes a failure unless there was one before, and stops everybody. That they are stopped already
/// does not make it a consequence: a caller who gives up because a worker is gone wants to know why.
fn raise<E: std::error::Error + 'static>(
    stop: &Stop,
    first: &Mutex<Option<GpuError<E>>>,
    error: GpuError<E>,
) {
    let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
    first.get_or_insert(error);
    stop.raise();
}

/// Notes that its thread has panicked.
struct Guard<'a, E: std::error::Error + 'static> {
    gpu_id: u32,
    stop: &'a Stop,
    first: &'a Mutex<Option<GpuError<E>>>,
    unwinding: bool,
}

impl<E: std::error::Error + 'static> Drop for Guard<'_, E> {
    fn drop(&mut self) {
        if self.unwinding {
            raise(self.stop, self.first, GpuError::Panicked { gpu_id: self.gpu_id });
        }
    }
}

/// Where each BO of a GPU is in its contents.
pub(super) fn plan<E: std::error::Error + 'static>(contents: &Contents) -> Result<Plan, Ended<E>> {
    Plan::new(contents.bos.iter().map(|bo| bo.size)).ok_or_else(|| {
        let what = "its BOs are too many or too large to be believed".to_owned();
        Ended::Failed(GpuError::Contents { gpu_id: contents.gpu_id, what })
    })
}

/// Names the GPU of a device's failure.
pub(super) fn device<E: std::error::Error + 'static>(
    gpu_id: u32,
) -> impl Fn(DeviceError) -> Ended<E> + Copy {
    move |source| Ended::Failed(GpuError::Device { gpu_id, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error, PartialEq, Eq)]
    #[error("{0}")]
    struct Given(&'static str);

    fn work(
        work: impl FnOnce(&Stop) -> Result<GpuStats, Ended<Given>> + Send + 'static,
    ) -> Work<Given> {
        Box::new(work)
    }

    fn until_stopped(stop: &Stop) -> Result<GpuStats, Ended<Given>> {
        loop {
            stop.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait(work: Vec<(u32, Work<Given>)>) -> Result<Vec<GpuStats>, GpuError<Given>> {
        Workers::start(work, Duration::from_secs(5))?.wait(&mut || Ok(()))
    }

    #[test]
    fn all_is_well_when_all_have_ended_well() {
        let stats = |gpu_id| GpuStats { gpu_id, ..GpuStats::default() };
        let mut got =
            wait(vec![(1, work(move |_| Ok(stats(1)))), (2, work(move |_| Ok(stats(2))))]).unwrap();
        got.sort_by_key(|stats| stats.gpu_id);
        assert_eq!(got, [stats(1), stats(2)]);
        assert!(wait(Vec::new()).unwrap().is_empty());
    }

    #[test]
    fn the_first_failure_ends_everybody_and_is_what_is_told() {
        let failing = |stop: &Stop| {
            let _ = stop;
            Err(Ended::Failed(GpuError::Other(Given("the disk is full"))))
        };
        let consequence = |stop: &Stop| {
            let _ = until_stopped(stop);
            Err(Ended::Failed(GpuError::Other(Given("a consequence"))))
        };
        let error =
            wait(vec![(1, work(consequence)), (2, work(failing)), (3, work(until_stopped))]);
        assert_eq!(error.unwrap_err().to_string(), "the disk is full");
    }

    #[test]
    fn a_panic_is_a_failure() {
        let panicking = |_: &Stop| panic!("on purpose");
        let error = wait(vec![(1, work(until_stopped)), (7, work(panicking))]).unwrap_err();
        assert!(matches!(error, GpuError::Panicked { gpu_id: 7 }), "{error}");
    }

    #[test]
    fn the_caller_can_give_up() {
        let workers =
            Workers::start(vec![(1, work(until_stopped))], Duration::from_secs(5)).unwrap();
        let error = workers.wait(&mut || Err(Given("stopped by a signal"))).unwrap_err();
        assert_eq!(error.to_string(), "stopped by a signal");
    }

    #[test]
    fn workers_that_nobody_waits_for_are_stopped() {
        let (done, is_done) = crossbeam_channel::bounded(1);
        let until = move |stop: &Stop| {
            let answer = until_stopped(stop);
            let _ = done.send(());
            answer
        };
        drop(Workers::start(vec![(1, work(until))], Duration::from_secs(5)).unwrap());
        assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(()));
    }

    /// A worker lets go of its channel before it says why, and whoever notices that gives up.
    #[test]
    fn a_failure_that_is_told_while_the_caller_gives_up_is_the_cause() {
        let failing = |stop: &Stop| {
            let _ = until_stopped(stop);
            Err(Ended::Failed(GpuError::Other(Given("the GPU is gone"))))
        };
        let mut workers = Workers::start(vec![(3, work(failing))], Duration::from_secs(5)).unwrap();
        assert_eq!(workers.give_up().to_string(), "the GPU is gone");
    }

    #[test]
    fn giving_up_blames_no_gpu_when_none_has_failed() {
        let mut workers =
            Workers::start(vec![(3, work(until_stopped))], Duration::from_secs(5)).unwrap();
        let error = workers.give_up();
        assert!(!error.to_string().contains("GPU"), "{error}");
    }

    #[test]
    fn statistics_come_in_the_order_of_the_work() {
        let (done, first_is_done) = crossbeam_channel::bounded::<()>(1);
        let stats = |gpu_id| GpuStats { gpu_id, ..GpuStats::default() };
        let slow = move |_: &Stop| {
            let _ = first_is_done.recv();
            std::thread::sleep(Duration::from_millis(20));
            Ok(stats(8))
        };
        let fast = move |_: &Stop| {
            let _ = done.send(());
            Ok(stats(3))
        };
        let got = wait(vec![(8, work(slow)), (3, work(fast))]).unwrap();
        assert_eq!(got, [stats(8), stats(3)]);
    }

    #[test]
    fn a_worker_that_is_stuck_is_left_behind() {
        let (release, wait) = crossbeam_channel::bounded::<()>(0);
        let stuck = move |_: &Stop| {
            let _ = wait.recv();
            Err(Ended::Stopped)
        };
        let mut workers =
            Workers::start(vec![(9, work(stuck))], Duration::from_millis(20)).unwrap();
        let error = workers.give_up();
        assert!(matches!(error, GpuError::Stuck { gpu_id: 9 }), "{error}");
        drop(release);
    }

    /// What a thread does in its very end.
    struct Last(Arc<AtomicBool>);

    impl Drop for Last {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(50));
            self.0.store(true, Ordering::Release);
        }
    }

    thread_local! {
        static LAST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }

    #[test]
    fn no_thread_is_left_when_its_answer_is_there() {
        for fails in [false, true] {
            let over = Arc::new(AtomicBool::new(false));
            let last = Last(Arc::clone(&over));
            let work: Work<Given> = Box::new(move |_| {
                LAST.with_borrow_mut(|at| at.replace(last));
                if fails { Err(Ended::Failed(GpuError::NoChunks)) } else { Ok(GpuStats::default()) }
            });
            let workers = Workers::start(vec![(7, work)], Duration::from_secs(10)).unwrap();
            assert_eq!(workers.wait(&mut || Ok(())).is_err(), fails);
            assert!(over.load(Ordering::Acquire), "its end was not waited for");
        }
    }
}
