//! A thread's way into the image.

use std::sync::{Arc, atomic::Ordering};

use vramstream::{ring::Ring, stage::ZeroChecksums};

use super::{
    WAIT,
    frames::FileState,
    job::{Job, look},
    shared::Shared,
};
use crate::{
    error::{Error, Result},
    format::FileName,
    payload::Payload,
};

/// Takes chunks on one thread; a clone is for another one.
///
/// After [`Error::GivenUp`] there is nothing more to be done here: something has failed, here or
/// elsewhere, and the one who has the [`Packer`](super::Packer) learns what.
pub struct Feed {
    shared: Arc<Shared>,
    zeros: ZeroChecksums,
}

/// A file of the image, for every feed that has bytes of it. Clones are the same file.
#[derive(Debug, Clone)]
pub struct FileHandle(Arc<FileState>);

impl Feed {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Feed { shared: Arc::clone(shared), zeros: ZeroChecksums::default() }
    }

    /// Begins a file. The number is the caller's, and no other file of the image has it.
    pub fn file(&self, number: u32, name: FileName) -> FileHandle {
        self.shared.unended.fetch_add(1, Ordering::AcqRel);
        FileHandle(Arc::new(FileState::new(number, name)))
    }

    /// Takes a chunk of a file, from byte `offset` on. It is scanned for zeros and checksummed
    /// here, while the caller's core has its bytes.
    pub fn chunk(&mut self, file: &FileHandle, offset: u64, payload: Payload) -> Result<()> {
        self.shared.check_fault()?;
        let state = &file.0;
        let (header, payload) = look(state, offset, payload, &mut self.zeros);
        match payload {
            Some(payload) if state.compress.wants_try(self.shared.compression) => {
                let state = Arc::clone(state);
                self.shared.send_job(Job { state, offset, payload, header: Some(header) })
            }
            payload => self.shared.send_chunk(state, header, payload),
        }
    }

    /// The same, and the stage threads do all the work, if the packer has some.
    pub fn chunk_later(&mut self, file: &FileHandle, offset: u64, payload: Payload) -> Result<()> {
        if !self.shared.has_stages {
            return self.chunk(file, offset, payload);
        }
        self.shared.check_fault()?;
        let state = Arc::clone(&file.0);
        self.shared.send_job(Job { state, offset, payload, header: None })
    }

    /// The file has this size. Its chunks may still be on their way, or come later.
    pub fn end(&self, file: &FileHandle, size: u64) -> Result<()> {
        self.shared.check_fault()?;
        self.shared.end(&file.0, size)
    }

    /// The ring of the packer. Chunks may be of any other ring as well.
    pub fn ring(&self) -> &Ring {
        &self.shared.ring
    }

    /// An empty chunk of the packer's ring, if one is free.
    pub fn try_take(&self) -> Option<Payload> {
        Some(Payload { chunk: self.shared.ring.try_take()?, len: 0 })
    }

    /// An empty chunk of the packer's ring, waiting for one.
    pub fn take(&self) -> Result<Payload> {
        loop {
            if let Some(chunk) = self.shared.ring.take(WAIT) {
                return Ok(Payload { chunk, len: 0 });
            }
            self.shared.go_on()?;
        }
    }

    /// Whether to go on: for a thread that waits for something else.
    pub fn go_on(&self) -> Result<()> {
        self.shared.go_on()
    }

    /// The bytes cannot be had: there will be no image, and this is why.
    pub fn fail(&self, error: Error) {
        self.shared.fault.raise(error);
    }
}

impl Clone for Feed {
    fn clone(&self) -> Self {
        Feed::new(&self.shared)
    }
}
