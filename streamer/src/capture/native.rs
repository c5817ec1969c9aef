//! The intake for the native format: pipes to chunks, which [`pack`] takes on.
//!
//! The pump's thread reads a pipe into a ring chunk, scans for zeros and computes the CRC while the
//! bytes are in its cache. Only chunks that are worth a try at compression make a detour over the
//! stage threads.
//!
//! Memory is what the packer takes. An image that does not fill a chunk keeps it until more comes,
//! unless chunks are short.

use std::{collections::HashMap, os::fd::BorrowedFd};

use rustix::net::RecvFlags;
use vramstream::stage::Compression;

use super::{
    Intake,
    image::{OpenImage, Readable, Source},
};
use crate::{
    absorb::ShardStat,
    error::{Error, Result},
    pack::{self, Feed, FileHandle, Memory, Packer, StageThreads, Totals},
    payload::Payload,
    progress::Progress,
    signals::Signals,
    transport::Destination,
};

/// An image that is being read.
struct Reading {
    file: FileHandle,
    /// A chunk that is not full yet.
    partial: Option<Payload>,
    offset: u64,
}

/// See the [module](self).
pub(super) struct NativeIntake {
    packer: Packer,
    feed: Feed,
    reading: HashMap<u32, Reading>,
    /// How many of those have a partial chunk.
    partials: usize,
}

impl NativeIntake {
    pub(super) fn new(
        destination: Box<dyn Destination>,
        compression: Compression,
        memory_bytes: u64,
        signals: &Signals,
        progress: &Progress,
    ) -> Result<Self> {
        let signals = signals.clone();
        let options = pack::Options {
            compression,
            memory: Memory::Budget(memory_bytes),
            // For the contents of GPUs; what CRIU sends is checksummed where it is read.
            stages: StageThreads::Checksum,
        };
        let packer = Packer::start(destination, options, move || signals.check(), progress)?;
        let feed = packer.feed();
        Ok(NativeIntake { packer, feed, reading: HashMap::new(), partials: 0 })
    }

    /// An empty chunk, waiting for one if need be.
    fn take(&mut self) -> Result<Payload> {
        if let Some(payload) = self.feed.try_take() {
            return Ok(payload);
        }
        // None of these may be what the others wait for.
        self.flush_partials()?;
        self.feed.take()
    }

    fn flush_partials(&mut self) -> Result<()> {
        if self.partials == 0 {
            return Ok(());
        }
        self.partials = 0;
        for reading in self.reading.values_mut() {
            if let Some(payload) = reading.partial.take() {
                reading.give(&mut self.feed, payload)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, image: &OpenImage) -> Result<Readable> {
        if let Some(mut reading) = self.reading.remove(&image.file) {
            if let Some(payload) = reading.partial.take() {
                self.partials -= 1;
                reading.give(&mut self.feed, payload)?;
            }
            self.feed.end(&reading.file, image.taken)?;
        }
        Ok(Readable::End)
    }
}

impl Reading {
    /// Gives the next chunk of the image away.
    fn give(&mut self, feed: &mut Feed, payload: Payload) -> Result<()> {
        let offset = self.offset;
        self.offset += payload.len as u64;
        feed.chunk(&self.file, offset, payload)
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

impl Intake for NativeIntake {
    fn readable(&mut self, image: &mut OpenImage) -> Result<Readable> {
        let reading = self.reading.entry(image.file).or_insert_with(|| Reading {
            file: self.feed.file(image.file, image.name.clone()),
            partial: None,
            offset: 0,
        });
        let waiting = waiting(image)?;
        if waiting == 0 {
            return self.end(image);
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
        if full || self.partials >= self.feed.ring().chunks() / 4 {
            reading.give(&mut self.feed, payload)?;
        } else {
            reading.partial = Some(payload);
            self.partials += 1;
        }
        Ok(Readable::More)
    }

    fn feed(&self) -> Option<Feed> {
        Some(self.packer.feed())
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        Some(self.packer.alarm())
    }

    fn health(&mut self) -> Result<()> {
        self.packer.health()
    }

    fn commit(&mut self, totals: &Totals) -> Result<Vec<ShardStat>> {
        self.packer.commit(totals)
    }

    fn abort(&mut self, reason: &str) {
        self.reading.clear();
        self.packer.abort(reason);
    }

    fn explain(&mut self, error: Error) -> Error {
        self.packer.explain(error)
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
