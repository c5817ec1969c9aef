//! A thread for each shard: takes whatever frame is next, encodes it, writes it.
//!
//! All threads take from one queue, so a shard that is slow takes less and nothing waits for it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use crossbeam_channel::Receiver;

use super::frames::Frame;
use crate::{
    absorb::ShardStat,
    error::{Error, Result},
    fault::Fault,
    format::{Codec, ImageEnd, ImageId, Prologue, ShardEncoder},
    progress::Progress,
    transport::ShardWriter,
};

/// Payloads smaller than this are copied wherever they go, so padding for them is waste.
const WORTH_ALIGNING: u32 = 64 << 10;
/// How long an abort waits for shards to say so: a reader that is stuck must not hold it up.
const ABORT_WAIT: Duration = Duration::from_secs(2);
/// The most bytes of small frames that are gathered before they are written.
const GATHER_BYTES: usize = 64 << 10;

/// How it ended.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    Complete(ImageEnd),
    Abort(String),
}

/// The threads, at work.
pub(super) struct Writers {
    outcome: Arc<Mutex<Option<Outcome>>>,
    done: Receiver<(usize, ShardStat)>,
    count: usize,
    fault: Arc<Fault>,
}

/// The threads, coming to an end.
pub(super) struct Finishing {
    writers: Writers,
    stats: Mutex<(usize, Vec<ShardStat>)>,
}

impl Writers {
    pub(super) fn start(
        image: ImageId,
        shards: Vec<Box<dyn ShardWriter>>,
        frames: &Receiver<Frame>,
        fault: &Arc<Fault>,
        index_bytes: usize,
        progress: &Progress,
    ) -> Result<Self> {
        let count = shards.len();
        let shard_count = u32::try_from(count).unwrap_or(u32::MAX);
        let outcome = Arc::new(Mutex::new(None));
        let (done_in, done) = crossbeam_channel::bounded(count);
        progress.shards(shards.iter().map(|shard| shard.describe().to_owned()));
        for (number, (writer, shard)) in shards.into_iter().zip(0u32..).enumerate() {
            let prologue = Prologue { image, shard, shards: shard_count };
            let mut out = BytesMut::with_capacity(2 * GATHER_BYTES);
            let thread = ShardThread {
                encoder: ShardEncoder::new(&prologue, &mut out),
                out,
                writer,
                number,
                index_bytes: index_bytes / count.max(1),
                progress: progress.clone(),
                reported: 0,
            };
            let (frames, fault, outcome) =
                (frames.clone(), Arc::clone(fault), Arc::clone(&outcome));
            let done_in = done_in.clone();
            std::thread::Builder::new()
                .name(format!("shard-{number}"))
                .spawn(move || {
                    let alive = fault.raise_on_panic("shard");
                    let stat = thread.run(&frames, &fault, &outcome);
                    drop(alive);
                    let _ = done_in.send((number, stat));
                })
                .map_err(Error::io(|| "start a thread for a shard"))?;
        }
        Ok(Writers { outcome, done, count, fault: Arc::clone(fault) })
    }

    /// Says how it ends; the queue is to be closed next. The threads look up the outcome when they
    /// have emptied it.
    pub(super) fn finish(self, outcome: Outcome) -> Finishing {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        let stats = vec![ShardStat::default(); self.count];
        Finishing { stats: Mutex::new((0, stats)), writers: self }
    }
}

impl Finishing {
    /// Waits for a thread to end: what went to each shard, once all have.
    pub(super) fn poll(&self, timeout: Duration) -> Result<Option<Vec<ShardStat>>> {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        while stats.0 < self.writers.count {
            match self.writers.done.recv_timeout(timeout) {
                Ok((number, stat)) => {
                    stats.1[number] = stat;
                    stats.0 += 1;
                }
                Err(crossbeam_channel::RecvTimeoutError::Timeout) => return Ok(None),
                Err(crossbeam_channel::RecvTimeoutError::Disconnected) => {
                    self.writers.fault.check()?;
                    return Err(Error::Panicked("shard".into()));
                }
            }
        }
        Ok(Some(std::mem::take(&mut stats.1)))
    }

    /// Waits for the threads, but not for long.
    pub(super) fn wait_briefly(&self) {
        let deadline = Instant::now() + ABORT_WAIT;
        while let Some(left) = deadline.checked_duration_since(Instant::now())
            && let Ok(None) = self.poll(left)
        {}
    }
}

struct ShardThread {
    encoder: ShardEncoder,
    /// Encoded and not written yet.
    out: BytesMut,
    writer: Box<dyn ShardWriter>,
    number: usize,
    index_bytes: usize,
    progress: Progress,
    /// Bytes of the shard that progress was told of.
    reported: u64,
}

impl ShardThread {
    fn run(
        mut self,
        frames: &Receiver<Frame>,
        fault: &Fault,
        outcome: &Mutex<Option<Outcome>>,
    ) -> ShardStat {
        for frame in frames {
            // After a fault the queue is only emptied, so that nobody waits for room in it.
            if !fault.is_raised()
                && let Err(error) = self.frame(frame, frames.is_empty())
            {
                fault.raise(error);
            }
        }
        let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let outcome = outcome.unwrap_or_else(|| {
            // Nobody got as far as to say one.
            fault.raise(Error::GivenUp);
            Outcome::Abort("the image was given up".into())
        });
        let bytes = self.encoder.position();
        match outcome {
            Outcome::Complete(end) if !fault.is_raised() => match self.complete(end) {
                Ok(bytes) => return ShardStat { bytes, duration_ms: 0 },
                Err(error) => fault.raise(error),
            },
            // The shard may be what has failed: it is told if it can be.
            Outcome::Complete(_) => self.abort("another shard has failed"),
            Outcome::Abort(reason) => self.abort(&reason),
        }
        ShardStat { bytes, duration_ms: 0 }
    }

    fn frame(&mut self, frame: Frame, last_for_now: bool) -> Result<()> {
        match frame {
            Frame::Chunk(state, header, payload) => {
                self.begin(&state.name, state.file);
                let align = self
                    .writer
                    .payload_alignment()
                    .filter(|_| header.codec == Codec::Raw && header.raw_len >= WORTH_ALIGNING);
                self.encoder
                    .chunk(header, align, &mut self.out)
                    .map_err(Error::shard(self.writer.describe()))?;
                self.check_index()?;
                if let Some(payload) = payload {
                    self.writer.write_chunk(&self.out, payload)?;
                    self.out.clear();
                }
            }
            Frame::End(state, end) => {
                self.begin(&state.name, state.file);
                self.encoder.file_end(end, &mut self.out);
            }
        }
        if last_for_now || self.out.len() >= GATHER_BYTES {
            self.flush()?;
        }
        let position = self.encoder.position();
        self.progress.stored(self.number, position - self.reported);
        self.reported = position;
        Ok(())
    }

    fn begin(&mut self, name: &crate::format::FileName, file: u32) {
        if !self.encoder.knows(file) {
            self.encoder.file_begin(file, name, &mut self.out);
        }
    }

    fn flush(&mut self) -> Result<()> {
        if !self.out.is_empty() {
            self.writer.write(&self.out)?;
            self.out.clear();
        }
        Ok(())
    }

    fn check_index(&self) -> Result<()> {
        if self.encoder.index_bytes() <= self.index_bytes {
            return Ok(());
        }
        Err(Error::Memory {
            what: format!(
                "the index of {} takes more than {} bytes",
                self.writer.describe(),
                self.index_bytes
            ),
            option: "--memory",
        })
    }

    fn complete(mut self, end: ImageEnd) -> Result<u64> {
        self.flush()?;
        let before = self.encoder.position();
        self.encoder.image_end(end, &mut self.out);
        let bytes = before + self.out.len() as u64;
        for piece in self.out.chunks(GATHER_BYTES) {
            self.writer.write(piece)?;
        }
        self.writer.finish()?;
        self.progress.stored(self.number, bytes - self.reported);
        Ok(bytes)
    }

    fn abort(mut self, reason: &str) {
        self.encoder.abort(reason, &mut self.out);
        // Nobody may be reading any more; the shard has no end then, which says the same.
        let _ = self.writer.write(&self.out);
    }
}
