//! What goes to the shards, and when a file is over.
//!
//! A file's last chunk may overtake others on the way through the stage threads, and several
//! threads may feed one file. So its end is sent by whoever sends the chunk that was still missing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vramstream::stage::AutoCompress;

use crate::{
    error::{Error, Result},
    format::{ChunkHeader, FileEnd, FileName, ImageError, Overlap, Runs},
    payload::Payload,
};

/// What is known of a file while it is on its way. Shared by the feeds, the stage threads and the
/// shards.
#[derive(Debug)]
pub(super) struct FileState {
    pub file: u32,
    pub name: FileName,
    pub compress: AutoCompress,
    progress: Mutex<FileProgress>,
}

#[derive(Debug, Default)]
struct FileProgress {
    sent: Runs,
    size: Option<u64>,
    over: bool,
}

/// What a shard writes.
#[derive(Debug)]
pub(super) enum Frame {
    Chunk(Arc<FileState>, ChunkHeader, Option<Payload>),
    End(Arc<FileState>, FileEnd),
}

impl FileState {
    pub(super) fn new(file: u32, name: FileName) -> Self {
        FileState { file, name, compress: AutoCompress::default(), progress: Mutex::default() }
    }

    /// A chunk of the file is about to be sent: the end, if nothing else was missing.
    pub(super) fn note(&self, header: &ChunkHeader) -> Result<Option<FileEnd>> {
        let mut progress = self.progress();
        progress.sent.add(header.offset, header.checksum()).map_err(|Overlap { from, to }| {
            Error::Image(ImageError::Overlap { name: self.name.clone(), from, to })
        })?;
        Ok(progress.end(self.file))
    }

    /// The file has ended with this size: its end, unless chunks of it are still to be sent.
    pub(super) fn ended(&self, size: u64) -> Result<Option<FileEnd>> {
        let mut progress = self.progress();
        if progress.size.replace(size).is_some() {
            return Err(ImageError::EndTwice(self.name.clone()).into());
        }
        Ok(progress.end(self.file))
    }

    fn progress(&self) -> MutexGuard<'_, FileProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileProgress {
    /// The end of the file, if this was the last thing that was missing.
    fn end(&mut self, file: u32) -> Option<FileEnd> {
        let checksum = self.sent.whole().ok()?;
        if self.over || self.size != Some(checksum.len) {
            return None;
        }
        self.over = true;
        Some(FileEnd { file, checksum })
    }
}
