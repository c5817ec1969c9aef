//! The bytes of the protocol: framed protobuf messages, and descriptors passed with one byte.

use std::{
    io::{self, IoSlice, Read, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::Duration,
};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use prost::Message;

use crate::deadline::Deadline;

/// Where a capture listens.
pub const CAPTURE_SOCKET: &str = "streamer-capture.sock";
/// Where a serve listens.
pub const SERVE_SOCKET: &str = "streamer-serve.sock";

/// A request for an image, in both directions. The name is bytes, so that a test can send what a
/// string cannot hold; on the wire it is the same.
#[derive(Clone, PartialEq, Message)]
pub struct Request {
    /// The name of the image.
    #[prost(bytes = "vec", required, tag = "1")]
    pub filename: Vec<u8>,
}

/// The answer to a request on the serve side.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Reply {
    /// Whether there is such an image.
    #[prost(bool, required, tag = "1")]
    pub exists: bool,
}

/// Connects, waiting for the socket to be there.
pub fn connect(dir: &Path, socket: &str, timeout: Duration) -> io::Result<UnixStream> {
    let path = dir.join(socket);
    let stream =
        Deadline::after(timeout).until(
            &format!("{}", path.display()),
            || match UnixStream::connect(&path) {
                Ok(stream) => Ok(Some(stream)),
                Err(error) => match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(None),
                    _ => Err(error),
                },
            },
        )?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    Ok(stream)
}

/// Sends a message behind its length.
pub fn send_message(mut socket: &UnixStream, message: &impl Message) -> io::Result<()> {
    let body = message.encode_to_vec();
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    socket.write_all(&[&length.to_le_bytes()[..], &body].concat())
}

/// Receives a message behind its length.
pub fn receive_message<M: Message + Default>(mut socket: &UnixStream) -> io::Result<M> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > 4096 {
        return Err(io::Error::other(format!("a reply of {length} bytes")));
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body)?;
    M::decode(&body[..]).map_err(io::Error::other)
}

/// Sends a descriptor the way CRIU does: one byte, one control message.
pub fn send_fd(socket: &UnixStream, fd: impl AsFd) -> io::Result<()> {
    let fds = [fd.as_fd().as_raw_fd()];
    let control = [ControlMessage::ScmRights(&fds)];
    let byte = [IoSlice::new(&[0])];
    let sent = sendmsg::<()>(socket.as_raw_fd(), &byte, &control, MsgFlags::MSG_NOSIGNAL, None)?;
    if sent == 1 { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}
