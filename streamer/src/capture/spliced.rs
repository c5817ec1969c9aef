//! The intake for criu-image-streamer's format: records whose payload the kernel moves from CRIU's
//! pipe to a shard's, so that no byte of it is copied or even looked at.
//!
//! One thread does it all. A record goes to the shard with the most room, so a slow shard gets
//! less; nothing blocks on a shard without watching for signals.

use std::{
    collections::HashSet,
    fs::File,
    io::Write,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
};

use bytes::BytesMut;
use rustix::{
    event::{PollFd, PollFlags, poll},
    pipe::SpliceFlags,
};
use vramstream::ring::page_bytes;

use super::{
    Intake,
    image::{OpenImage, Readable},
    native::waiting,
};
use crate::{
    absorb::ShardStat,
    criu_image_streamer::MarkerWriter,
    error::{Error, Result},
    format::FileName,
    pack::Totals,
    progress::Progress,
    signals::Signals,
    transport::pipe,
};

/// What the original asks for; records are up to a quarter of it.
const SHARD_PIPE_BYTES: usize = 1 << 20;
/// Room that a record's header takes in a pipe: a page of its own.
const HEADERS_BYTES: usize = 4096;
/// What is copied at a time where the kernel does not splice.
const COPY_BYTES: usize = 64 << 10;
/// What a pipe or socket that says it has room takes without blocking: PIPE_BUF.
const AT_ONCE_BYTES: usize = 4096;

/// See the [module](self).
pub(super) struct SplicedIntake<'a> {
    shards: Vec<Shard>,
    markers: MarkerWriter,
    /// Names that are open or have ended: the format has no place for a second file of one name.
    names: HashSet<FileName>,
    known: HashSet<u32>,
    most_bytes: usize,
    /// Cleared when the kernel does not splice between these descriptors.
    splices: bool,
    out: BytesMut,
    buffer: Vec<u8>,
    signals: &'a Signals,
    progress: &'a Progress,
}

struct Shard {
    name: String,
    file: File,
    is_pipe: bool,
    /// Not into a socket: that would block until there is room, whatever flags it is given.
    splices: bool,
    capacity: usize,
    /// At least this much room is left, as far as is known.
    room: usize,
    bytes: u64,
}

impl<'a> SplicedIntake<'a> {
    pub(super) fn new(
        shards: Vec<(String, OwnedFd)>,
        signals: &'a Signals,
        progress: &'a Progress,
    ) -> Self {
        let shards: Vec<_> =
            shards.into_iter().map(|(name, fd)| Shard::new(name, fd.into())).collect();
        progress.shards(shards.iter().map(|shard| shard.name.clone()));
        let page = page_bytes();
        let smallest = shards.iter().map(|shard| shard.capacity).min().unwrap_or(SHARD_PIPE_BYTES);
        SplicedIntake {
            shards,
            markers: MarkerWriter::new(),
            names: HashSet::new(),
            known: HashSet::new(),
            most_bytes: (smallest / 4).saturating_sub(page).max(page),
            splices: true,
            out: BytesMut::with_capacity(HEADERS_BYTES),
            buffer: Vec::new(),
            signals,
            progress,
        }
    }

    /// The shard with the most room for headers and `payload` bytes.
    fn roomiest(&mut self, payload: usize) -> Result<usize> {
        let needed = HEADERS_BYTES + payload;
        let roomiest = |shards: &[Shard]| {
            shards.iter().enumerate().max_by_key(|(_, shard)| shard.room).map_or(0, |(n, _)| n)
        };
        let best = roomiest(&self.shards);
        if self.shards[best].room >= needed {
            return Ok(best);
        }
        // All of them: looking at one only would starve the others without noticing.
        self.shards.iter_mut().try_for_each(Shard::look)?;
        Ok(roomiest(&self.shards))
    }

    /// Writes what is in `out` to a shard, then `payload` bytes from the image's pipe.
    fn record(&mut self, image: &OpenImage, payload: usize) -> Result<()> {
        let shard = self.roomiest(payload)?;
        self.write(shard, &self.out)?;
        let mut left = payload;
        while left > 0 && self.splices && self.shards[shard].splices {
            let target = &self.shards[shard];
            match rustix::pipe::splice(
                &image.pipe,
                None,
                &target.file,
                None,
                left,
                SpliceFlags::MOVE | SpliceFlags::NONBLOCK,
            ) {
                // The bytes were there when they were counted, and nobody else reads them.
                Ok(0) => return Err(target.failed(std::io::ErrorKind::UnexpectedEof.into())),
                Ok(moved) => left -= moved,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.wait_for_room(shard)?,
                Err(error) if pipe::cannot_splice(error) => self.splices = false,
                Err(error) => return Err(target.failed(error.into())),
            }
        }
        self.copy(image, shard, left)?;
        self.account(shard, payload);
        Ok(())
    }

    fn copy(&mut self, image: &OpenImage, shard: usize, mut left: usize) -> Result<()> {
        while left > 0 {
            self.buffer.resize(COPY_BYTES, 0);
            let piece = left.min(COPY_BYTES);
            let read = rustix::io::retry_on_intr(|| {
                rustix::io::read(&image.pipe, &mut self.buffer[..piece])
            });
            let read = read.map_err(Error::io(|| format!("read {} from CRIU", image.name)))?;
            self.write(shard, &self.buffer[..read])?;
            left -= read;
        }
        Ok(())
    }

    fn account(&mut self, shard: usize, payload: usize) {
        let bytes = self.out.len() + payload;
        self.out.clear();
        let target = &mut self.shards[shard];
        target.bytes += bytes as u64;
        target.room = target.room.saturating_sub(HEADERS_BYTES + payload);
        self.progress.stored(shard, bytes as u64);
    }

    /// Writes without ever blocking where a signal would not be seen.
    fn write(&self, shard: usize, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(AT_ONCE_BYTES) {
            self.wait_for_room(shard)?;
            self.shards[shard].write(piece)?;
        }
        Ok(())
    }

    fn wait_for_room(&self, shard: usize) -> Result<()> {
        let shard = &self.shards[shard];
        loop {
            let mut fds = [
                PollFd::new(&shard.file, PollFlags::OUT),
                PollFd::new(self.signals, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(shard.failed(error.into())),
            }
            let (room, signal) = (fds[0].revents(), fds[1].revents());
            if !signal.is_empty() {
                self.signals.check()?;
            }
            if !room.is_empty() {
                return Ok(());
            }
        }
    }

    /// The one image whose bytes matter, and which has some hundred of them.
    fn inventory(&mut self, image: &mut OpenImage, waiting: usize) -> Result<usize> {
        let mut bytes = vec![0; waiting.min(COPY_BYTES)];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&image.pipe, &mut bytes[..]))
            .map_err(Error::io(|| format!("read {} from CRIU", image.name)))?;
        if let Some(inventory) = &mut image.inventory {
            inventory.see(&bytes[..read]);
        }
        self.markers.file_data(&image.name, len32(read), &mut self.out);
        let shard = self.roomiest(read)?;
        self.write(shard, &self.out)?;
        self.write(shard, &bytes[..read])?;
        self.account(shard, read);
        Ok(read)
    }
}

impl Intake for SplicedIntake<'_> {
    fn readable(&mut self, image: &mut OpenImage) -> Result<Readable> {
        if self.known.insert(image.file) && !self.names.insert(image.name.clone()) {
            return Err(Error::DumpIncomplete(format!(
                "CRIU wrote {} twice, which criu-image-streamer's format cannot hold: use --format native",
                image.name
            )));
        }
        let mut waiting = waiting(image)?;
        if waiting == 0 {
            self.markers.file_eof(&image.name, &mut self.out);
            self.record(image, 0)?;
            return Ok(Readable::End);
        }
        while waiting > 0 {
            let taken = if image.inventory.is_some() {
                self.inventory(image, waiting)?
            } else {
                let piece = waiting.min(self.most_bytes);
                self.markers.file_data(&image.name, len32(piece), &mut self.out);
                self.record(image, piece)?;
                piece
            };
            image.taken += taken as u64;
            waiting -= taken.min(waiting);
        }
        Ok(Readable::More)
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn health(&mut self) -> Result<()> {
        Ok(())
    }

    fn commit(&mut self, _totals: &Totals) -> Result<Vec<ShardStat>> {
        std::mem::take(&mut self.markers).image_eof(&mut self.out);
        let shard = self.roomiest(0)?;
        self.write(shard, &self.out)?;
        self.account(shard, 0);
        // A pipe holds references to pages of the dumped process, and a reader may die with them.
        for shard in self.shards.iter().filter(|shard| shard.is_pipe) {
            while !pipe::is_drained(&shard.file).map_err(|error| shard.failed(error))? {
                std::thread::sleep(pipe::DRAIN_POLL);
                self.signals.check()?;
            }
        }
        Ok(self
            .shards
            .iter()
            .map(|shard| ShardStat { bytes: shard.bytes, duration_ms: 0 })
            .collect())
    }

    /// The stream ends without its last record: no reader takes it for an image.
    fn abort(&mut self, _reason: &str) {
        self.shards.clear();
    }

    fn explain(&mut self, error: Error) -> Error {
        error
    }
}

impl Shard {
    fn new(name: String, file: File) -> Self {
        let is_pipe = pipe::is_fifo(&file);
        if is_pipe {
            pipe::grow(&file, SHARD_PIPE_BYTES);
        }
        let capacity = if is_pipe { rustix::pipe::fcntl_getpipe_size(&file).ok() } else { None };
        let capacity = capacity.unwrap_or(SHARD_PIPE_BYTES);
        let splices = !file.metadata().is_ok_and(|meta| meta.file_type().is_socket());
        Shard { name, file, is_pipe, splices, capacity, room: 0, bytes: 0 }
    }

    fn look(&mut self) -> Result<()> {
        let waiting = if self.is_pipe {
            rustix::io::ioctl_fionread(&self.file).map_err(|error| self.failed(error.into()))?
        } else {
            0
        };
        self.room = self.capacity.saturating_sub(usize::try_from(waiting).unwrap_or(usize::MAX));
        Ok(())
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        (&self.file).write_all(bytes).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::io(|| format!("write {}", self.name))(error)
    }
}

/// Pieces are a part of a pipe, far below 32 bits.
fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
