//! What stands between the shaders of a queue and memory.

use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Holds up whoever plays the shaders of a queue while the queue does not run.
#[derive(Debug, Default)]
pub(super) struct Gate {
    open: AtomicBool,
    opened: AtomicU64,
    ended: AtomicBool,
    writing: Mutex<()>,
    condition: Condvar,
}

impl Gate {
    pub(super) fn open(&self) {
        let _writing = self.lock();
        self.opened.fetch_add(1, Ordering::AcqRel);
        self.open.store(true, Ordering::Release);
        self.condition.notify_all();
    }

    /// How often it was opened.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Acquire)
    }

    /// Nothing is written any more when this returns.
    pub(super) fn close(&self) {
        // The flag first: whoever writes sees it after its next words and goes to sleep.
        self.open.store(false, Ordering::Release);
        drop(self.lock());
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.close();
        let _writing = self.lock();
        self.condition.notify_all();
    }

    /// Does some work while the gate is open; false when there will be no more, or `stop` is set.
    pub(super) fn pass(&self, stop: &AtomicBool, work: impl FnOnce()) -> bool {
        let mut writing = self.lock();
        loop {
            if self.ended.load(Ordering::Acquire) || stop.load(Ordering::Acquire) {
                return false;
            }
            if self.open.load(Ordering::Acquire) {
                break;
            }
            writing = self.condition.wait(writing).unwrap_or_else(PoisonError::into_inner);
        }
        work();
        true
    }

    /// Wakes those who wait, to look at their `stop` again.
    pub(super) fn nudge(&self) {
        let _writing = self.lock();
        self.condition.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    #[test]
    fn closing_waits_for_the_round_that_is_under_way() {
        let (gate, never) = (Gate::default(), AtomicBool::new(false));
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
        let passes = |change: fn(&Gate, &AtomicBool)| {
            let (gate, stop) = (Gate::default(), AtomicBool::new(false));
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
}
