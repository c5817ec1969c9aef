//! The contents of GPUs from files, and from pipes.
//!
//! Files are read at the same time, one thread for each; pipes one after the other, since a streamer
//! may serve no other way. All threads have ended when this returns: a task that CRIU restores must
//! have one.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    sync::Arc,
    thread,
};

use crossbeam_channel::Sender;

use super::super::{
    error::{Error, Result, from_gpu},
    images::Images,
};
use crate::{
    device::Driver,
    gpu::{self, Contents, GpuError, Restore, RestoreJob, Watch, Write},
    image::{BLOCK_BYTES, BlockSums, GpuSums, ImageError, ImageName, Sums, framing},
    ring::{Budget, Chunk, Ring},
    stage::is_zero,
};

/// Fills the BOs of all GPUs of a process.
pub(super) fn restore(
    images: Images<'_>,
    driver: &Arc<dyn Driver>,
    budget: Budget,
    id: u32,
    sums: Option<Sums>,
    contents: Vec<Contents>,
) -> Result<()> {
    if contents.is_empty() {
        return Ok(());
    }
    let feeds = contents.iter().map(|contents| {
        let gpu_id = contents.gpu_id;
        let name = ImageName::Pages { id, gpu_id }.to_string();
        let too_many = || content(&name, "its BOs are too large to be believed");
        let bytes = contents.bytes().ok_or_else(too_many)?;
        let sums = match &sums {
            None => None,
            // A dump through a streamer that has checksums itself has none of contents.
            Some(sums) if sums.gpus.is_empty() => None,
            Some(sums) => Some(of_gpu(sums, &name, gpu_id, bytes)?),
        };
        Ok((name, bytes, sums))
    });
    let feeds = feeds.collect::<Result<Vec<_>>>()?;
    let bytes = contents.iter().filter_map(Contents::bytes).fold(0, u64::saturating_add);
    let ring = budget.ring_for(contents.len(), bytes)?;
    let jobs = contents.into_iter().map(|contents| RestoreJob { contents }).collect();
    let process = ImageName::Kfd { id }.to_string();
    let failed = |error| from_gpu(&process, error);
    let (restore, senders) =
        Restore::<Error>::start(driver, &ring, jobs, gpu::Options::default()).map_err(failed)?;
    let watch = restore.watch();
    let feeds = feeds.into_iter().zip(senders).map(|((name, bytes, sums), writes)| Feed {
        name,
        start: 0,
        bytes,
        has_size: true,
        sums: sums.map(|sums| sums.blocks),
        writes,
        ring: ring.clone(),
        watch: watch.clone(),
    });
    finish(restore, feed(images, feeds.collect()), &process)
}

/// A file with the contents of one BO.
pub(super) struct Part {
    pub name: String,
    /// Bytes of contents.
    pub bytes: u64,
    /// Their checksums; without any, the file is one that does not say its size either.
    pub sums: Option<Vec<u32>>,
}

/// Fills the BOs of a GPU from one file each, in the same order; `whose` they are, for messages.
pub(super) fn restore_parts(
    images: Images<'_>,
    driver: &Arc<dyn Driver>,
    budget: Budget,
    whose: &str,
    parts: Vec<Part>,
    contents: Contents,
) -> Result<()> {
    let ring = budget.ring(1)?;
    let jobs = vec![RestoreJob { contents }];
    let started = Restore::<Error>::start(driver, &ring, jobs, gpu::Options::default());
    let (restore, senders) = started.map_err(|error| from_gpu(whose, error))?;
    let Some(writes) = senders.into_iter().next() else { return Err(Error::GivenUp) };
    let watch = restore.watch();
    let mut start = 0;
    let fed = parts.into_iter().try_for_each(|part| {
        let feed = Feed {
            name: part.name,
            start,
            bytes: part.bytes,
            has_size: part.sums.is_some(),
            sums: part.sums,
            writes: writes.clone(),
            ring: ring.clone(),
            watch: watch.clone(),
        };
        start += part.bytes;
        let file = feed.open(images)?;
        feed.run(file)
    });
    drop(writes);
    finish(restore, fed, whose)
}

/// The end, after all that was read was given to the GPUs, or could not be.
fn finish(restore: Restore<Error>, fed: Result<()>, whose: &str) -> Result<()> {
    let failed = |error| from_gpu(whose, error);
    match fed {
        Ok(()) => restore.finish(&mut || Ok(())).map(drop).map_err(failed),
        Err(Error::GivenUp) => Err(failed(restore.give_up())),
        Err(error) => {
            let _: GpuError<Error> = restore.give_up();
            Err(error)
        }
    }
}

/// Whether the files of contents are there and as long as the BOs want, before anything is made: for
/// each GPU its bytes. What comes through pipes cannot be looked at ahead.
pub(super) fn look(
    images: Images<'_>,
    id: u32,
    gpus: impl Iterator<Item = (u32, u64)>,
) -> Result<()> {
    if images.are_streamed() {
        return Ok(());
    }
    for (gpu_id, bytes) in gpus {
        let name = ImageName::Pages { id, gpu_id }.to_string();
        let file = open(images, &name, bytes)?;
        let found = file.metadata().map_err(Error::file(&name, "look at"))?.len();
        let expected = bytes.saturating_add(framing::SIZE_BYTES as u64);
        if found < expected {
            return Err(ImageError::Short { file: name, expected, found }.into());
        }
    }
    Ok(())
}

/// Opens a file of contents: it says that it has so many bytes.
fn open(images: Images<'_>, name: &str, bytes: u64) -> Result<File> {
    let mut file = images.open(name)?.ok_or_else(|| content(name, "it is missing"))?;
    let size = framing::read_size(name, &mut file)?;
    if size != bytes {
        let what = format!("damaged: it has contents of {size} bytes, and the BOs have {bytes}");
        return Err(content(name, &what));
    }
    Ok(file)
}

fn of_gpu(sums: &Sums, name: &str, gpu_id: u32, bytes: u64) -> Result<GpuSums> {
    match sums.gpu(gpu_id) {
        Some(gpu) if gpu.bytes == bytes => Ok(gpu.clone()),
        Some(gpu) => {
            let said = gpu.bytes;
            Err(content(
                name,
                &format!("its checksums are of {said} bytes, and its BOs have {bytes}"),
            ))
        }
        None => {
            Err(content(name, "damaged: there are checksums of other GPUs, and none of this one"))
        }
    }
}

fn feed(images: Images<'_>, feeds: Vec<Feed>) -> Result<()> {
    if images.are_streamed() {
        return feeds.into_iter().try_for_each(|feed| {
            let file = open(images, &feed.name, feed.bytes)?;
            feed.run(file)
        });
    }
    let open = feeds.into_iter().map(|feed| {
        let file = open(images, &feed.name, feed.bytes)?;
        Ok((feed, file))
    });
    let open = open.collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| {
        let mut threads = Vec::with_capacity(open.len());
        let mut answer = Ok(());
        for (feed, file) in open {
            let name = feed.name.clone();
            match thread::Builder::new().spawn_scoped(scope, move || feed.run(file)) {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    answer = Err(Error::file(&name, "start a thread to read")(source));
                    break;
                }
            }
        }
        for thread in threads {
            let ended = thread.join().unwrap_or(Err(Error::GivenUp));
            // What somebody gave up for is told by another.
            if matches!(answer, Ok(()) | Err(Error::GivenUp)) && ended.is_err() {
                answer = ended;
            }
        }
        answer
    })
}

/// Reads contents of a GPU: all of them, or those of one BO.
struct Feed {
    name: String,
    /// Where among the GPU's contents they begin.
    start: u64,
    bytes: u64,
    /// Whether the file says what size it has.
    has_size: bool,
    sums: Option<Vec<u32>>,
    writes: Sender<Write>,
    ring: Ring,
    watch: Watch,
}

impl Feed {
    /// Opens the file: it has as many bytes as the BOs.
    fn open(&self, images: Images<'_>) -> Result<File> {
        let file = images.open(&self.name)?;
        let mut file = file.ok_or_else(|| content(&self.name, "it is missing"))?;
        let size = framing::read_size(&self.name, &mut file)?;
        if self.has_size && size != self.bytes {
            let bytes = self.bytes;
            let what =
                format!("damaged: it has contents of {size} bytes, and the BOs have {bytes}");
            return Err(content(&self.name, &what));
        }
        Ok(file)
    }

    fn run(self, mut file: File) -> Result<()> {
        let mut sums = BlockSums::default();
        let (mut offset, mut checked) = (0, 0);
        while offset < self.bytes {
            let mut chunk = self.take()?;
            let len = usize::try_from(self.bytes - offset).unwrap_or(usize::MAX).min(chunk.len());
            self.fill(&mut file, offset, &mut chunk[..len])?;
            if let Some(known) = &self.sums {
                sums.update(&chunk[..len]);
                checked = self.check(known, sums.full(), checked)?;
            }
            if is_zero(&chunk[..len]) {
                drop(chunk);
                self.send(Write::Zeros { offset: self.start + offset, len: len as u64 })?;
            } else {
                let offset = self.start + offset;
                self.send(Write::Bytes { offset, chunk, range: 0..len })?;
            }
            offset += len as u64;
        }
        if let Some(known) = &self.sums {
            self.check(known, &sums.finish(), checked)?;
        }
        Ok(())
    }

    fn fill(&self, file: &mut File, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read(&mut bytes[filled..]) {
                Ok(0) => {
                    let header = framing::SIZE_BYTES as u64;
                    let (file, expected) = (self.name.clone(), self.bytes + header);
                    let found = offset + filled as u64 + header;
                    return Err(ImageError::Short { file, expected, found }.into());
                }
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::file(&self.name, "read")(error)),
            }
        }
        Ok(())
    }

    /// Compares the blocks from `checked` on.
    fn check(&self, known: &[u32], found: &[u32], checked: usize) -> Result<usize> {
        let blocks = found.iter().zip(known).skip(checked);
        if let Some(at) = blocks.clone().position(|(found, known)| found != known) {
            let block = (checked + at) as u64 * u64::from(BLOCK_BYTES);
            let what = format!(
                "damaged: the block of contents at byte {} has another checksum than when it was dumped",
                block + framing::SIZE_BYTES as u64
            );
            return Err(content(&self.name, &what));
        }
        Ok(found.len())
    }

    fn take(&self) -> Result<Chunk> {
        self.watch.take(&self.ring).ok_or(Error::GivenUp)
    }

    fn send(&self, write: Write) -> Result<()> {
        self.watch.send(&self.writes, write).ok_or(Error::GivenUp)
    }
}

fn content(file: &str, what: &str) -> Error {
    Error::Content { file: file.to_owned(), what: what.to_owned() }
}
