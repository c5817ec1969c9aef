//! GPU contents for a plugin that has handed over where they go: from the image to the BOs.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crossbeam_channel::Sender;
use vramstream::{
    device::Driver,
    gpu::{self, Contents, GpuError, Restore, RestoreJob, Watch, Write},
    handoff::{Direction, Job, Plugin},
    ring::{BUDGET_VARIABLE, Budget, Chunk, Ring},
};

use super::{ImageFiles, Pieces, Took};
use crate::{
    error::{Error, Result},
    fault::Fault,
    plugins::Mover,
    progress::Progress,
    vram::{PagesFile, SIZE_BYTES, SIZE_LEN},
};

/// How often a wait looks up whether there is still a reason to wait.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Restores what plugins hand over.
pub(super) struct Restores {
    files: Arc<dyn ImageFiles>,
    fault: Arc<Fault>,
    driver: Arc<dyn Driver>,
    progress: Progress,
    /// Made for the first job, and for all.
    ring: Mutex<Option<Ring>>,
}

/// The contents of one GPU in the image.
struct Source {
    file: PagesFile,
    /// Of contents.
    bytes: u64,
    pieces: Box<dyn Pieces>,
}

impl Restores {
    pub(super) fn new(
        files: &Arc<dyn ImageFiles>,
        fault: &Arc<Fault>,
        driver: &Arc<dyn Driver>,
        progress: &Progress,
    ) -> Self {
        Restores {
            files: Arc::clone(files),
            fault: Arc::clone(fault),
            driver: Arc::clone(driver),
            progress: progress.clone(),
            ring: Mutex::default(),
        }
    }

    fn source(&self, id: u32, contents: &Contents) -> Result<Source> {
        let file = PagesFile { id, gpu_id: contents.gpu_id };
        let name = file.name()?;
        let pieces = self.files.open(&name)?;
        let pieces = pieces.ok_or_else(|| Error::Misfit(format!("{file} is not in the image")))?;
        let bytes = contents.bytes().ok_or_else(|| GpuError::<Error>::Contents {
            gpu_id: contents.gpu_id,
            what: "its BOs are too large to be believed".into(),
        })?;
        if pieces.size() != bytes.saturating_add(SIZE_BYTES) {
            return Err(Error::Misfit(format!(
                "{file} has {} bytes of contents, and the GPU has BOs of {bytes}",
                pieces.size().saturating_sub(SIZE_BYTES)
            )));
        }
        self.progress.image_opened(&name);
        Ok(Source { file, bytes, pieces })
    }

    fn ring(&self, cap_bytes: Option<u64>, gpus: usize) -> Result<Ring> {
        let mut made = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ring) = &*made {
            return Ok(ring.clone());
        }
        let budget = match cap_bytes {
            Some(bytes) => Budget::parse(&bytes.to_string()),
            None => Budget::from_env(),
        };
        let budget = budget.map_err(|error| Error::Usage(error.to_string()))?;
        let ring = budget.ring(gpus).map_err(|error| {
            Error::Usage(format!("{error}: a smaller {BUDGET_VARIABLE} needs less"))
        })?;
        Ok(made.insert(ring).clone())
    }

    fn restore(&self, job: Job, sources: Vec<Source>, plugin: &Plugin) -> Result<()> {
        let ring = self.ring(job.cap_bytes, job.gpus.len())?;
        let jobs = job.gpus.into_iter().map(|contents| RestoreJob { contents }).collect();
        let (restore, senders) =
            Restore::start(&self.driver, &ring, jobs, gpu::Options::default())?;
        let watch = restore.watch();
        let cause = Cause::default();
        let restored = std::thread::scope(|scope| {
            for (source, writes) in sources.into_iter().zip(senders) {
                let progress = self.progress.clone();
                let mut feeder =
                    Feeder { ring: &ring, watch: &watch, writes, progress, larger: Vec::new() };
                let cause = &cause;
                let thread = std::thread::Builder::new().name("contents".into());
                let started = thread.spawn_scoped(scope, move || {
                    if let Err(error) = feeder.run(source) {
                        cause.note(error);
                        // A worker that is left alone would say that bytes are missing.
                        feeder.wait_for_the_end();
                    }
                });
                if let Err(error) = started {
                    cause.note(Error::io(|| "start a thread for the contents of a GPU")(error));
                }
            }
            // The workers end when they have got everything, or something has failed.
            restore.finish(&mut || {
                if cause.is_noted() || self.fault.is_raised() {
                    return Err(Error::GivenUp);
                }
                Ok(plugin.check()?)
            })
        });
        match (restored.map_err(Error::from), cause.take()) {
            (Ok(_), None) => Ok(()),
            (Ok(_) | Err(Error::GivenUp), Some(cause)) => Err(cause),
            (Err(error), _) => Err(error),
        }
    }
}

impl Mover for Restores {
    fn run(&self, job: Job, plugin: &Plugin) -> Result<()> {
        if job.direction == Direction::Dump {
            return Err(Error::Usage(
                "a process is to be dumped to here, and this serves an image: give criu dump the --images-dir of vramstream capture".into(),
            ));
        }
        let sources = job.gpus.iter().map(|contents| self.source(job.kfd_id, contents));
        let sources = sources.collect::<Result<_>>()?;
        plugin.accept()?;
        self.restore(job, sources, plugin)
    }

    fn failed(&self, error: Error) {
        // What follows from something else is not what is to be told.
        if !matches!(error, Error::GivenUp) {
            self.fault.raise(error);
        }
    }
}

/// The first thing that goes wrong on a feeder.
#[derive(Default)]
struct Cause(Mutex<Option<Error>>);

impl Cause {
    fn lock(&self) -> MutexGuard<'_, Option<Error>> {
        // It is never half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps it, unless it follows from something else.
    fn note(&self, error: Error) {
        if !matches!(error, Error::GivenUp) {
            self.lock().get_or_insert(error);
        }
    }

    fn is_noted(&self) -> bool {
        self.lock().is_some()
    }

    fn take(&self) -> Option<Error> {
        self.lock().take()
    }
}

/// Reads the contents of one GPU, and sends them to its worker.
struct Feeder<'a> {
    ring: &'a Ring,
    watch: &'a Watch,
    writes: Sender<Write>,
    progress: Progress,
    /// For pieces that are larger than a chunk.
    larger: Vec<u8>,
}

impl Feeder<'_> {
    fn run(&mut self, mut source: Source) -> Result<()> {
        let mut at = 0;
        let mut head = Head::default();
        let end = SIZE_BYTES + source.bytes;
        loop {
            let mut chunk = self.chunk()?;
            match source.pieces.take(&mut chunk)? {
                Took::Bytes(len) => {
                    self.bytes(&source, &mut head, at, chunk, len)?;
                    at += len as u64;
                }
                Took::Zeros(len) => {
                    drop(chunk);
                    self.zeros(&source, &mut head, at, len)?;
                    at += len;
                }
                Took::Larger(len) => {
                    drop(chunk);
                    at += self.larger(&mut source, &mut head, at, len)?;
                }
                Took::End => break,
            }
        }
        if at != end {
            // Its size was the right one when it was opened.
            let what = format!("{} ends after {at} of {end} bytes", source.file);
            return Err(Error::Misfit(what));
        }
        Ok(())
    }

    fn bytes(
        &mut self,
        source: &Source,
        head: &mut Head,
        at: u64,
        chunk: Chunk,
        len: usize,
    ) -> Result<()> {
        let skip = head.see(source, at, &chunk[..len])?;
        if skip == len {
            return Ok(());
        }
        let offset = at + skip as u64 - SIZE_BYTES;
        self.send(Write::Bytes { offset, chunk, range: skip..len })?;
        self.progress.raw((len - skip) as u64);
        Ok(())
    }

    fn zeros(&mut self, source: &Source, head: &mut Head, at: u64, len: u64) -> Result<()> {
        let first = SIZE_BYTES.saturating_sub(at).min(len);
        let first = usize::try_from(first).unwrap_or(SIZE_LEN);
        let skip = head.see(source, at, &[0; SIZE_LEN][..first])? as u64;
        if skip == len {
            return Ok(());
        }
        self.send(Write::Zeros { offset: at + skip - SIZE_BYTES, len: len - skip })?;
        self.progress.raw(len - skip);
        Ok(())
    }

    /// A piece that no chunk has room for, in chunks: how many bytes it was.
    fn larger(&mut self, source: &mut Source, head: &mut Head, at: u64, len: usize) -> Result<u64> {
        let mut piece = std::mem::take(&mut self.larger);
        if piece.len() < len {
            piece.resize(len, 0);
        }
        let mut done = 0;
        match source.pieces.take(&mut piece[..len])? {
            Took::Bytes(len) => {
                for part in piece[..len].chunks(self.ring.chunk_bytes()) {
                    let mut chunk = self.chunk()?;
                    chunk[..part.len()].copy_from_slice(part);
                    self.bytes(source, head, at + done, chunk, part.len())?;
                    done += part.len() as u64;
                }
            }
            Took::Zeros(len) => {
                self.zeros(source, head, at, len)?;
                done = len;
            }
            Took::Larger(_) | Took::End => {}
        }
        self.larger = piece;
        Ok(done)
    }

    fn chunk(&self) -> Result<Chunk> {
        self.watch.take(self.ring).ok_or(Error::GivenUp)
    }

    fn send(&self, write: Write) -> Result<()> {
        self.watch.send(&self.writes, write).ok_or(Error::GivenUp)
    }

    fn wait_for_the_end(&self) {
        while !self.watch.is_failing() {
            std::thread::sleep(LOOK_UP);
        }
    }
}

/// The size in front of the contents.
#[derive(Default)]
struct Head([u8; SIZE_LEN]);

impl Head {
    /// Looks at bytes that come in order: how many of them belong to the size.
    fn see(&mut self, source: &Source, at: u64, bytes: &[u8]) -> Result<usize> {
        let Some(at) = usize::try_from(at).ok().filter(|&at| at < SIZE_LEN) else { return Ok(0) };
        let len = bytes.len().min(SIZE_LEN - at);
        self.0[at..at + len].copy_from_slice(&bytes[..len]);
        let said = u64::from_le_bytes(self.0);
        if at + len == SIZE_LEN && said != source.bytes {
            let Source { file, bytes, .. } = source;
            return Err(Error::Misfit(format!(
                "{file} announces {said} bytes of contents, and the GPU has BOs of {bytes}"
            )));
        }
        Ok(len)
    }
}
