//! GPU contents that a plugin has handed over: from the BOs to the packer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vramstream::{
    device::Driver,
    gpu::{self, Contents, Drain, DumpJob, GpuError},
    handoff::{Direction, Job, Plugin},
    ring::Chunk,
};

use super::image::{Roll, Source};
use crate::{
    error::{Error, Result},
    format::{FileName, MAX_FILE_BYTES},
    pack::Feed,
    plugins::Mover,
    progress::Progress,
    vram::{PagesFile, SIZE_BYTES, VramFeed},
};

/// The roll, for the pump and for jobs.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedRoll(Arc<Mutex<Roll>>);

impl SharedRoll {
    pub(super) fn lock(&self) -> MutexGuard<'_, Roll> {
        // A roll that somebody has panicked with is never committed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dumps what plugins hand over.
pub(super) struct Dumps {
    feed: Feed,
    roll: SharedRoll,
    driver: Arc<dyn Driver>,
    progress: Progress,
}

/// A file that is being written.
struct Begun {
    name: FileName,
    number: u32,
    file: PagesFile,
    bytes: u64,
    contents: Contents,
}

impl Dumps {
    pub(super) fn new(
        feed: Feed,
        roll: &SharedRoll,
        driver: &Arc<dyn Driver>,
        progress: &Progress,
    ) -> Self {
        let (roll, driver, progress) = (roll.clone(), Arc::clone(driver), progress.clone());
        Dumps { feed, roll, driver, progress }
    }

    fn begin(&self, id: u32, contents: Contents) -> Result<Begun> {
        let file = PagesFile { id, gpu_id: contents.gpu_id };
        let bytes = contents.bytes().filter(|&bytes| bytes <= MAX_FILE_BYTES - SIZE_BYTES);
        let bytes = bytes.ok_or_else(|| GpuError::<Error>::Contents {
            gpu_id: contents.gpu_id,
            what: "its BOs are too large to be believed".into(),
        })?;
        let name = file.name()?;
        let number = self.roll.lock().begin(&name, Source::Gpu)?;
        self.progress.image_opened(&name);
        Ok(Begun { name, number, file, bytes, contents })
    }
}

impl Mover for Dumps {
    fn run(&self, job: Job, plugin: &Plugin) -> Result<()> {
        if job.direction == Direction::Restore {
            return Err(Error::Usage(
                "a process is to be restored from here, and this is a capture: give criu restore the --images-dir of vramstream serve".into(),
            ));
        }
        let begun: Vec<Begun> = job
            .gpus
            .into_iter()
            .map(|contents| self.begin(job.kfd_id, contents))
            .collect::<Result<_>>()?;
        plugin.accept()?;
        let (mut jobs, mut ends) = (Vec::new(), Vec::new());
        for Begun { name, number, file, bytes, contents } in begun {
            let feed = VramFeed::begin(self.feed.clone(), number, file, bytes)?;
            ends.push((name, number, feed.file_bytes()));
            self.progress.raw(SIZE_BYTES);
            let drain = Counted { feed, progress: self.progress.clone() };
            jobs.push(DumpJob { contents, drain });
        }
        let options = gpu::Options { most_in_flight: job.cap_bytes, ..gpu::Options::default() };
        gpu::dump(&self.driver, self.feed.ring(), jobs, options, &mut || {
            self.feed.go_on()?;
            Ok(plugin.check()?)
        })?;
        let mut roll = self.roll.lock();
        ends.iter().try_for_each(|(name, number, size)| roll.end(name, *number, *size))
    }

    fn failed(&self, error: Error) {
        // What follows from something else is not what is to be told.
        if !matches!(error, Error::GivenUp) {
            self.feed.fail(error);
        }
    }
}

/// Tells how far it is.
struct Counted {
    feed: VramFeed,
    progress: Progress,
}

impl Drain for Counted {
    type Error = Error;

    fn chunk(&mut self, offset: u64, chunk: Chunk, len: usize) -> Result<()> {
        self.feed.chunk(offset, chunk, len)?;
        self.progress.raw(len as u64);
        Ok(())
    }

    fn end(&mut self, bytes: u64) -> Result<()> {
        self.feed.end(bytes)
    }
}
