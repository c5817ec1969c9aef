//! Writes one shard into a file, with as little copying as the file system allows.
//!
//! A file that is open for direct I/O takes whole blocks at block boundaries only. So what is small
//! or not aligned (headers, compressed chunks, the odd end of a chunk) is gathered in staging
//! buffers, and the rest of a large chunk goes to the disk from the ring's own memory:
//!
//! ```text
//!  shard: │ header  pad│ payload, whole blocks         │rest│ header ...
//!  from:  │ staging    │ ring chunk, not copied        │ staging
//! ```
//!
//! The last block is padded, and the file cut to its true length in the end.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::{
    fs::OFlags,
    process::{Resource, getrlimit},
};
use vramstream::{
    ring::{Chunk, Ring, page_bytes},
    uring::{FileWriter, WriteError},
};

use super::FileIo;
use crate::{
    error::{Error, Result},
    payload::Payload,
    transport::ShardWriter,
};

/// What direct I/O is aligned to. File systems that want more refuse the write, and are then
/// written through the page cache.
const BLOCK: u32 = 4096;

/// Writes in flight. Disks want some ten; more only keep chunks from being used.
const DEPTH: u16 = 16;

const STAGING_BYTES: usize = 128 << 10;
const STAGING_COUNT: usize = 16;

/// The most memory that a shard takes besides the chunks it is given.
pub const STAGING_PER_SHARD: usize = STAGING_BYTES * STAGING_COUNT;

/// A payload below this is copied: two more writes would cost more than the copy.
const STRAIGHT_BYTES: usize = 64 << 10;

/// The file is made longer in such steps, ahead of what is written: writes that make a file longer
/// wait for each other, those inside it do not.
const AHEAD_BYTES: u64 = 256 << 20;

/// One shard that is a file.
#[derive(Debug)]
pub(super) struct FileShard {
    name: String,
    out: FileWriter,
    /// What writes start and end at: [`BLOCK`], or 1 where the page cache takes care of that.
    block: usize,
    staging: Ring,
    /// The staging buffer that is being filled, and how far.
    current: Option<Chunk>,
    filled: usize,
    /// Where in the file `current` belongs; a multiple of `block`.
    at: u64,
    /// How long the file was made.
    ahead: u64,
    /// How many shards share the ring that payloads are in.
    shards: u32,
    finished: Arc<AtomicU32>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Failed,
    Finished,
}

impl FileShard {
    /// Writes into `file`, which is empty. Counts itself into `finished` in the end.
    pub(super) fn new(
        name: String,
        file: File,
        shards: u32,
        io: FileIo,
        finished: Arc<AtomicU32>,
    ) -> Result<Self> {
        if io.direct {
            // Not at open: a file system that has no direct I/O might make the file and then fail.
            let _ = rustix::fs::fcntl_setfl(&file, OFlags::DIRECT);
        }
        let staging = Ring::new(STAGING_BYTES.next_multiple_of(page_bytes()), STAGING_COUNT)
            .map_err(|error| Error::Usage(error.to_string()))?;
        let out = FileWriter::new(file, DEPTH, io.engine)
            .map_err(|error| Error::Usage(format!("cannot write {name}: {error}")))?;
        Ok(FileShard {
            block: if out.is_direct() { BLOCK as usize } else { 1 },
            name,
            out,
            staging,
            current: None,
            filled: 0,
            at: 0,
            ahead: 0,
            shards,
            finished,
            state: State::Open,
        })
    }

    fn position(&self) -> u64 {
        self.at + self.filled as u64
    }

    /// Notes that the shard is lost if something failed.
    fn check<T>(&mut self, result: Result<T, WriteError>) -> Result<T> {
        result.map_err(|WriteError { offset, source, .. }| {
            self.state = State::Failed;
            Error::io(|| format!("write {} at byte {offset}", self.name))(source)
        })
    }

    /// Gives bytes of a chunk to the kernel.
    fn send(&mut self, chunk: Chunk, len: usize, offset: u64) -> Result<()> {
        self.grow(offset + len as u64);
        let sent = self.out.write(chunk, 0..len, offset);
        self.check(sent)
    }

    /// Makes the file longer than it will be before long. Best effort, and never past the limit on
    /// the size of files, which would raise a signal for bytes that may never come.
    fn grow(&mut self, end: u64) {
        if self.out.is_direct() && end > self.ahead {
            let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
            self.ahead = end + AHEAD_BYTES;
            if self.ahead <= limit {
                let _ = self.out.file().set_len(self.ahead);
            }
        }
    }

    /// A staging buffer, waiting for one to come back from the disk.
    fn empty_staging(&mut self) -> Result<Chunk> {
        loop {
            if let Some(chunk) = self.staging.try_take() {
                return Ok(chunk);
            }
            let waited = self.out.wait_one();
            if !self.check(waited)? {
                // All of them are in flight, or in `current`, or free.
                self.state = State::Failed;
                return Err(Error::Panicked(format!(
                    "staging buffers of {} were lost; no",
                    self.name
                )));
            }
        }
    }

    /// Sends what was gathered, which must be whole blocks.
    fn send_staging(&mut self) -> Result<()> {
        let Some(chunk) = self.current.take() else { return Ok(()) };
        let (len, at) = (std::mem::take(&mut self.filled), self.at);
        self.at += len as u64;
        self.send(chunk, len, at)
    }

    fn gather(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let mut chunk = match self.current.take() {
                Some(chunk) => chunk,
                None => self.empty_staging()?,
            };
            let room = &mut chunk[self.filled..];
            let len = room.len().min(bytes.len());
            let (now, later) = bytes.split_at(len);
            room[..len].copy_from_slice(now);
            let full = len == room.len();
            bytes = later;
            self.filled += len;
            self.current = Some(chunk);
            if full {
                self.send_staging()?;
            }
        }
        Ok(())
    }

    /// Sends the whole blocks of a payload from where they are, and gathers the rest.
    fn send_payload(&mut self, payload: Payload, blocks: usize) -> Result<()> {
        self.send_staging()?;
        let Payload { chunk, len, .. } = payload;
        let (ring, at) = (chunk.ring(), self.at);
        self.at += blocks as u64;
        if blocks < len {
            self.gather(&chunk[blocks..len])?;
        }
        self.send(chunk, blocks, at)?;
        // A chunk that is written comes back when this shard is next called, which may be never
        // if all chunks are here: so all shards together keep half of the ring at most.
        let share = ring.chunks() / 2 / self.shards.max(1) as usize;
        while self.out.in_flight_of(&ring) > share {
            let waited = self.out.wait_one();
            self.check(waited)?;
        }
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        match self.state {
            State::Open => Ok(()),
            State::Failed => Err(Error::DumpIncomplete(format!("{} was not written", self.name))),
            State::Finished => Err(Error::DumpIncomplete(format!("{} is finished", self.name))),
        }
    }
}

impl ShardWriter for FileShard {
    fn describe(&self) -> &str {
        &self.name
    }

    fn payload_alignment(&self) -> Option<u32> {
        (self.block > 1).then_some(BLOCK)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.check_open()?;
        self.gather(bytes)
    }

    fn write_chunk(&mut self, head: &[u8], payload: Payload) -> Result<()> {
        self.check_open()?;
        self.gather(head)?;
        let blocks = payload.len - payload.len % self.block;
        // `at` is at a block boundary, so `filled` says whether the payload is.
        if blocks < STRAIGHT_BYTES || !self.filled.is_multiple_of(self.block) {
            return self.gather(payload.bytes());
        }
        self.send_payload(payload, blocks)
    }

    fn finish(&mut self) -> Result<()> {
        self.check_open()?;
        let len = self.position();
        if let Some(chunk) = &mut self.current {
            let padded = self.filled.next_multiple_of(self.block);
            chunk[self.filled..padded].fill(0);
            self.filled = padded;
        }
        self.send_staging()?;
        let written = self.out.wait_all();
        self.check(written)?;
        let file = self.out.file();
        let safe = file.set_len(len).and_then(|()| file.sync_all());
        if let Err(error) = safe {
            self.state = State::Failed;
            return Err(Error::io(|| format!("flush {}", self.name))(error));
        }
        self.state = State::Finished;
        self.finished.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(file: File) -> FileShard {
        FileShard::new("the shard".into(), file, 1, FileIo::default(), Arc::default()).unwrap()
    }

    #[test]
    fn what_is_not_aligned_never_costs_the_direct_way() {
        let mut shard = shard(tempfile::tempfile().unwrap());
        let direct = shard.out.is_direct();
        assert_eq!(shard.payload_alignment(), direct.then_some(4096));
        let ring = Ring::new(256 << 10, 2).unwrap();
        for len in [200_000, 131_072, 65_536, 1] {
            let payload = Payload { chunk: ring.try_take().unwrap(), len };
            shard.write_chunk(b"head", payload).unwrap();
        }
        shard.finish().unwrap();
        assert_eq!(shard.out.is_direct(), direct);
        assert_eq!(shard.out.file().metadata().unwrap().len(), 396_609 + 4 * 4);
    }

    #[test]
    fn a_shard_that_was_not_flushed_is_never_finished() {
        // It takes every write and cannot be cut to its length.
        let null = File::options().write(true).open("/dev/null").unwrap();
        let mut shard = shard(null);
        shard.write(b"bytes").unwrap();
        let error = shard.finish().unwrap_err().to_string();
        assert!(error.contains("flush the shard"), "{error}");
        assert!(matches!(shard.finish(), Err(Error::DumpIncomplete(_))));
        assert!(matches!(shard.write(b"more"), Err(Error::DumpIncomplete(_))));
        assert_eq!(shard.finished.load(Ordering::Acquire), 0);
    }
}
