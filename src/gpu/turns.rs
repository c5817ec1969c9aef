//! Turns at having something in flight, where fewer may than would like to.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::ring::page_bytes;

/// The turns of all workers of a dump.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    limit: Option<Arc<Limit>>,
    window_bytes: u64,
}

#[derive(Debug)]
struct Limit {
    free: Mutex<usize>,
    returned: Condvar,
}

/// One of them; it comes back when this is dropped.
#[derive(Debug)]
pub(super) struct Turn(Option<Arc<Limit>>);

impl Turns {
    /// For windows of at most a chunk, of which there may be `most` bytes altogether.
    pub(super) fn new(chunk_bytes: usize, most: Option<u64>) -> Self {
        let chunk_bytes = chunk_bytes as u64;
        let Some(most) = most else {
            return Turns { limit: None, window_bytes: chunk_bytes };
        };
        let page = page_bytes() as u64;
        let window_bytes = chunk_bytes.min((most / page * page).max(page));
        let turns = usize::try_from(most / window_bytes).unwrap_or(usize::MAX).max(1);
        let limit = Arc::new(Limit { free: Mutex::new(turns), returned: Condvar::new() });
        Turns { limit: Some(limit), window_bytes }
    }

    /// The longest window.
    pub(super) fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// A turn, waiting at most so long for one.
    pub(super) fn take(&self, timeout: Duration) -> Option<Turn> {
        let Some(limit) = &self.limit else { return Some(Turn(None)) };
        let mut free = limit.free();
        if *free == 0 && !timeout.is_zero() {
            let waited = limit.returned.wait_timeout(free, timeout);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *free = free.checked_sub(1)?;
        Some(Turn(Some(Arc::clone(limit))))
    }
}

impl Limit {
    fn free(&self) -> MutexGuard<'_, usize> {
        // A number is never half changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(limit) = &self.0 {
            *limit.free() += 1;
            limit.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_turns_as_windows_fit() {
        let count = |chunk, most| {
            let turns = Turns::new(chunk, most);
            let taken: Vec<_> =
                std::iter::from_fn(|| turns.take(Duration::ZERO)).take(1000).collect();
            (turns.window_bytes(), taken.len())
        };
        assert_eq!(count(1 << 20, None), (1 << 20, 1000));
        assert_eq!(count(1 << 20, Some(5 << 20)), (1 << 20, 5));
        assert_eq!(count(1 << 20, Some((5 << 20) - 1)), (1 << 20, 4));
        assert_eq!(count(1 << 20, Some(1 << 20)), (1 << 20, 1));
        assert_eq!(count(1 << 20, Some(10_000)), (8192, 1));
        assert_eq!(count(1 << 20, Some(0)), (4096, 1));
    }

    #[test]
    fn a_turn_that_is_over_is_somebody_elses() {
        let turns = Turns::new(4096, Some(4096));
        let turn = turns.take(Duration::ZERO).unwrap();
        assert!(turns.take(Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| turns.take(Duration::from_secs(60)).is_some());
            drop(turn);
            assert!(waiter.join().unwrap());
        });
    }
}
