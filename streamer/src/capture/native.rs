//! The intake for the native format: pipes to chunks, stages, shard threads.
//!
//! The pump's thread reads a pipe into a ring chunk, scans for zeros and computes the CRC while the
//! bytes are in its cache, and hands the chunk to whichever shard is ready first. Only chunks that
//! are worth a try at compression make a detour over the [compressors](super::compressors).
//!
//! Memory: what the destination needs for itself, the ring, a buffer of a chunk's size for each
//! compressor, and the indexes of the shards, which may take a quarter of the rest. Everything else is bounded by
//! the ring: whoever has no chunk waits for one.

use std::{collections::HashMap, os::fd::BorrowedFd, sync::Arc, time::Duration};

use crossbeam_channel::Sender;
use rustix::net::RecvFlags;
use vramstream::{
    ring::{Ring, page_bytes},
    stage::{self, Compression, Crc32, ZeroChecksums},
};

use super::{
    Intake,
    compressors::{Compressors, Job},
    frames::{FileState, Frame, send_frame},
    image::{OpenImage, Readable, Source, Totals},
    writers::{Outcome, Writers},
};
use crate::{
    absorb::ShardStat,
    error::{Error, Result},
    fault::Fault,
    format::{ChunkHeader, Codec, ImageEnd, ImageId},
    payload::Payload,
    progress::Progress,
    signals::Signals,
    transport::Destination,
};

/// The share of the memory budget that the ring may take, and the index too.
const RING_SHARE: u64 = 4;
/// The largest ring: more chunks do not make anything faster.
const RING_BYTES: usize = 32 << 20;
/// The fewest chunks: one being filled, one in each other stage, one to go on with.
const FEWEST_CHUNKS: usize = 8;
/// How often a wait for a chunk looks up whether there is still a reason to wait.
const WAIT: Duration = Duration::from_millis(100);

/// An image that is being read.
struct Reading {
    state: Arc<FileState>,
    /// A chunk that is not full yet.
    partial: Option<Payload>,
    offset: u64,
}

/// See the [module](self).
pub(super) struct NativeIntake<'a> {
    destination: Box<dyn Destination>,
    signals: &'a Signals,
    fault: Arc<Fault>,
    ring: Ring,
    compression: Compression,
    zeros: ZeroChecksums,
    reading: HashMap<u32, Reading>,
    /// How many of those have a partial chunk.
    partials: usize,
    frames: Option<Sender<Frame>>,
    compressors: Option<Compressors>,
    writers: Option<Writers>,
    created_unix_ms: u64,
}

impl<'a> NativeIntake<'a> {
    pub(super) fn new(
        mut destination: Box<dyn Destination>,
        compression: Compression,
        memory_bytes: u64,
        signals: &'a Signals,
        progress: &'a Progress,
    ) -> Result<Self> {
        let elsewhere = destination.memory_bytes();
        if elsewhere > memory_bytes / 2 {
            return Err(Error::Usage(format!(
                "{} shards take {elsewhere} bytes, more than half of --memory {memory_bytes}: give more memory or fewer --shards",
                destination.shards()
            )));
        }
        let memory_bytes = memory_bytes - elsewhere;
        let image = ImageId::random().map_err(Error::io(|| "read /dev/urandom"))?;
        let shards = destination.open(image)?;
        let ring = ring(memory_bytes, destination.chunk_bytes())?;
        let fault = Arc::new(Fault::new()?);
        let (frames, frames_out) = crossbeam_channel::bounded(2 * ring.chunks());
        let index_bytes = usize::try_from(memory_bytes / RING_SHARE).unwrap_or(usize::MAX);
        let writers = Writers::start(image, shards, &frames_out, &fault, index_bytes, progress)?;
        let compressors = (compression != Compression::None)
            .then(|| Compressors::start(&ring, compression, &frames, &frames_out, &fault))
            .transpose()?;
        Ok(NativeIntake {
            destination,
            signals,
            fault,
            compression,
            zeros: ZeroChecksums::default(),
            reading: HashMap::new(),
            partials: 0,
            frames: Some(frames),
            compressors,
            writers: Some(writers),
            created_unix_ms: unix_ms(),
            ring,
        })
    }

    /// An empty chunk, waiting for one if need be.
    fn take(&mut self) -> Result<Payload> {
        let chunk = match self.ring.try_take() {
            Some(chunk) => chunk,
            None => {
                // None of these may be what the others wait for.
                self.flush_partials()?;
                loop {
                    if let Some(chunk) = self.ring.take(WAIT) {
                        break chunk;
                    }
                    self.check()?;
                }
            }
        };
        Ok(Payload { chunk, len: 0 })
    }

    fn check(&self) -> Result<()> {
        self.fault.check()?;
        self.signals.check()
    }

    fn flush_partials(&mut self) -> Result<()> {
        if self.partials == 0 {
            return Ok(());
        }
        let ready: Vec<_> = self
            .reading
            .values_mut()
            .filter_map(|reading| {
                let payload = reading.partial.take()?;
                let offset = reading.offset;
                reading.offset += payload.len as u64;
                Some((Arc::clone(&reading.state), offset, payload))
            })
            .collect();
        self.partials = 0;
        ready
            .into_iter()
            .try_for_each(|(state, offset, payload)| self.dispatch(state, offset, payload))
    }

    /// Stages a chunk and sends it on.
    fn dispatch(&mut self, state: Arc<FileState>, offset: u64, payload: Payload) -> Result<()> {
        let bytes = payload.bytes();
        // A chunk is at most CHUNK_BYTES, far below 32 bits.
        let raw_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let zero = stage::is_zero(bytes);
        let crc = if zero { self.zeros.of(raw_len) } else { Crc32::of(bytes).value };
        let (codec, stored_len) = if zero { (Codec::Zero, 0) } else { (Codec::Raw, raw_len) };
        let header =
            ChunkHeader { file: state.file, offset, raw_len, stored_len, codec, crc, pad: 0 };
        if zero {
            drop(payload);
            return self.send(Frame::Chunk(state, header, None));
        }
        match &self.compressors {
            Some(compressors) if state.compress.wants_try(self.compression) => {
                let job = Job { state, header, payload };
                self.send_to(compressors.jobs(), job)
            }
            _ => self.send(Frame::Chunk(state, header, Some(payload))),
        }
    }

    fn send(&self, frame: Frame) -> Result<()> {
        match &self.frames {
            Some(frames) => send_frame(frames, frame, &|frames, frame| self.send_to(frames, frame)),
            None => Ok(()),
        }
    }

    /// Sends, and looks up now and then while there is no room.
    fn send_to<T>(&self, channel: &Sender<T>, mut item: T) -> Result<()> {
        loop {
            match channel.send_timeout(item, WAIT) {
                Ok(()) => return Ok(()),
                Err(crossbeam_channel::SendTimeoutError::Timeout(back)) => {
                    self.check()?;
                    item = back;
                }
                Err(crossbeam_channel::SendTimeoutError::Disconnected(_)) => {
                    self.check()?;
                    return Err(Error::Panicked("shard".into()));
                }
            }
        }
    }
}

/// Reads what the pipe has into the chunk.
fn fill(image: &OpenImage, payload: &mut Payload, waiting: usize) -> Result<usize> {
    let start = payload.len;
    let end = start + waiting.min(payload.chunk.len() - start);
    while payload.len < end {
        match rustix::io::read(&image.pipe, &mut payload.chunk[payload.len..end]) {
            Ok(0) => break,
            Ok(n) => payload.len += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(Error::io(|| format!("read {} from CRIU", image.name))(error));
            }
        }
    }
    Ok(payload.len - start)
}

impl Intake for NativeIntake<'_> {
    fn readable(&mut self, image: &mut OpenImage) -> Result<Readable> {
        let reading = self.reading.entry(image.file).or_insert_with(|| Reading {
            state: Arc::new(FileState::new(image.file, image.name.clone())),
            partial: None,
            offset: 0,
        });
        let state = Arc::clone(&reading.state);
        let waiting = waiting(image)?;
        if waiting == 0 {
            return self.end(image, &state);
        }
        let mut payload = match reading.partial.take() {
            Some(payload) => {
                self.partials -= 1;
                payload
            }
            None => self.take()?,
        };
        let start = payload.len;
        let got = fill(image, &mut payload, waiting)?;
        if let Some(inventory) = &mut image.inventory {
            inventory.see(&payload.chunk[start..payload.len]);
        }
        image.taken += got as u64;
        let full = payload.len == payload.chunk.len();
        let Some(reading) = self.reading.get_mut(&image.file) else { return Ok(Readable::More) };
        if full || self.partials >= self.ring.chunks() / 4 {
            let offset = reading.offset;
            reading.offset += payload.len as u64;
            self.dispatch(state, offset, payload)?;
        } else {
            reading.partial = Some(payload);
            self.partials += 1;
        }
        Ok(Readable::More)
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fault.alarm())
    }

    fn health(&mut self) -> Result<()> {
        self.fault.check()?;
        self.destination.health()
    }

    fn commit(&mut self, totals: &Totals) -> Result<Vec<ShardStat>> {
        // These first: what they hold still goes to the shards.
        if let Some(compressors) = self.compressors.take() {
            compressors.finish(&mut || {
                self.fault.check()?;
                self.signals.check()?;
                self.destination.health()
            })?;
        }
        let end = ImageEnd {
            files: totals.files,
            raw_bytes: totals.raw_bytes,
            superseded: totals.superseded.clone(),
            created_unix_ms: self.created_unix_ms,
            writer: crate::WRITER.to_owned(),
            shard_chunks: 0,
            shard_stored_bytes: 0,
        };
        let Some(writers) = self.writers.take() else { return Ok(Vec::new()) };
        let waiting = writers.finish(Outcome::Complete(end), self.frames.take());
        let stats = loop {
            if let Some(stats) = waiting.poll(WAIT)? {
                break stats;
            }
            if let Err(error) = self.check().and_then(|()| self.destination.health()) {
                // So that no shard says any more that the image is whole.
                self.fault.raise(Error::DumpIncomplete("the capture was given up".into()));
                return Err(error);
            }
        };
        self.fault.check()?;
        self.destination.commit(&mut || self.signals.check())?;
        Ok(stats)
    }

    fn abort(&mut self, reason: &str) {
        // Their threads end by themselves, when the last frame they can send is gone.
        self.compressors = None;
        self.reading.clear();
        if let Some(writers) = self.writers.take() {
            let outcome = Outcome::Abort(reason.to_owned());
            writers.finish(outcome, self.frames.take()).wait_briefly();
        }
        self.destination.abort(reason);
    }

    fn explain(&mut self, error: Error) -> Error {
        self.destination.explain(error)
    }
}

impl NativeIntake<'_> {
    fn end(&mut self, image: &OpenImage, state: &Arc<FileState>) -> Result<Readable> {
        if let Some(reading) = self.reading.remove(&image.file)
            && let Some(payload) = reading.partial
        {
            self.partials -= 1;
            self.dispatch(reading.state, reading.offset, payload)?;
        }
        if let Some(end) = state.ended(image.taken) {
            self.send(Frame::End(Arc::clone(state), end))?;
        }
        Ok(Readable::End)
    }
}

/// How many bytes wait in a pipe that was reported readable; none means that it has ended.
pub(super) fn waiting(image: &OpenImage) -> Result<usize> {
    let failed = || format!("look into the pipe of {}", image.name);
    let waiting = rustix::io::ioctl_fionread(&image.pipe).map_err(Error::io(failed))?;
    if waiting == 0 && image.source == Source::External {
        // A socket whose other end died has nothing more to give either, and has not ended.
        match rustix::net::recv(&image.pipe, &mut [0], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok(_) | Err(rustix::io::Errno::NOTSOCK) => {}
            Err(error) => return Err(Error::io(|| format!("read {}", image.name))(error)),
        }
    }
    Ok(usize::try_from(waiting).unwrap_or(usize::MAX))
}

/// A ring within its share of the budget.
fn ring(memory_bytes: u64, wanted_bytes: usize) -> Result<Ring> {
    let bytes = usize::try_from(memory_bytes / RING_SHARE).unwrap_or(usize::MAX);
    let page = page_bytes();
    let chunk_bytes = (bytes / FEWEST_CHUNKS).min(wanted_bytes) / page * page;
    if chunk_bytes == 0 {
        return Err(Error::Usage(format!(
            "--memory {memory_bytes} is too little: give at least {}",
            page as u64 * FEWEST_CHUNKS as u64 * RING_SHARE
        )));
    }
    let chunks = (bytes / chunk_bytes).min(RING_BYTES / chunk_bytes).max(FEWEST_CHUNKS);
    Ring::new(chunk_bytes, chunks).map_err(|error| Error::Usage(error.to_string()))
}

fn unix_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0))
}
