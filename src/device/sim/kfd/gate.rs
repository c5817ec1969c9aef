//! What stands between the shaders of a queue and memory.

use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::super::locked::once_unlocked;

/// Holds up whoever plays the shaders of a queue while the queue does not run.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    condition: Condvar,
    /// Held while somebody passes.
    passing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    open: bool,
    opened: u64,
    ended: bool,
}

impl Gate {
    pub(super) fn open(&self) {
        let mut state = self.state();
        state.opened += 1;
        state.open = true;
        self.condition.notify_all();
    }

    /// How often it was opened.
    pub(super) fn opened(&self) -> u64 {
        self.state().opened
    }

    /// Nothing is written any more when this returns, or where the machine is locked, when it is
    /// unlocked: who passes may wait for a process that waits for the machine.
    pub(super) fn close(self: &Arc<Self>) {
        self.state().open = false;
        let gate = Arc::clone(self);
        once_unlocked(move || drop(gate.passing.lock().unwrap_or_else(PoisonError::into_inner)));
    }

    /// Closes it for good.
    pub(super) fn end(self: &Arc<Self>) {
        self.state().ended = true;
        self.close();
        self.condition.notify_all();
    }

    /// Does some work while the gate is open; false when there will be no more, or `stop` is set.
    pub(super) fn pass(&self, stop: &AtomicBool, work: impl FnOnce()) -> bool {
        loop {
            let mut state = self.state();
            while !state.open && !state.ended && !stop.load(Ordering::Acquire) {
                state = self.condition.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.ended || stop.load(Ordering::Acquire) {
                return false;
            }
            drop(state);
            let _passing = self.passing.lock().unwrap_or_else(PoisonError::into_inner);
            // It may have been closed before we had that, and whoever closed it is gone.
            if self.state().open {
                work();
                return true;
            }
        }
    }

    /// Wakes those who wait, to look at their `stop` again.
    pub(super) fn nudge(&self) {
        let _state = self.state();
        self.condition.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;
    use crate::device::sim::{Machine, Profile, SimHost};

    #[test]
    fn closing_waits_for_the_round_that_is_under_way() {
        let (gate, never) = (Arc::<Gate>::default(), AtomicBool::new(false));
        let done = AtomicBool::new(false);
        let (started, wait_start) = mpsc::channel();
        let (release, wait_release) = mpsc::channel::<()>();
        gate.open();
        std::thread::scope(|scope| {
            let (gate, never, done) = (&gate, &never, &done);
            scope.spawn(move || {
                gate.pass(never, || {
                    started.send(()).unwrap();
                    wait_release.recv().unwrap();
                    done.store(true, Ordering::Release);
                })
            });
            wait_start.recv().unwrap();
            let closer = scope.spawn(move || {
                gate.close();
                done.load(Ordering::Acquire)
            });
            std::thread::sleep(Duration::from_millis(20));
            release.send(()).unwrap();
            assert!(closer.join().unwrap(), "closed in the middle of a round");
        });
    }

    #[test]
    fn who_waits_at_a_closed_gate_goes_when_it_opens_or_ends_or_is_told_to_stop() {
        let passes = |change: fn(&Arc<Gate>, &AtomicBool)| {
            let (gate, stop) = (Arc::<Gate>::default(), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| gate.pass(&stop, || ()));
                change(&gate, &stop);
                waiting.join().unwrap()
            })
        };
        assert!(passes(|gate, _| gate.open()));
        assert!(!passes(|gate, _| gate.end()));
        assert!(!passes(|gate, stop| {
            stop.store(true, Ordering::Release);
            gate.nudge();
        }));
    }

    #[test]
    fn a_gate_that_is_closed_under_the_lock_is_waited_for_without_it() {
        let host = SimHost::new(Machine::new(&Profile::gfx90a(), 1)).unwrap();
        let (gate, never) = (Arc::<Gate>::default(), AtomicBool::new(false));
        let (started, wait_start) = mpsc::channel();
        gate.open();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gate.pass(&never, || {
                    started.send(()).unwrap();
                    // Gets the lock only when whoever closes the gate does not wait with it.
                    std::thread::sleep(Duration::from_millis(20));
                    drop(host.state());
                })
            });
            wait_start.recv().unwrap();
            let state = host.state();
            gate.close();
            drop(state);
            assert!(gate.passing.try_lock().is_ok());
        });
    }
}
