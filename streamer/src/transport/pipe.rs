//! Shards on descriptors that the caller gives: pipes, FIFOs, sockets, files, standard input and
//! output.

use std::{
    fs::File,
    io::{self, IoSlice, Read, Write},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use super::{Destination, Origin, ShardReader, ShardWriter};
use crate::{
    error::{Error, Result},
    format::ImageId,
    payload::Payload,
};

/// What the original streamer asks for; more room lets a reader and a writer run side by side.
/// Best effort: the limits of a user may forbid it, and it is never needed.
const PIPE_BYTES: usize = 1 << 20;

/// How often a shard pipe is looked at while its reader drains it.
pub const DRAIN_POLL: Duration = Duration::from_millis(2);

/// Descriptors to write shards to, with a name for each.
#[derive(Debug)]
pub struct PipeDestination {
    shards: Vec<(String, File)>,
    count: u32,
}

impl PipeDestination {
    /// Takes the descriptors over.
    pub fn new(shards: Vec<(String, OwnedFd)>) -> Self {
        let shards: Vec<_> = shards.into_iter().map(|(name, fd)| (name, File::from(fd))).collect();
        let count = u32::try_from(shards.len()).unwrap_or(u32::MAX);
        PipeDestination { shards, count }
    }
}

impl Destination for PipeDestination {
    fn shards(&self) -> u32 {
        self.count
    }

    /// A chunk is copied twice, from CRIU's pipe and to the shard's: it should still be in a core's
    /// own cache the second time.
    fn chunk_bytes(&self) -> usize {
        256 << 10
    }

    fn open(&mut self, _image: ImageId) -> Result<Vec<Box<dyn ShardWriter>>> {
        let open = |(name, file)| Box::new(PipeWriter::new(name, file)) as Box<dyn ShardWriter>;
        Ok(self.shards.drain(..).map(open).collect())
    }

    fn commit(&mut self, _check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn abort(&mut self, _reason: &str) {}
}

/// One shard that is a pipe (or anything else that can be written).
#[derive(Debug)]
struct PipeWriter {
    name: String,
    file: File,
    is_pipe: bool,
}

impl PipeWriter {
    fn new(name: String, file: File) -> Self {
        let is_pipe = is_fifo(&file);
        if is_pipe {
            grow(&file, PIPE_BYTES);
        }
        PipeWriter { name, file, is_pipe }
    }

    fn failed(&self, error: impl Into<io::Error>) -> Error {
        Error::io(|| format!("write {}", self.name))(error)
    }
}

impl ShardWriter for PipeWriter {
    fn describe(&self) -> &str {
        &self.name
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(Error::io(|| format!("write {}", self.name)))
    }

    fn write_chunk(&mut self, head: &[u8], payload: Payload) -> Result<()> {
        let mut slices = [IoSlice::new(head), IoSlice::new(payload.bytes())];
        let mut rest = &mut slices[..];
        while rest.iter().any(|slice| !slice.is_empty()) {
            match self.file.write_vectored(rest) {
                Ok(0) => return Err(self.failed(io::Error::from(io::ErrorKind::WriteZero))),
                Ok(written) => IoSlice::advance_slices(&mut rest, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    /// A pipe is safe when its reader has taken the bytes: one that dies with the last of them still
    /// in the pipe has not. So this waits for the pipe to be empty.
    fn finish(&mut self) -> Result<()> {
        if !self.is_pipe {
            return Ok(());
        }
        while !is_drained(&self.file).map_err(|error| self.failed(error))? {
            std::thread::sleep(DRAIN_POLL);
        }
        Ok(())
    }
}

/// Descriptors to read shards from, with a name for each.
#[derive(Debug)]
pub struct PipeOrigin {
    shards: Vec<(String, File)>,
}

impl PipeOrigin {
    /// Takes the descriptors over.
    pub fn new(shards: Vec<(String, OwnedFd)>) -> Self {
        let shards = shards.into_iter().map(|(name, fd)| (name, File::from(fd))).collect();
        PipeOrigin { shards }
    }
}

impl Origin for PipeOrigin {
    fn open(&mut self) -> Result<Vec<Box<dyn ShardReader>>> {
        let open = |(name, file)| {
            if is_fifo(&file) {
                grow(&file, PIPE_BYTES);
            }
            Box::new(PipeReader { name, file }) as Box<dyn ShardReader>
        };
        Ok(self.shards.drain(..).map(open).collect())
    }
}

#[derive(Debug)]
struct PipeReader {
    name: String,
    file: File,
}

impl Read for PipeReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read(buf)
    }
}

impl ShardReader for PipeReader {
    fn describe(&self) -> &str {
        &self.name
    }

    fn file(&self) -> Option<&File> {
        self.file.metadata().is_ok_and(|meta| meta.is_file()).then_some(&self.file)
    }
}

/// Whether a descriptor is a pipe or FIFO.
pub fn is_fifo(file: &File) -> bool {
    use std::os::unix::fs::FileTypeExt;
    file.metadata().is_ok_and(|meta| meta.file_type().is_fifo())
}

/// Asks for a larger pipe, halving the wish until it is granted. Never shrinks one, and is content
/// with what there is.
pub fn grow(pipe: impl AsFd, bytes: usize) {
    let have = rustix::pipe::fcntl_getpipe_size(&pipe).unwrap_or(0);
    let mut wish = bytes;
    while wish > have && rustix::pipe::fcntl_setpipe_size(&pipe, wish).is_err() {
        wish /= 2;
    }
}

/// Answers that mean "this kernel, file system or descriptor does not splice", not "it failed".
pub fn cannot_splice(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    matches!(error, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Whether the reader of a pipe has taken all of it; an error if it has died before that.
pub fn is_drained(pipe: &File) -> io::Result<bool> {
    if rustix::io::ioctl_fionread(pipe)? == 0 {
        return Ok(true);
    }
    if reader_lives(pipe) { Ok(false) } else { Err(io::Error::from_raw_os_error(nix::libc::EPIPE)) }
}

fn reader_lives(pipe: &File) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::new(pipe, PollFlags::empty())];
    match poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) => !fds[0].revents().contains(PollFlags::ERR),
        Err(_) => true,
    }
}
