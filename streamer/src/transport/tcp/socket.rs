//! Connecting, socket options, and reading with a deadline.

use std::{
    io::{self, Read},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use socket2::{SockRef, TcpKeepalive};

use super::{
    Timeouts,
    protocol::{HELLO_PREFIX_BYTES, Hello, MESSAGE_PREFIX_BYTES, Message, ProtocolError},
};
use crate::error::{Error, Result};

/// The addresses that `addr` (HOST:PORT) stands for.
pub(super) fn resolve(addr: &str) -> Result<Vec<SocketAddr>> {
    let found: Vec<_> = match addr.to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(Error::Usage(format!(
                "{addr:?} is not an address: give HOST:PORT, for example 10.0.0.2:7400 or [fd00::2]:7400"
            )));
        }
        Err(error) => return Err(Error::io(|| format!("find the address of {addr}"))(error)),
    };
    if found.is_empty() {
        return Err(Error::Usage(format!("{addr} has no address")));
    }
    Ok(found)
}

/// Connects to the first of the addresses of `addr` that answers.
pub(super) fn connect(
    addr: &str,
    found: &[SocketAddr],
    times: &Timeouts,
) -> Result<(TcpStream, SocketAddr)> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for at in found {
        match connect_to(*at, times) {
            Ok(stream) => return Ok((stream, *at)),
            Err(error) => last = error,
        }
    }
    let tried: Vec<_> = found.iter().map(ToString::to_string).collect();
    let tried = tried.join(", ");
    let doing = || if tried == addr { tried } else { format!("{addr} (tried {tried})") };
    Err(Error::io(|| format!("connect to {}", doing()))(last))
}

/// Connects to one address.
pub(super) fn connect_to(at: SocketAddr, times: &Timeouts) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, times.connect)?;
    tune(&stream, times)?;
    Ok(stream)
}

/// What all connections are set to. Data that waits for an acknowledgement is not bounded here: a
/// reader may be slow, and whether it is alive is seen on the control connection.
pub(super) fn tune(stream: &TcpStream, times: &Timeouts) -> io::Result<()> {
    const PROBES: u32 = 4;
    const SECOND: Duration = Duration::from_secs(1);
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time((times.silence / 2).max(SECOND))
        .with_interval((times.silence / 2 / PROBES).max(SECOND))
        .with_retries(PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// What the control connection is set to besides: a peer whose kernel does not take a few bytes in
/// that time is gone. Never for shard connections, where a slow reader closes its window.
pub(super) fn tune_control(stream: &TcpStream, times: &Timeouts) -> io::Result<()> {
    stream.set_write_timeout(Some(times.silence))?;
    SockRef::from(stream).set_tcp_user_timeout(Some(times.silence))
}

/// An address as people write it: IPv4 also where the socket is one of IPv6.
pub(super) fn display(at: SocketAddr) -> String {
    SocketAddr::new(at.ip().to_canonical(), at.port()).to_string()
}

/// Whether there is something to read, or becomes so in this time.
pub(super) fn readable(stream: &TcpStream, wait: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)];
    let wait = Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&wait)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Why a first message did not come.
#[derive(Debug)]
pub(super) enum NoMessage {
    /// Not in time, or not at all.
    Io(io::Error),
    /// It is none.
    Protocol(ProtocolError),
}

impl From<io::Error> for NoMessage {
    fn from(error: io::Error) -> Self {
        NoMessage::Io(error)
    }
}

impl From<ProtocolError> for NoMessage {
    fn from(error: ProtocolError) -> Self {
        NoMessage::Protocol(error)
    }
}

/// Reads a Hello and not a byte more.
pub(super) fn read_hello(stream: &TcpStream, deadline: Instant) -> Result<Hello, NoMessage> {
    let mut prefix = [0; HELLO_PREFIX_BYTES];
    read_exact(stream, &mut prefix, deadline)?;
    let mut body = vec![0; Hello::body_len(&prefix)?];
    read_exact(stream, &mut body, deadline)?;
    Ok(Hello::decode(&body)?)
}

/// Reads a message and not a byte more.
pub(super) fn read_message(stream: &TcpStream, deadline: Instant) -> Result<Message, NoMessage> {
    let mut prefix = [0; MESSAGE_PREFIX_BYTES];
    read_exact(stream, &mut prefix, deadline)?;
    let mut body = vec![0; Message::body_len(prefix)?];
    read_exact(stream, &mut body, deadline)?;
    Ok(Message::decode(&body)?)
}

/// The deadline is for all bytes together: a peer that sends one now and then gains nothing.
fn read_exact(mut stream: &TcpStream, buf: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if !readable(stream, left)? {
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            continue;
        }
        match stream.read(&mut buf[done..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads and forgets until the peer closes. Closing with unread bytes would send a reset, which can
/// overtake what was said last.
pub(super) fn drain(mut stream: &TcpStream, deadline: Instant) {
    let mut buf = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !readable(stream, left).unwrap_or(false) {
            return;
        }
        match stream.read(&mut buf) {
            Ok(n) if n > 0 => {}
            _ => return,
        }
    }
}
