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
    time::Duration,
};

use crossbeam_channel::{SendTimeoutError, Sender};

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

/// How often a wait looks up whether there is still a reason to wait.
const LOOK_UP: Duration = Duration::from_millis(50);

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
        bytes,
        sums,
        writes,
        ring: ring.clone(),
        watch: watch.clone(),
    });
    match feed(images, feeds.collect()) {
        Ok(()) => restore.finish(&mut || Ok(())).map(drop).map_err(failed),
        Err(Error::GivenUp) => Err(failed(restore.give_up())),
        Err(error) => {
            let _: GpuError<Error> = restore.give_up();
            Err(error)
        }
    }
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
            let file = feed.open(images)?;
            feed.run(file)
        });
    }
    let open = feeds.into_iter().map(|feed| {
        let file = feed.open(images)?;
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

/// Reads the contents of one GPU.
struct Feed {
    name: String,
    bytes: u64,
    sums: Option<GpuSums>,
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
        if size != self.bytes {
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
                self.send(Write::Zeros { offset, len: len as u64 })?;
            } else {
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
    fn check(&self, known: &GpuSums, found: &[u32], checked: usize) -> Result<usize> {
        let blocks = found.iter().zip(&known.blocks).skip(checked);
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
        loop {
            if self.watch.is_failing() {
                return Err(Error::GivenUp);
            }
            if let Some(chunk) = self.ring.take(LOOK_UP) {
                return Ok(chunk);
            }
        }
    }

    fn send(&self, mut write: Write) -> Result<()> {
        loop {
            match self.writes.send_timeout(write, LOOK_UP) {
                Ok(()) => return Ok(()),
                Err(SendTimeoutError::Timeout(_)) if self.watch.is_failing() => {
                    return Err(Error::GivenUp);
                }
                Err(SendTimeoutError::Timeout(back)) => write = back,
                Err(SendTimeoutError::Disconnected(_)) => return Err(Error::GivenUp),
            }
        }
    }
}

fn content(file: &str, what: &str) -> Error {
    Error::Content { file: file.to_owned(), what: what.to_owned() }
}
