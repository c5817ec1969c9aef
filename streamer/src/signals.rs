//! SIGTERM, SIGINT and SIGHUP as something to look at instead of something that happens.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::{
    signal::{SigSet, Signal},
    signalfd::{SfdFlags, SignalFd},
};

use crate::error::{Error, Result};

const STOPPING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// The signals that ask the program to stop.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
}

impl Signals {
    /// Takes the signals over for this thread and the threads it will start.
    pub fn take() -> Result<Self> {
        let mut set = SigSet::empty();
        STOPPING.into_iter().for_each(|signal| set.add(signal));
        let failed = Error::io::<_, nix::Error>(|| "take over SIGTERM and SIGINT");
        set.thread_block()
            .and_then(|()| {
                SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            })
            .map(|fd| Signals { fd })
            .map_err(failed)
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

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
