//! Threads that compress the chunks that may be worth it.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, Sender};
use vramstream::{
    ring::Ring,
    stage::{Compression, Lz4Table, lz4_bound},
};

use super::frames::{FileState, Frame, send_frame};
use crate::{
    error::{Error, Result},
    fault::Fault,
    format::{ChunkHeader, Codec},
    payload::Payload,
};

/// How often the end looks whether the threads are done.
const POLL: Duration = Duration::from_millis(1);

/// A chunk that may shrink.
pub(super) struct Job {
    pub state: Arc<FileState>,
    pub header: ChunkHeader,
    pub payload: Payload,
}

/// The threads, at work.
pub(super) struct Compressors {
    jobs: Sender<Job>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Compressors {
    /// A thread for each core, or fewer where the ring is small: each has a buffer of a chunk's size
    /// to compress into, and together they take less than the ring does. What they make goes to `frames`; `shards` is the
    /// other end of that, to see whether the shards keep up.
    pub(super) fn start(
        ring: &Ring,
        compression: Compression,
        frames: &Sender<Frame>,
        shards: &Receiver<Frame>,
        fault: &Arc<Fault>,
    ) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = cores.min(ring.chunks() / 4).max(1);
        let (jobs, jobs_out) = crossbeam_channel::bounded(ring.chunks());
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            // LZ4's worst case is a little more than a chunk, so the buffer cannot be one of the ring.
            let out = vec![0; lz4_bound(ring.chunk_bytes())];
            let worker = Worker {
                jobs: jobs_out.clone(),
                frames: frames.clone(),
                shards: shards.clone(),
                fault: Arc::clone(fault),
                compression,
            };
            let thread = std::thread::Builder::new()
                .name(format!("lz4-{number}"))
                .spawn(move || worker.run(out))
                .map_err(Error::io(|| "start a compression thread"))?;
            threads.push(thread);
        }
        Ok(Compressors { jobs, threads })
    }

    /// Where chunks go in.
    pub(super) fn jobs(&self) -> &Sender<Job> {
        &self.jobs
    }

    /// Waits until everything that went in has come out, asking `check` whether to go on.
    pub(super) fn finish(self, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        drop(self.jobs);
        for thread in self.threads {
            // Not a join: the shards that take what is left may have stalled.
            while !thread.is_finished() {
                check()?;
                std::thread::sleep(POLL);
            }
            thread.join().map_err(|_| Error::Panicked("compression".into()))?;
        }
        Ok(())
    }
}

/// Compresses chunks that may be worth it.
struct Worker {
    jobs: Receiver<Job>,
    frames: Sender<Frame>,
    shards: Receiver<Frame>,
    fault: Arc<Fault>,
    compression: Compression,
}

impl Worker {
    fn run(self, mut out: Vec<u8>) {
        let mut table = Lz4Table::default();
        for Job { state, mut header, mut payload } in &self.jobs {
            if self.fault.is_raised() {
                continue;
            }
            // The shards have nothing to do and the workers too much: the link is the faster part.
            let starving = self.compression == Compression::Auto
                && self.shards.is_empty()
                && self.jobs.len() * 4 >= self.jobs.capacity().unwrap_or(usize::MAX) * 3;
            let stored = if starving {
                None
            } else {
                state.compress.compress(self.compression, payload.bytes(), &mut out, &mut table)
            };
            if let Some(stored) = stored {
                header.codec = Codec::Lz4;
                header.stored_len = u32::try_from(stored).unwrap_or(u32::MAX);
                payload.len = stored;
                payload.chunk[..stored].copy_from_slice(&out[..stored]);
            }
            let frame = Frame::Chunk(state, header, Some(payload));
            let sent = send_frame(&self.frames, frame, &|frames, frame| {
                frames.send(frame).map_err(|_| Error::Panicked("shard".into()))
            });
            if let Err(error) = sent {
                self.fault.raise(error);
            }
        }
    }
}
