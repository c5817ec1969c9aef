//! The first thing that went wrong on any thread of a command.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Error, Result};

/// Keeps the first error and wakes the thread that waits. Later ones are consequences and are dropped.
#[derive(Debug)]
pub(crate) struct Fault {
    first: Mutex<Option<Error>>,
    raised: AtomicBool,
    event: EventFd,
}

impl Fault {
    pub(crate) fn new() -> Result<Self> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(Error::io(|| "make an event descriptor"))?;
        Ok(Fault { first: Mutex::new(None), raised: AtomicBool::new(false), event })
    }

    pub(crate) fn raise(&self, error: Error) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.raised.swap(true, Ordering::AcqRel) {
            *first = Some(error);
            // The counter of an event descriptor takes far more than one.
            let _ = self.event.write(1);
        }
    }

    /// Whether something has gone wrong.
    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }

    /// The error, for the one who reports it; afterwards only that there was one.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_raised() {
            return Ok(());
        }
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        Err(first.unwrap_or(Error::GivenUp))
    }

    /// For the life of a thread that nobody waits for: if it panics, the others are told.
    pub(crate) fn raise_on_panic(&self, thread: &'static str) -> RaiseOnPanic<'_> {
        RaiseOnPanic(self, thread)
    }

    /// Becomes readable when something goes wrong.
    pub(crate) fn alarm(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// See [`Fault::raise_on_panic`].
#[derive(Debug)]
pub(crate) struct RaiseOnPanic<'a>(&'a Fault, &'static str);

impl Drop for RaiseOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.raise(Error::Panicked(self.1.into()));
        }
    }
}
