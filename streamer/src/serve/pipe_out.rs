//! The writing end of CRIU's pipe.

use std::{
    io::{self, Write},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use vramstream::ring::refer_pages;

use crate::{
    error::{Error, Result},
    transport::pipe,
};

/// What the original streamer asks for; best effort.
const PIPE_BYTES: usize = 1 << 20;

/// Less than this is copied: it costs little, and the kernel packs it, while every reference takes a
/// page's place in the pipe.
const WORTH_REFERRING: usize = 64 << 10;

/// Zero bytes to refer to. Never written.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// A pipe that a client reads.
pub struct PipeOut {
    pipe: std::fs::File,
    name: String,
    moved: Arc<AtomicU64>,
    written: u64,
    closed: bool,
    splices: bool,
}

impl PipeOut {
    /// For the file `name`, whose size is known: a small one needs no large pipe. What it takes is
    /// added to `moved`.
    pub(super) fn new(pipe: OwnedFd, name: String, size: u64, moved: Arc<AtomicU64>) -> Self {
        let pipe = std::fs::File::from(pipe);
        if size > PIPE_BYTES as u64 / 16 {
            pipe::grow(&pipe, PIPE_BYTES);
        }
        let splices = pipe::is_fifo(&pipe);
        PipeOut { pipe, name, moved, written: 0, closed: false, splices }
    }

    /// How much it holds when it is empty; nothing if it is no pipe.
    pub(super) fn capacity(&self) -> u64 {
        rustix::pipe::fcntl_getpipe_size(&self.pipe).map_or(0, |bytes| bytes as u64)
    }

    /// Whether nothing waits in it to be read.
    pub(super) fn is_empty(&self) -> bool {
        rustix::io::ioctl_fionread(&self.pipe).is_ok_and(|waiting| waiting == 0)
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether the reader has closed its end: it does not want the rest, which is its right.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Gives bytes that will never change, without copying them if they are many: the pipe refers to
    /// their pages.
    pub fn refer(&mut self, bytes: &Bytes) -> Result<()> {
        self.refer_to(bytes)
    }

    /// Gives `len` zero bytes.
    pub fn zeros(&mut self, mut len: u64) -> Result<()> {
        while len > 0 && !self.closed {
            let piece = len.min(ZEROS.len() as u64);
            self.refer_to(&ZEROS[..usize::try_from(piece).unwrap_or(0)])?;
            len -= piece;
        }
        Ok(())
    }

    fn refer_to(&mut self, mut bytes: &[u8]) -> Result<()> {
        while self.splices && bytes.len() >= WORTH_REFERRING && !self.closed {
            match refer_pages(&self.pipe, bytes) {
                Ok(n) => {
                    self.count(n);
                    bytes = &bytes[n..];
                }
                Err(nix::errno::Errno::EINTR) => {}
                Err(
                    nix::errno::Errno::EINVAL
                    | nix::errno::Errno::ENOSYS
                    | nix::errno::Errno::EOPNOTSUPP,
                ) => {
                    self.splices = false;
                }
                Err(error) => self.failed(error.into())?,
            }
        }
        self.copy(bytes)
    }

    /// Gives bytes by copying them.
    pub fn copy(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() && !self.closed {
            match self.pipe.write(bytes) {
                Ok(n) => {
                    self.count(n);
                    bytes = &bytes[n..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.failed(error)?,
            }
        }
        Ok(())
    }

    fn count(&mut self, bytes: usize) {
        self.written += bytes as u64;
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn failed(&mut self, error: io::Error) -> Result<()> {
        if error.kind() == io::ErrorKind::BrokenPipe {
            self.closed = true;
            return Ok(());
        }
        Err(Error::io(|| format!("give {} to CRIU", self.name))(error))
    }
}
