//! A bounded channel that one thread can close for all: what was being sent arrives, what comes
//! later is refused.
//!
//! Channels close when the last sender is gone. A thread that is stuck somewhere else with its
//! sender would keep the shards from ever getting to their end.

use std::{
    sync::{PoisonError, RwLock, RwLockReadGuard, TryLockError},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender};

use super::WAIT;
use crate::error::{Error, Result};

/// How often a close looks whether those that were sending are done.
const POLL: Duration = Duration::from_millis(1);
/// How long a close that does not ask waits for them: they look up every [`WAIT`].
const PATIENCE: Duration = Duration::from_secs(2);

/// The way in.
pub(super) struct Queue<T>(RwLock<Option<Sender<T>>>);

/// The way in, held open.
pub(super) struct Open<'a, T>(RwLockReadGuard<'a, Option<Sender<T>>>);

impl<T> Queue<T> {
    /// With room for so many.
    pub(super) fn bounded(room: usize) -> (Self, Receiver<T>) {
        let (sender, receiver) = crossbeam_channel::bounded(room);
        (Queue(RwLock::new(Some(sender))), receiver)
    }

    /// Keeps it from being closed, unless it is closed already.
    pub(super) fn open(&self) -> Option<Open<'_, T>> {
        // It holds a channel or none: a panic elsewhere cannot leave it half changed.
        let sender = self.0.read().unwrap_or_else(PoisonError::into_inner);
        sender.is_some().then_some(Open(sender))
    }

    /// Waits until nobody holds it open, asking `check` whether to go on, and closes it.
    pub(super) fn close(&self, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        while !self.try_close() {
            check()?;
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Closes it as well, after a fault: nobody holds it open for long then.
    pub(super) fn close_soon(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.try_close() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }

    fn try_close(&self) -> bool {
        match self.0.try_write() {
            Ok(mut sender) => *sender = None,
            Err(TryLockError::Poisoned(poisoned)) => *poisoned.into_inner() = None,
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }
}

impl<T> Open<'_, T> {
    /// Sends, and while there is no room asks `check` now and then whether to go on.
    pub(super) fn send(&self, mut item: T, check: &dyn Fn() -> Result<()>) -> Result<()> {
        let Some(sender) = &*self.0 else { return Err(Error::GivenUp) };
        loop {
            match sender.send_timeout(item, WAIT) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Timeout(back)) => {
                    check()?;
                    item = back;
                }
                // Every thread at the other end has panicked, and has said so.
                Err(SendTimeoutError::Disconnected(_)) => return Err(Error::GivenUp),
            }
        }
    }
}
