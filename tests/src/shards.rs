//! The other ends of shard pipes: consumers and producers, each in a thread of its own.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::fd::OwnedFd,
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::pipe::{SpliceFlags, splice};

use crate::deadline::{Deadline, STEP, timed_out};

/// A thread at the other end of a pipe.
#[derive(Debug)]
pub struct Worker<T>(JoinHandle<io::Result<T>>);

impl<T: Send + 'static> Worker<T> {
    /// Starts one.
    pub fn start(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Self {
        Worker(thread::spawn(work))
    }

    /// Waits for what it has to give.
    pub fn join(self) -> io::Result<T> {
        self.join_within(STEP)
    }

    /// The same, with a time.
    pub fn join_within(self, timeout: Duration) -> io::Result<T> {
        let deadline = Deadline::after(timeout);
        while !self.0.is_finished() {
            if deadline.passed() {
                return Err(timed_out("the end of a shard"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.0.join().unwrap_or_else(|_| Err(io::Error::other("a shard's thread panicked")))
    }
}

/// Reads a shard into memory.
pub fn collect(shard: OwnedFd) -> Worker<Vec<u8>> {
    Worker::start(move || {
        let mut bytes = Vec::new();
        File::from(shard).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// Reads all shards into memory.
pub fn collect_all(shards: Vec<OwnedFd>) -> Vec<Worker<Vec<u8>>> {
    shards.into_iter().map(collect).collect()
}

/// Reads a shard into memory, at most this many bytes in each millisecond.
pub fn collect_slowly(shard: OwnedFd, bytes_per_milli: usize) -> Worker<Vec<u8>> {
    Worker::start(move || {
        let mut file = File::from(shard);
        let mut piece = vec![0; bytes_per_milli];
        let mut bytes = Vec::new();
        loop {
            let count = file.read(&mut piece)?;
            if count == 0 {
                return Ok(bytes);
            }
            bytes.extend_from_slice(piece.get(..count).unwrap_or_default());
            thread::sleep(Duration::from_millis(1));
        }
    })
}

/// Lets a shard go to nowhere without touching the bytes, and counts them.
pub fn discard(shard: OwnedFd) -> Worker<u64> {
    Worker::start(move || splice_all(&shard, &OpenOptions::new().write(true).open("/dev/null")?))
}

/// Moves a shard into a file.
pub fn store(shard: OwnedFd, file: File) -> Worker<u64> {
    Worker::start(move || splice_all(&shard, &file))
}

/// Moves a file into a shard, page by page and without copying.
pub fn replay(file: File, shard: OwnedFd) -> Worker<u64> {
    Worker::start(move || splice_all(&file, &shard))
}

/// Writes bytes as a shard and ends it. A reader that goes away first is an error of kind
/// `BrokenPipe`.
pub fn feed(shard: OwnedFd, bytes: Vec<u8>) -> Worker<()> {
    Worker::start(move || File::from(shard).write_all(&bytes))
}

/// Writes each of these as a shard.
pub fn feed_all(shards: Vec<OwnedFd>, bytes: &[Vec<u8>]) -> Vec<Worker<()>> {
    shards.into_iter().zip(bytes).map(|(shard, bytes)| feed(shard, bytes.clone())).collect()
}

fn splice_all(from: impl std::os::fd::AsFd, to: impl std::os::fd::AsFd) -> io::Result<u64> {
    let mut total = 0;
    loop {
        match splice(&from, None, &to, None, 1 << 20, SpliceFlags::MOVE) {
            Ok(0) => return Ok(total),
            Ok(count) => total += count as u64,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
