//! The restoring side.

use std::{
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::Duration,
};

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::wire::{Reply, Request, SERVE_SOCKET, connect, receive_message, send_fd, send_message};
use crate::deadline::{Deadline, STEP};

/// A CRIU that restores.
#[derive(Debug)]
pub struct ServeClient {
    socket: UnixStream,
    timeout: Duration,
    pipe_bytes: Option<usize>,
}

impl ServeClient {
    /// Connects to the streamer, waiting for it to listen.
    pub fn connect(dir: &Path) -> io::Result<Self> {
        Self::connect_within(dir, STEP)
    }

    /// The same, with a time that holds for each step of this client.
    pub fn connect_within(dir: &Path, timeout: Duration) -> io::Result<Self> {
        let socket = connect(dir, SERVE_SOCKET, timeout)?;
        Ok(ServeClient { socket, timeout, pipe_bytes: None })
    }

    /// Makes all further pipes this size before they are passed.
    #[must_use]
    pub fn with_pipe_size(mut self, bytes: usize) -> Self {
        self.pipe_bytes = Some(bytes);
        self
    }

    /// Asks for an image: `None` if the streamer says that there is no such one.
    pub fn open(&self, name: impl AsRef<[u8]>) -> io::Result<Option<ImageReader>> {
        if !self.request(name)? {
            return Ok(None);
        }
        self.pass_pipe().map(Some)
    }

    /// Only asks, without the descriptor that must follow where the answer is yes.
    pub fn request(&self, name: impl AsRef<[u8]>) -> io::Result<bool> {
        send_message(&self.socket, &Request { filename: name.as_ref().to_vec() })?;
        Ok(receive_message::<Reply>(&self.socket)?.exists)
    }

    /// Passes the write end of a new pipe and keeps the read end.
    pub fn pass_pipe(&self) -> io::Result<ImageReader> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        if let Some(bytes) = self.pipe_bytes {
            fcntl_setpipe_size(&write, bytes)?;
        }
        send_fd(&self.socket, &write)?;
        Ok(ImageReader { pipe: read, timeout: self.timeout })
    }

    /// Reads a whole image, if there is one of this name.
    pub fn read(&self, name: impl AsRef<[u8]>) -> io::Result<Option<Vec<u8>>> {
        let Some(mut reader) = self.open(name)? else { return Ok(None) };
        let mut content = Vec::new();
        reader.read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// The socket, for bytes outside of the protocol.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }
}

/// The read end of an image's pipe. Each read waits for the client's step time at most.
#[derive(Debug)]
pub struct ImageReader {
    pipe: OwnedFd,
    timeout: Duration,
}

impl ImageReader {
    /// Of the read end of a pipe.
    pub fn new(pipe: OwnedFd, timeout: Duration) -> Self {
        ImageReader { pipe, timeout }
    }
}

impl Read for ImageReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Deadline::after(self.timeout).readable(&self.pipe)?;
        Ok(rustix::io::read(&self.pipe, buffer)?)
    }
}

impl AsFd for ImageReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
