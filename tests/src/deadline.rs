//! Nothing in a test may wait for ever: every wait here ends at a [`Deadline`].

use std::{
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a step of a test may take before it counts as hung. Far more than it ever needs, so
/// that a busy machine does not fail a test.
pub const STEP: Duration = Duration::from_secs(30);

/// A point in time after which waiting is an error.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// So far from now.
    pub fn after(time: Duration) -> Self {
        Deadline(Instant::now() + time)
    }

    /// [`STEP`] from now.
    pub fn step() -> Self {
        Self::after(STEP)
    }

    /// What is left, nothing once it has passed.
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub fn passed(&self) -> bool {
        self.left().is_zero()
    }

    /// Waits until there is something to read, or no writer is left.
    pub fn readable(&self, fd: impl AsFd) -> io::Result<()> {
        self.ready(fd, PollFlags::IN, "something to read")
    }

    /// Waits until there is room to write, or no reader is left.
    pub fn writable(&self, fd: impl AsFd) -> io::Result<()> {
        self.ready(fd, PollFlags::OUT, "room to write")
    }

    fn ready(&self, fd: impl AsFd, flags: PollFlags, what: &str) -> io::Result<()> {
        loop {
            let left = Timespec::try_from(self.left()).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&fd, flags)], Some(&left)) {
                Ok(0) if self.passed() => return Err(timed_out(what)),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks again and again until the answer is `Some`.
    pub fn until<T>(
        &self,
        what: &str,
        mut ask: impl FnMut() -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        loop {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
            if self.passed() {
                return Err(timed_out(what));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The error of a wait that came to its end.
pub fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("timed out waiting for {what}"))
}
