//! The dumping side.

use std::{
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::Duration,
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice},
};

use super::{
    pages::Pages,
    wire::{CAPTURE_SOCKET, Request, connect, send_fd, send_message},
};
use crate::{
    deadline::{Deadline, STEP},
    images,
};

/// A CRIU that dumps.
#[derive(Debug)]
pub struct CaptureClient {
    socket: UnixStream,
    timeout: Duration,
}

impl CaptureClient {
    /// Connects to the streamer, waiting for it to listen.
    pub fn connect(dir: &Path) -> io::Result<Self> {
        Self::connect_within(dir, STEP)
    }

    /// The same, with a time that holds for each step of this client.
    pub fn connect_within(dir: &Path, timeout: Duration) -> io::Result<Self> {
        Ok(CaptureClient { socket: connect(dir, CAPTURE_SOCKET, timeout)?, timeout })
    }

    /// Opens an image for writing. Any number can be open at once.
    pub fn open(&self, name: impl AsRef<[u8]>) -> io::Result<ImageWriter> {
        self.request(name)?;
        self.pass_pipe()
    }

    /// Only asks, without the descriptor that must follow.
    pub fn request(&self, name: impl AsRef<[u8]>) -> io::Result<()> {
        send_message(&self.socket, &Request { filename: name.as_ref().to_vec() })
    }

    /// Passes the read end of a new pipe and keeps the write end.
    pub fn pass_pipe(&self) -> io::Result<ImageWriter> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        send_fd(&self.socket, &read)?;
        ImageWriter::new(write, self.timeout)
    }

    /// Passes any descriptor, where a pipe is expected.
    pub fn pass_fd(&self, fd: impl AsFd) -> io::Result<()> {
        send_fd(&self.socket, fd)
    }

    /// Writes a whole image.
    pub fn send(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.open(name)?.write_all(content)
    }

    /// The socket, for bytes outside of the protocol.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Ends a dump that went well: the inventory is the last image, then the socket is closed.
    pub fn finish(self) -> io::Result<()> {
        self.send("inventory.img", &images::inventory())
    }

    /// Closes the socket as a CRIU that failed does: no inventory.
    pub fn die(self) {}
}

/// The write end of an image's pipe. Dropping it ends the image.
#[derive(Debug)]
pub struct ImageWriter {
    pipe: OwnedFd,
    piece: usize,
    timeout: Duration,
}

impl ImageWriter {
    /// Of the write end of a pipe. It is made non-blocking: that is a property of this end only,
    /// the reader's end blocks as before.
    pub fn new(pipe: OwnedFd, timeout: Duration) -> io::Result<Self> {
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        Ok(ImageWriter { pipe, piece: 1 << 20, timeout })
    }

    /// Sets how many bytes go into the pipe by one system call at most.
    #[must_use]
    pub fn with_pieces_of(mut self, bytes: usize) -> Self {
        self.piece = bytes;
        self
    }

    /// Sets the size of the pipe.
    pub fn set_size(&self, bytes: usize) -> io::Result<()> {
        fcntl_setpipe_size(&self.pipe, bytes)?;
        Ok(())
    }

    /// The size of the pipe.
    pub fn size(&self) -> io::Result<usize> {
        Ok(fcntl_getpipe_size(&self.pipe)?)
    }

    /// A second descriptor of this end, as a forked child would have.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.pipe.try_clone()
    }

    /// Sends so many bytes of these pages by reference, from the start, and again from the start
    /// as often as it takes.
    pub fn send_pages(&self, pages: &Pages, bytes: u64) -> io::Result<()> {
        let mut left = bytes;
        let mut at = 0;
        while left > 0 {
            if at == pages.len() {
                at = 0;
            }
            let most = left.min(pages.len() - at).min(self.piece as u64);
            let most = usize::try_from(most).map_err(io::Error::other)?;
            let sent = self.when_writable(|| {
                splice(pages, Some(&mut at), &self.pipe, None, most, SpliceFlags::NONBLOCK)
            })?;
            left -= sent as u64;
        }
        Ok(())
    }

    fn when_writable(
        &self,
        mut write: impl FnMut() -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        let deadline = Deadline::after(self.timeout);
        loop {
            match write() {
                Err(rustix::io::Errno::AGAIN) => deadline.writable(&self.pipe)?,
                Err(rustix::io::Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }
}

impl Write for ImageWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = bytes.get(..self.piece).unwrap_or(bytes);
        self.when_writable(|| rustix::io::write(&self.pipe, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for ImageWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
