//! Fences: whether a submission is done, and how it ended.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    time::{ClockId, clock_gettime},
};

use super::interrupt::{Interrupt, Wake};

/// How a submission ended.
pub(super) type Ending = Result<(), Errno>;

type Then = Box<dyn FnOnce() + Send>;

/// Is signalled once.
#[derive(Default)]
pub(super) struct Fence {
    state: Mutex<State>,
    signalled: Condvar,
}

#[derive(Default)]
struct State {
    ending: Option<Ending>,
    then: Vec<Then>,
}

impl Fence {
    /// Signals it; only the first ending counts. No lock that a follower takes may be held.
    pub(super) fn signal(&self, ending: Ending) {
        let then = {
            let mut state = self.lock();
            if state.ending.is_some() {
                return;
            }
            state.ending = Some(ending);
            std::mem::take(&mut state.then)
        };
        self.signalled.notify_all();
        then.into_iter().for_each(|then| then());
    }

    /// How it ended, if it has.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.lock().ending
    }

    /// Calls `then` once it is signalled: now, if it is.
    pub(super) fn then(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        if state.ending.is_none() {
            state.then.push(Box::new(then));
            return;
        }
        drop(state);
        then();
    }

    /// Waits, whatever comes.
    pub(super) fn wait(&self) -> Ending {
        let mut state = self.lock();
        loop {
            if let Some(ending) = state.ending {
                return ending;
            }
            state = self.signalled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until a deadline. EINTR.
    pub(super) fn wait_until(
        self: &Arc<Self>,
        deadline: Deadline,
        interrupt: &Interrupt,
    ) -> nix::Result<Option<Ending>> {
        let _sleeping = interrupt.wakes(Arc::<Fence>::clone(self));
        let mut state = self.lock();
        while state.ending.is_none() {
            if interrupt.is_raised() {
                return Err(Errno::EINTR);
            }
            state = match deadline.left() {
                None => self.signalled.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Ok(None),
                Some(left) => {
                    let waited = self.signalled.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Ok(state.ending)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Fence {
    fn wake(&self) {
        let _state = self.lock();
        self.signalled.notify_all();
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&self.ending()).finish()
    }
}

/// Until when to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deadline {
    Never,
    At(Instant),
}

impl Deadline {
    /// From what amdgpu takes: nanoseconds of CLOCK_MONOTONIC, negative for no deadline.
    pub(super) fn from_monotonic(nanoseconds: u64) -> Self {
        if nanoseconds.cast_signed() < 0 {
            return Deadline::Never;
        }
        let left = Duration::from_nanos(nanoseconds.saturating_sub(monotonic()));
        Instant::now().checked_add(left).map_or(Deadline::Never, Deadline::At)
    }

    /// How long that is; `None` is for ever.
    pub(super) fn left(self) -> Option<Duration> {
        match self {
            Deadline::Never => None,
            Deadline::At(when) => Some(when.saturating_duration_since(Instant::now())),
        }
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(super) fn monotonic() -> u64 {
    // (The clock exists on every Linux.)
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_fence_keeps_its_first_ending_and_tells_its_followers_once() {
        let (fence, told) = (Arc::<Fence>::default(), Arc::new(AtomicU32::new(0)));
        let follower = || {
            let told = Arc::clone(&told);
            move || {
                told.fetch_add(1, Ordering::Relaxed);
            }
        };
        fence.then(follower());
        let interrupt = Interrupt::default();
        assert_eq!(fence.wait_until(Deadline::from_monotonic(0), &interrupt), Ok(None));
        fence.signal(Err(Errno::ECANCELED));
        fence.signal(Ok(()));
        fence.then(follower());
        assert_eq!(fence.wait(), Err(Errno::ECANCELED));
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn deadlines_are_of_the_monotonic_clock() {
        assert_eq!(Deadline::from_monotonic(u64::MAX), Deadline::Never);
        let soon = Deadline::from_monotonic(monotonic() + 3_600_000_000_000);
        assert!(soon.left().unwrap() > Duration::from_secs(3500));
        assert_eq!(Deadline::from_monotonic(1).left(), Some(Duration::ZERO));
    }
}
