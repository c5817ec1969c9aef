//! What goes to the shards, and when a file is over.
//!
//! A file's last chunk may overtake others on the way through the compressors. So its end is sent by
//! whoever sends the chunk that was still missing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::Sender;
use vramstream::stage::AutoCompress;

use crate::{
    error::Result,
    format::{ChunkHeader, FileEnd, FileName, Runs},
    payload::Payload,
};

/// What is known of a file while it is on its way. Shared by the pump, the workers and the shards.
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
}

/// What a shard writes.
#[derive(Debug)]
pub(super) enum Frame {
    Chunk(Arc<FileState>, ChunkHeader, Option<Payload>),
    End(Arc<FileState>, FileEnd),
}

/// A chunk of the file is about to be sent: notes it, and after the last one sends the end as well.
pub(super) fn send_frame(
    frames: &Sender<Frame>,
    frame: Frame,
    send: &dyn Fn(&Sender<Frame>, Frame) -> Result<()>,
) -> Result<()> {
    let Frame::Chunk(state, header, _) = &frame else { return send(frames, frame) };
    let state = Arc::clone(state);
    let checksum = header.checksum();
    let mut progress = state.progress();
    // The pump made the offsets, so pieces cannot overlap.
    let _ = progress.sent.add(header.offset, checksum);
    let end = progress.end(state.file);
    drop(progress);
    send(frames, frame)?;
    match end {
        Some(end) => send(frames, Frame::End(state, end)),
        None => Ok(()),
    }
}

impl FileState {
    pub(super) fn new(file: u32, name: FileName) -> Self {
        FileState { file, name, compress: AutoCompress::default(), progress: Mutex::default() }
    }

    /// The file has ended with this size: its end, unless chunks of it are still to be sent.
    pub(super) fn ended(&self, size: u64) -> Option<FileEnd> {
        let mut progress = self.progress();
        progress.size = Some(size);
        progress.end(self.file)
    }

    fn progress(&self) -> MutexGuard<'_, FileProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileProgress {
    /// The end of the file, if this was the last thing that was missing.
    fn end(&self, file: u32) -> Option<FileEnd> {
        let checksum = self.sent.whole().ok()?;
        (self.size == Some(checksum.len)).then_some(FileEnd { file, checksum })
    }
}
