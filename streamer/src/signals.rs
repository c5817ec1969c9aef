//! SIGTERM, SIGINT and SIGHUP as something to look at instead of something that happens.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};

use crate::error::{Error, Result};

const STOPPING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// The signals that ask the program to stop. Clones are the same: one that has come is told once.
#[derive(Debug, Clone)]
pub struct Signals {
    fd: Arc<SignalFd>,
}

impl Signals {
    /// Takes the signals over for this thread and the threads it will start.
    pub fn take() -> Result<Self> {
        let set = stopping();
        let failed = Error::io::<_, nix::Error>(|| "take over SIGTERM and SIGINT");
        set.thread_block()
            .and_then(|()| {
                SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            })
            .map(|fd| Signals { fd: Arc::new(fd) })
            .map_err(failed)
    }

    /// Runs `wait` with the signals doing what they do by default: they end the program at once.
    ///
    /// They go to a thread that is there for nothing else. Those that `wait` starts have them
    /// blocked, like all others: one that had not would be killed, and the program with it, by every
    /// signal that comes later.
    pub fn deadly_during<T>(&self, wait: impl FnOnce() -> T) -> Result<T> {
        let (end, ended) = crossbeam_channel::bounded::<()>(0);
        let thread = std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                if stopping().thread_unblock().is_ok() {
                    // Nothing is ever sent: this is the end of the wait.
                    let _ = ended.recv();
                }
            })
            .map_err(Error::io(|| "start a thread for signals"))?;
        let done = wait();
        drop(end);
        let _ = thread.join();
        Ok(done)
    }

    /// An error if one of them has come.
    pub fn check(&self) -> Result<()> {
        match self.fd.read_signal() {
            Ok(Some(info)) => {
                let signal = i32::try_from(info.ssi_signo).ok();
                let signal = signal.and_then(|number| Signal::try_from(number).ok());
                Err(Error::Interrupted(signal.map_or("a signal", Signal::as_str)))
            }
            _ => Ok(()),
        }
    }
}

fn stopping() -> SigSet {
    STOPPING.into_iter().collect()
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
