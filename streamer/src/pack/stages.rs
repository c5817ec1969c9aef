//! Threads that look at chunks, and compress those that may be worth it.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::Receiver;
use vramstream::stage::{Compression, Lz4Table, ZeroChecksums, lz4_bound};

use super::{
    frames::{FileState, Frame},
    job::{Job, look},
    shared::Shared,
};
use crate::{
    error::{Error, Result},
    format::{ChunkHeader, Codec},
    payload::Payload,
};

/// How often the end looks whether the threads are done.
const POLL: Duration = Duration::from_millis(1);

/// The threads, at work.
#[derive(Default)]
pub(super) struct Stages {
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Stages {
    /// Starts one more thread, with a buffer of so many bytes to compress into. `shards` is the
    /// other end of the queue that its frames go to, to see whether the shards keep up.
    pub(super) fn start(
        &mut self,
        jobs: &Receiver<Job>,
        shards: &Receiver<Frame>,
        shared: &Arc<Shared>,
        buffer_bytes: usize,
    ) -> Result<()> {
        // LZ4's worst case is a little more than a chunk, so the buffer cannot be one of the ring.
        let out = vec![0; buffer_bytes];
        let worker = Worker {
            jobs: jobs.clone(),
            shards: shards.clone(),
            shared: Arc::clone(shared),
            out,
            table: Lz4Table::default(),
            zeros: ZeroChecksums::default(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("stage-{}", self.threads.len()))
            .spawn(move || worker.run())
            .map_err(Error::io(|| "start a thread for checksums and compression"))?;
        self.threads.push(thread);
        Ok(())
    }

    /// The jobs are closed: waits until everything that went in has come out, asking `check`
    /// whether to go on.
    pub(super) fn finish(&mut self, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        for thread in self.threads.drain(..) {
            // Not a join: the shards that take what is left may have stalled.
            while !thread.is_finished() {
                check()?;
                std::thread::sleep(POLL);
            }
            thread.join().map_err(|_| Error::Panicked("stage".into()))?;
        }
        Ok(())
    }
}

struct Worker {
    jobs: Receiver<Job>,
    shards: Receiver<Frame>,
    shared: Arc<Shared>,
    out: Vec<u8>,
    table: Lz4Table,
    zeros: ZeroChecksums,
}

impl Worker {
    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _alive = shared.fault.raise_on_panic("stage");
        // A loop over the jobs would borrow all of this.
        while let Ok(job) = self.jobs.recv() {
            // After a fault the queue is only emptied, so that nobody waits for room in it.
            if !shared.fault.is_raised()
                && let Err(error) = self.job(job)
            {
                shared.fail(error);
            }
        }
    }

    fn job(&mut self, job: Job) -> Result<()> {
        let Job { state, offset, payload, header } = job;
        let (mut header, payload, wants_try) = match header {
            Some(header) => (header, Some(payload), true),
            None => {
                let (header, payload) = look(&state, offset, payload, &mut self.zeros);
                let wants_try =
                    payload.is_some() && state.compress.wants_try(self.shared.compression);
                (header, payload, wants_try)
            }
        };
        let payload = match payload {
            Some(mut payload) if wants_try && !self.is_starving() => {
                self.compress(&state, &mut header, &mut payload);
                Some(payload)
            }
            payload => payload,
        };
        self.shared.send_chunk(&state, header, payload)
    }

    /// The shards have nothing to do and the stages too much: the link is the faster part.
    fn is_starving(&self) -> bool {
        self.shared.compression == Compression::Auto
            && self.shards.is_empty()
            && self.jobs.len() * 4 >= self.jobs.capacity().unwrap_or(usize::MAX) * 3
    }

    fn compress(&mut self, state: &FileState, header: &mut ChunkHeader, payload: &mut Payload) {
        // A chunk of another ring may be larger than those of the packer's own.
        let bound = lz4_bound(payload.len);
        if self.out.len() < bound {
            self.out.resize(bound, 0);
        }
        let mode = self.shared.compression;
        let Some(stored) =
            state.compress.compress(mode, payload.bytes(), &mut self.out, &mut self.table)
        else {
            return;
        };
        header.codec = Codec::Lz4;
        header.stored_len = u32::try_from(stored).unwrap_or(u32::MAX);
        payload.len = stored;
        payload.chunk[..stored].copy_from_slice(&self.out[..stored]);
    }
}
