//! The payload of a chunk on its way to a shard: a ring chunk, and perhaps the same bytes as pages
//! in a pipe.
//!
//! CRIU hands over memory by `vmsplice`: the pipe holds references to the pages of the dumped
//! process. [`PagePipes`] keeps such references beside the copy that the checksum is computed from,
//! so that a shard that is a pipe gets the pages themselves, and the bytes cross user space once.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::pipe::{PipeFlags, SpliceFlags};
use vramstream::ring::Chunk;

/// Bytes to write to a shard. Dropping it gives chunk and pipe back.
#[derive(Debug)]
pub struct Payload {
    /// Holds the bytes.
    pub chunk: Chunk,
    /// How many of its bytes, from the first.
    pub len: usize,
    /// A pipe that holds exactly the same bytes.
    pub pages: Option<Pages>,
}

impl Payload {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.chunk[..self.len]
    }
}

/// A pipe of ours with pages in it, or ready for some.
#[derive(Debug)]
pub struct Pages {
    pipe: Option<Pipe>,
    len: usize,
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

#[derive(Debug)]
struct Pool {
    free: Mutex<Vec<Pipe>>,
    null: File,
}

/// A fixed number of pipes to keep pages in.
#[derive(Debug, Clone)]
pub struct PagePipes(Arc<Pool>);

impl PagePipes {
    /// Makes up to `count` pipes that hold `bytes` each; fewer, perhaps none, where the limits on
    /// descriptors or on pipe memory do not allow for them.
    pub fn new(count: usize, bytes: usize) -> io::Result<Self> {
        let mut free = Vec::with_capacity(count);
        for _ in 0..count {
            let Ok((read, write)) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC) else { break };
            // A pipe that stays small is not worth its descriptors.
            match rustix::pipe::fcntl_setpipe_size(&write, bytes) {
                Ok(have) if have >= bytes => free.push(Pipe { read, write }),
                _ => break,
            }
        }
        let null = File::options().write(true).open("/dev/null")?;
        Ok(PagePipes(Arc::new(Pool { free: Mutex::new(free), null })))
    }

    /// An empty pipe, if one is free.
    pub fn take(&self) -> Option<Pages> {
        let pipe = self.0.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Pages { pipe: Some(pipe), len: 0, pool: Arc::clone(&self.0) })
    }
}

impl Pages {
    /// How many bytes are in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes references to at most `max` bytes at the head of the pipe `from`, which stay there. 0
    /// if this pipe has no room for them.
    pub fn tee_from(&mut self, from: impl AsFd, max: usize) -> rustix::io::Result<usize> {
        let Some(pipe) = &self.pipe else { return Ok(0) };
        match rustix::io::retry_on_intr(|| {
            rustix::pipe::tee(&from, &pipe.write, max, SpliceFlags::NONBLOCK)
        }) {
            Ok(n) => {
                self.len += n;
                Ok(n)
            }
            Err(rustix::io::Errno::AGAIN) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Moves at most `max` bytes into the pipe `to`, waiting for room there.
    pub fn splice_to(&mut self, to: impl AsFd, max: usize) -> rustix::io::Result<usize> {
        let Some(pipe) = &self.pipe else { return Ok(0) };
        let max = max.min(self.len);
        let moved = rustix::io::retry_on_intr(|| {
            rustix::pipe::splice(&pipe.read, None, &to, None, max, SpliceFlags::MOVE)
        })?;
        self.len -= moved;
        Ok(moved)
    }
}

impl Drop for Pages {
    /// An empty pipe goes back to the pool; one that cannot be emptied is closed.
    fn drop(&mut self) {
        let Some(pipe) = self.pipe.take() else { return };
        while self.len > 0 {
            match rustix::pipe::splice(
                &pipe.read,
                None,
                &self.pool.null,
                None,
                self.len,
                SpliceFlags::NONBLOCK,
            ) {
                Ok(n) if n > 0 => self.len -= n,
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(pipe);
    }
}
