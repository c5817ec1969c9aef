//! One connection to CRIU: requests and descriptors in, replies out, never blocking.

use std::{
    io::{self, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use prost::Message;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};

use crate::{
    error::{Error, Result},
    format::FileName,
    proto::criu::{ImgStreamerReplyEntry, ImgStreamerRequestEntry},
};

/// The longest request: a name of 255 bytes and its field tag, with room for fields to come.
pub const MAX_REQUEST_BYTES: u32 = 4096;

/// What CRIU asks for.
#[derive(Debug)]
pub enum Request {
    /// It names an image; on restore it now waits for a reply.
    Name(FileName),
    /// It sends its end of a pipe for the image named last.
    Pipe(FileName, OwnedFd),
    /// It will not ask for anything more.
    Closed,
}

/// A connection that is read when it is readable.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    socket: String,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Some bytes of the length, then of the message.
    Message(Vec<u8>),
    /// On restore: the name is known, the reply was not given yet.
    Reply(FileName),
    /// The descriptor is on its way.
    Pipe(FileName),
}

impl Connection {
    /// Takes over a non-blocking stream that was accepted at `socket`.
    pub fn new(stream: UnixStream, socket: String) -> Self {
        Connection { stream, socket, state: State::Message(Vec::new()) }
    }

    /// Reads what is there: the next request once it is whole, `None` when more has to come.
    ///
    /// Reads not a byte more than the message: the byte that carries the descriptor must be received
    /// by itself, or the descriptor is lost.
    pub fn receive(&mut self) -> Result<Option<Request>> {
        match std::mem::replace(&mut self.state, State::Message(Vec::new())) {
            State::Message(mut have) => {
                let wanted = match self.wanted(&have)? {
                    // A message of no bytes is a request without a name.
                    0 => return Err(self.client("an empty request")),
                    wanted => wanted,
                };
                let start = have.len();
                have.resize(start + wanted, 0);
                let got = self.read(|stream| stream.read(&mut have[start..]))?;
                have.truncate(start + got.unwrap_or(0));
                if got == Some(0) {
                    return if have.is_empty() {
                        Ok(Some(Request::Closed))
                    } else {
                        Err(self.client("it closed the connection in the middle of a request"))
                    };
                }
                if have.len() > 4 && self.wanted(&have)? == 0 {
                    let name = self.name(&have[4..])?;
                    self.state = State::Reply(name.clone());
                    return Ok(Some(Request::Name(name)));
                }
                self.state = State::Message(have);
                Ok(None)
            }
            State::Reply(name) => {
                self.state = State::Reply(name);
                Ok(None)
            }
            State::Pipe(name) => match self.receive_pipe()? {
                Some(pipe) => Ok(Some(Request::Pipe(name, pipe))),
                None => {
                    self.state = State::Pipe(name);
                    Ok(None)
                }
            },
        }
    }

    /// On dump there is no reply: the descriptor follows the name.
    pub fn expect_pipe(&mut self) {
        if let State::Reply(name) = std::mem::replace(&mut self.state, State::Message(Vec::new())) {
            self.state = State::Pipe(name);
        }
    }

    /// On restore: tells whether the image named last exists. If so, its descriptor follows.
    pub fn reply(&mut self, exists: bool) -> Result<()> {
        let reply = ImgStreamerReplyEntry { exists };
        let mut message = 0u32.to_le_bytes().to_vec();
        reply.encode(&mut message).map_err(|error| self.client(&error.to_string()))?;
        let len = u32::try_from(message.len() - 4).unwrap_or(0);
        message[..4].copy_from_slice(&len.to_le_bytes());
        // Six bytes: a client that reads its replies always has room for them.
        self.stream
            .write_all(&message)
            .map_err(Error::io(|| format!("reply to CRIU at {}", self.socket)))?;
        if exists {
            self.expect_pipe();
        } else {
            self.state = State::Message(Vec::new());
        }
        Ok(())
    }

    /// The process at the other end, if the kernel tells.
    pub fn peer_pid(&self) -> Option<i32> {
        let credentials = rustix::net::sockopt::socket_peercred(&self.stream).ok()?;
        Some(credentials.pid.as_raw_nonzero().get())
    }

    /// How many more bytes the message needs.
    fn wanted(&self, have: &[u8]) -> Result<usize> {
        let Some((len, body)) = have.split_first_chunk::<4>() else { return Ok(4 - have.len()) };
        let len = u32::from_le_bytes(*len);
        if len > MAX_REQUEST_BYTES {
            return Err(self.client(&format!("a request of {len} bytes")));
        }
        Ok(len as usize - body.len())
    }

    fn name(&self, message: &[u8]) -> Result<FileName> {
        let request = ImgStreamerRequestEntry::decode(message)
            .map_err(|_| self.client("a request that is not protobuf"))?;
        Ok(FileName::new(&request.filename)?)
    }

    fn receive_pipe(&self) -> Result<Option<OwnedFd>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let received = self.read(|stream| {
            let mut iov = [IoSliceMut::new(&mut byte)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            Ok(rustix::net::recvmsg(stream, &mut iov, &mut control, flags)?)
        })?;
        let Some(received) = received else { return Ok(None) };
        if received.bytes == 0 {
            return Err(self.client("it closed the connection before it sent a pipe"));
        }
        let pipe = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        match pipe {
            Some(pipe) => Ok(Some(pipe)),
            None if received.flags.contains(ReturnFlags::CTRUNC) => {
                let full = io::Error::from_raw_os_error(nix::libc::EMFILE);
                Err(Error::io(|| format!("take a pipe from CRIU at {}", self.socket))(full))
            }
            None => Err(self.client("a byte without a pipe")),
        }
    }

    /// Runs a call that does not block; `None` if there is nothing to read.
    fn read<T>(
        &self,
        mut call: impl FnMut(&mut &UnixStream) -> io::Result<T>,
    ) -> Result<Option<T>> {
        loop {
            match call(&mut &self.stream) {
                Ok(value) => return Ok(Some(value)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::io(|| format!("read from CRIU at {}", self.socket))(error));
                }
            }
        }
    }

    fn client(&self, what: &str) -> Error {
        Error::Client { socket: self.socket.clone(), what: what.to_owned() }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
