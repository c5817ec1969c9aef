//! What the feeds, the stage threads and the packer share.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use vramstream::{ring::Ring, stage::Compression};

use super::{
    frames::{FileState, Frame},
    job::Job,
    queue::{Open, Queue},
};
use crate::{
    error::{Error, Result},
    fault::Fault,
    format::ChunkHeader,
    payload::Payload,
};

/// See the [module](self).
pub(super) struct Shared {
    pub fault: Arc<Fault>,
    /// The caller's reasons to stop.
    pub check: Box<dyn Fn() -> Result<()> + Send + Sync>,
    pub ring: Ring,
    pub compression: Compression,
    pub has_stages: bool,
    pub frames: Queue<Frame>,
    pub jobs: Queue<Job>,
    /// Files whose end has not been sent.
    pub unended: AtomicUsize,
}

impl Shared {
    /// Whether there is a reason to go on. The cause of a failure stays where it is: it is for the
    /// one who has the packer.
    pub(super) fn go_on(&self) -> Result<()> {
        self.check_fault()?;
        (self.check)().map_err(|error| self.fail(error))
    }

    /// The same for those who do not wait.
    pub(super) fn check_fault(&self) -> Result<()> {
        if self.fault.is_raised() { Err(Error::GivenUp) } else { Ok(()) }
    }

    /// Keeps a cause, and is what the one who met it gets.
    pub(super) fn fail(&self, error: Error) -> Error {
        if !matches!(error, Error::GivenUp) {
            self.fault.raise(error);
        }
        Error::GivenUp
    }

    /// Whether the ends of all files have been sent.
    pub(super) fn check_ended(&self) -> Result<()> {
        match self.unended.load(Ordering::Acquire) {
            0 => Ok(()),
            files => {
                let what = format!("{files} files of the image have not ended");
                Err(Error::DumpIncomplete(what))
            }
        }
    }

    /// Sends a chunk whose bytes were looked at; after the last one of a file, its end as well.
    pub(super) fn send_chunk(
        &self,
        state: &Arc<FileState>,
        header: ChunkHeader,
        payload: Option<Payload>,
    ) -> Result<()> {
        // Held from the note to the end: who closes the queue knows that all that is noted is sent.
        let frames = self.open(&self.frames, state)?;
        let end = state.note(&header).map_err(|error| self.fail(error))?;
        frames.send(Frame::Chunk(Arc::clone(state), header, payload), &|| self.go_on())?;
        match end {
            Some(end) => self.send_end(&frames, Frame::End(Arc::clone(state), end)),
            None => Ok(()),
        }
    }

    /// The file has this size: sends its end, unless chunks of it are still to be sent.
    pub(super) fn end(&self, state: &Arc<FileState>, size: u64) -> Result<()> {
        let frames = self.open(&self.frames, state)?;
        match state.ended(size).map_err(|error| self.fail(error))? {
            Some(end) => self.send_end(&frames, Frame::End(Arc::clone(state), end)),
            None => Ok(()),
        }
    }

    /// Leaves a chunk to the stage threads.
    pub(super) fn send_job(&self, job: Job) -> Result<()> {
        let jobs = self.open(&self.jobs, &job.state)?;
        jobs.send(job, &|| self.go_on())
    }

    fn send_end(&self, frames: &Open<'_, Frame>, end: Frame) -> Result<()> {
        frames.send(end, &|| self.go_on())?;
        self.unended.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    }

    fn open<'a, T>(&self, queue: &'a Queue<T>, state: &FileState) -> Result<Open<'a, T>> {
        queue.open().ok_or_else(|| {
            // A commit that is under way fails by this.
            self.fail(Error::DumpIncomplete(format!(
                "bytes of {} came after the end of the image",
                state.name
            )))
        })
    }
}
