//! A signal for a caller that waits.
//!
//! A kernel lets a call that waits go when its thread has a signal to handle: the call answers
//! EINTR, and whoever was waiting calls again. Doors raise the token of a [`Call`](super::caller::Call)
//! for that. What waits says how it is woken, for as long as it waits.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether a call has been interrupted. Clones are the same token.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupt(Arc<Shared>);

#[derive(Default)]
struct Shared {
    raised: AtomicBool,
    sleepers: Mutex<Sleepers>,
}

#[derive(Default)]
struct Sleepers {
    by_number: BTreeMap<u64, Arc<dyn Wake>>,
    next: u64,
}

/// Something that is waited for.
pub(super) trait Wake: Send + Sync {
    /// Wakes all who wait, to look again. Whoever has looked and is about to sleep must not miss it.
    fn wake(&self);
}

impl Interrupt {
    /// Wakes what the call waits for, now and from now on.
    pub(super) fn raise(&self) {
        self.0.raised.store(true, Ordering::Release);
        // Without the lock: who is woken gives its place up.
        let sleepers: Vec<_> = self.0.lock().by_number.values().cloned().collect();
        sleepers.iter().for_each(|sleeper| sleeper.wake());
    }

    /// The signal has been handled.
    #[cfg(test)]
    pub(super) fn lower(&self) {
        self.0.raised.store(false, Ordering::Release);
    }

    pub(super) fn is_raised(&self) -> bool {
        self.0.raised.load(Ordering::Acquire)
    }

    /// From here until it is dropped, `sleeper` is woken when the token is raised. To be made before
    /// the last look at [`is_raised`](Self::is_raised), and without a lock that `sleeper` takes.
    pub(super) fn wakes(&self, sleeper: Arc<dyn Wake>) -> Sleeping<'_> {
        let mut sleepers = self.0.lock();
        let number = sleepers.next;
        sleepers.next += 1;
        sleepers.by_number.insert(number, sleeper);
        Sleeping { interrupt: self, number }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.raised).finish()
    }
}

/// A wait that can be interrupted.
#[derive(Debug)]
pub(super) struct Sleeping<'a> {
    interrupt: &'a Interrupt,
    number: u64,
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.interrupt.0.lock().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicU32);

    impl Wake for Counter {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn those_who_wait_are_woken_and_those_who_waited_are_not() {
        let (interrupt, counter) = (Interrupt::default(), Arc::<Counter>::default());
        let before = interrupt.wakes(Arc::<Counter>::clone(&counter));
        drop(before);
        let during = interrupt.wakes(Arc::<Counter>::clone(&counter));
        assert!(!interrupt.is_raised());
        interrupt.clone().raise();
        assert!(interrupt.is_raised());
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        drop(during);
    }
}
