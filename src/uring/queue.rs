//! Writes in flight: memory lent to the kernel and taken back.
//!
//! The rule that keeps this sound: from before a write is submitted until its completion was seen,
//! the queue owns the [`Chunk`], and nothing touches it. A queue that is dropped waits for every
//! completion; should that be impossible, it leaks the chunks rather than give memory away that the
//! kernel may still read.

use std::{fs::File, io, mem::ManuallyDrop, ops::Range, os::fd::AsRawFd, time::Duration};

use io_uring::{IoUring, Probe, opcode, types::Fd};
use nix::errno::Errno;

use super::registered::Registered;
use crate::ring::{Chunk, Ring};

/// Why io_uring cannot be used here.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The kernel lacks or forbids it.
    #[error(
        "io_uring is not available: the kernel lacks it, or a container or a sysctl forbids it"
    )]
    Setup(#[source] io::Error),
    /// The kernel is too old.
    #[error("io_uring of this kernel has no {0} operation")]
    Operation(&'static str),
}

/// Whether [`FileWriter`](super::FileWriter) can use io_uring on this machine, in this process.
pub fn probe() -> Result<(), Unusable> {
    setup(1).map(drop)
}

fn setup(depth: u32) -> Result<IoUring, Unusable> {
    // A child made by fork(2) has no business with it, nor with the memory it writes from.
    let ring = IoUring::builder().dontfork().build(depth).map_err(Unusable::Setup)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(Unusable::Setup)?;
    for (code, name) in [(opcode::Write::CODE, "WRITE"), (opcode::WriteFixed::CODE, "WRITE_FIXED")]
    {
        if !probe.is_supported(code) {
            return Err(Unusable::Operation(name));
        }
    }
    Ok(ring)
}

/// A piece of a chunk, and where in the file it belongs.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) chunk: Chunk,
    /// The bytes of the chunk that are still to be written; within the chunk.
    pub(super) range: Range<usize>,
    pub(super) offset: u64,
    /// Whether the file was open for direct I/O when this was last tried.
    pub(super) direct: bool,
}

/// An io_uring that writes one file.
pub(super) struct Queue {
    // Closed first, before the memory it knows can go.
    uring: IoUring,
    registered: Registered,
    file: File,
    flights: Vec<Option<Write>>,
    free: Vec<u16>,
}

impl Queue {
    pub(super) fn new(file: File, depth: u16) -> Result<Self, (File, Unusable)> {
        let depth = depth.clamp(1, 1024);
        let uring = match setup(depth.into()) {
            Ok(uring) => uring,
            Err(error) => return Err((file, error)),
        };
        let registered = Registered::new(&uring.submitter());
        let flights = (0..depth).map(|_| None).collect();
        Ok(Queue { uring, registered, file, flights, free: (0..depth).rev().collect() })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn in_flight_of(&self, ring: &Ring) -> usize {
        self.flights.iter().flatten().filter(|write| write.chunk.is_of(ring)).count()
    }

    #[cfg(test)]
    pub(super) fn registered(&self) -> usize {
        self.registered.count()
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Starts a write. The queue must not be full.
    pub(super) fn start(&mut self, write: Write) -> io::Result<()> {
        // Slicing checks the range, so that the kernel is given no byte outside the chunk.
        let bytes = &write.chunk[write.range.clone()];
        let len = u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
        let (start, fd) = (bytes.as_ptr(), Fd(self.file.as_raw_fd()));
        let entry = match self.registered.place(&self.uring.submitter(), &write.chunk) {
            Some(place) => {
                opcode::WriteFixed::new(fd, start, len, place).offset(write.offset).build()
            }
            None => opcode::Write::new(fd, start, len).offset(write.offset).build(),
        };
        let slot = self.free.pop().ok_or(Errno::EBUSY)?;
        let Some(flight) = self.flights.get_mut(usize::from(slot)) else {
            return Err(Errno::EINVAL.into());
        };
        *flight = Some(write);
        let entry = entry.user_data(slot.into());
        // SAFETY: the entry's memory is part of the chunk that was just put into `flights`. It stays
        // there, untouched, until its completion is seen in `next`; `drop` waits for that too. The
        // descriptor is open for as long as the queue is.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        if pushed.is_err() {
            // Never seen by the kernel, so it is ours again. Cannot be: there are as many entries
            // as places, and every write is submitted at once.
            *flight = None;
            self.free.push(slot);
            return Err(Errno::EBUSY.into());
        }
        match self.uring.submit() {
            Ok(_) => Ok(()),
            // It stays queued and goes with the next wait.
            Err(error) if passes(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits for any write and gives it back with the kernel's answer; `None` if there is none.
    pub(super) fn next(&mut self) -> io::Result<Option<(Write, io::Result<usize>)>> {
        while self.in_flight() > 0 {
            if let Some(done) = self.uring.completion().next() {
                let slot = u16::try_from(done.user_data()).map_err(|_| Errno::EPROTO)?;
                let flight = self.flights.get_mut(usize::from(slot)).and_then(Option::take);
                let write = flight.ok_or(Errno::EPROTO)?;
                self.free.push(slot);
                let answer = usize::try_from(done.result())
                    .map_err(|_| io::Error::from_raw_os_error(-done.result()));
                return Ok(Some((write, answer)));
            }
            match self.uring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel is short of something for a moment.
                Err(error) if passes(&error) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        loop {
            match self.next() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    // The kernel may still read the chunks, and will not tell: they never come back.
                    let _ = ManuallyDrop::new(std::mem::take(&mut self.flights));
                    break;
                }
            }
        }
    }
}

/// Whether the same call can be expected to work later.
fn passes(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw),
        Some(Errno::EINTR | Errno::EAGAIN | Errno::EBUSY)
    )
}
