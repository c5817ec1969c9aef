//! Which chunks are free: lend one, wait for one, take one back.
//!
//! This is all that threads share of a ring, so it is a file of its own, and `loom` runs every
//! interleaving of it: with `--cfg vramstream_loom` the lock and the condition are loom's, and
//! `tests` of the pool beside this file are run for each order in which threads can reach them.

use std::time::{Duration, Instant};

#[cfg(all(test, vramstream_loom))]
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(all(test, vramstream_loom)))]
use std::sync::{Condvar, Mutex, MutexGuard};

/// The numbers of the chunks that nobody has, last back first out.
#[derive(Debug)]
pub(super) struct Lender {
    list: Mutex<List>,
    returned: Condvar,
}

#[derive(Debug)]
struct List {
    free: Vec<u32>,
    condemned: usize,
}

impl Lender {
    /// All of `count` chunks are free.
    pub(super) fn new(count: u32) -> Self {
        let list = List { free: (0..count).rev().collect(), condemned: 0 };
        Lender { list: Mutex::new(list), returned: Condvar::new() }
    }

    /// How many are free now.
    pub(super) fn free(&self) -> usize {
        self.list().free.len()
    }

    /// How many will never come back.
    pub(super) fn condemned(&self) -> usize {
        self.list().condemned
    }

    /// Lends one if one is free.
    pub(super) fn lend(&self) -> Option<u32> {
        self.list().free.pop()
    }

    /// Lends one, waiting at most `timeout` for one to come back.
    pub(super) fn wait(&self, timeout: Duration) -> Option<u32> {
        // What is too far away for a clock is no deadline.
        let deadline = Instant::now().checked_add(timeout);
        let mut list = self.list();
        while list.free.is_empty() {
            let left =
                deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            (list, _) =
                self.returned.wait_timeout(list, left).unwrap_or_else(PoisonError::into_inner);
        }
        list.free.pop()
    }

    /// Takes one back.
    pub(super) fn give_back(&self, index: u32) {
        self.list().free.push(index);
        // One chunk is for one waiter. If it was about to give up, it looks once more all the same.
        self.returned.notify_one();
    }

    /// One that was lent stays away for ever.
    pub(super) fn condemn(&self) {
        self.list().condemned += 1;
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // The list is only pushed to and popped from: a panic elsewhere cannot leave it half done.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
