//! The door for callers in other processes.
//!
//! A [`Daemon`] listens on a socket and serves a simulated machine to whoever connects, as the
//! kernel would: `device::socket` has the client and the protocol. Processes are known by their
//! real pids and have their real capabilities; who is the ptracer of whom is what the kernel says.
//!
//! ```text
//!  mod         listen and accept
//!  connection  an open file: requests in, answers out, several at a time
//! ```
//!
//! It must be allowed to trace its callers: run it as root, or as the same user.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen, setsockopt,
        socket, sockopt,
    },
};

use self::connection::Connection;
use super::host::SimHost;

mod connection;
#[cfg(test)]
mod tests;

/// Each open file takes a connection, and threads.
const MOST_CONNECTIONS: usize = 4096;
/// How many clients may wait to be accepted.
const BACKLOG: i32 = 128;
/// Before the next attempt to accept when there is no descriptor for a connection.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// A simulated machine that serves other processes.
#[derive(Debug)]
pub struct Daemon {
    host: SimHost,
    listener: OwnedFd,
    connections: Arc<AtomicUsize>,
}

impl Daemon {
    /// Listens at `path`, where nothing may be yet.
    pub fn bind(host: SimHost, path: &Path) -> nix::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        // Before anybody can connect: each request is to say who sent it.
        setsockopt(&listener, sockopt::PassCred, &true)?;
        bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
        listen(&listener, Backlog::new(BACKLOG)?)?;
        Ok(Daemon { host, listener, connections: Arc::default() })
    }

    /// The machine.
    pub fn host(&self) -> &SimHost {
        &self.host
    }

    /// How many connections there are: open files, and some that are about to be.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Acquire)
    }

    /// Accepts connections for ever, or until accepting fails.
    pub fn serve(&self) -> nix::Result<()> {
        loop {
            let socket = match accept4(&self.listener, SockFlag::SOCK_CLOEXEC) {
                Ok(socket) => socket,
                // The client has given up, or there is no descriptor for it now.
                Err(Errno::EINTR | Errno::ECONNABORTED) => continue,
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => {
                    thread::sleep(FULL_PAUSE);
                    continue;
                }
                Err(errno) => return Err(errno),
            };
            if self.connections() < MOST_CONNECTIONS {
                Connection::start(&self.host, socket, &self.connections);
            }
        }
    }
}
