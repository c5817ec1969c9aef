//! Waits until one of many descriptors can be read.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
};

use crate::error::{Error, Result};

/// How many descriptors are reported at a time; the others are reported the next time.
const EVENTS: usize = 64;

/// Descriptors, each under a number of the caller's.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub(crate) fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = epoll.map_err(Error::io(|| "make an epoll descriptor"))?;
        Ok(Poller { epoll, events: Vec::with_capacity(EVENTS) })
    }

    /// Reports `fd` as `number` whenever it can be read, or has ended.
    pub(crate) fn add(&self, fd: impl AsFd, number: u64) -> Result<()> {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)
            .map_err(Error::io(|| "watch a descriptor"))
    }

    /// Does not report it any more.
    pub(crate) fn remove(&self, fd: impl AsFd) -> Result<()> {
        epoll::delete(&self.epoll, fd).map_err(Error::io(|| "forget a descriptor"))
    }

    /// Waits at most `timeout`: how many can be read, none after the time or a signal.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<usize> {
        self.events.clear();
        let timeout = Timespec::try_from(timeout).ok();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(self.events.len()),
            Err(error) => Err(Error::io(|| "wait for descriptors")(error)),
        }
    }

    /// The number of the `n`th that the last [`wait`](Self::wait) found.
    pub(crate) fn ready(&self, n: usize) -> Option<u64> {
        self.events.get(n).map(|event| event.data.u64())
    }
}
