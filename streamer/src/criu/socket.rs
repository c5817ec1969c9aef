//! Sockets in the images directory: made without touching one that is in use, removed when done.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
    },
};

use crate::error::{Error, Result};

/// Where CRIU looks when it dumps.
pub const CAPTURE_SOCKET: &str = "streamer-capture.sock";
/// Where CRIU looks when it restores.
pub const SERVE_SOCKET: &str = "streamer-serve.sock";
/// Where `commit-gate` waits for a capture.
pub const GATE_SOCKET: &str = "vramstream-commit.sock";

/// A listening socket in the images directory. Dropping it removes the socket's file.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Listens at `dir/name`, for this user only. The directory is made if it is missing. A socket
    /// that nobody listens on any more is replaced; one that is in use is an error.
    pub fn bind(dir: &Path, name: &str) -> Result<Self> {
        Listener::bind_as(dir, name, SockType::Stream)
    }

    /// The same for a socket of records.
    pub fn bind_records(dir: &Path, name: &str) -> Result<Self> {
        Listener::bind_as(dir, name, SockType::SeqPacket)
    }

    fn bind_as(dir: &Path, name: &str, kind: SockType) -> Result<Self> {
        let path = dir.join(name);
        let failed =
            |error: io::Error| Error::io(|| format!("listen at {}", path.display()))(error);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(Error::io(|| format!("create the images directory {}", dir.display())))?;
        // Two programs that start at the same time would both find a stale socket and both bind.
        let lock = File::open(dir).map_err(failed)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, e)| failed(e.into()))?;
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(meta) if !meta.file_type().is_socket() => {
                return Err(Error::Usage(format!(
                    "{} is in the way: it is not a socket; remove it or choose another --images-dir",
                    path.display()
                )));
            }
            Ok(_) if in_use(&path).map_err(failed)? => {
                return Err(Error::Usage(format!(
                    "another program is listening at {}: one capture and one serve at a time in a directory; choose another --images-dir",
                    path.display()
                )));
            }
            Ok(_) => fs::remove_file(&path).map_err(failed)?,
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let made =
            socket(AddressFamily::Unix, kind, flags, None).map_err(|errno| failed(errno.into()))?;
        UnixAddr::new(&path)
            .and_then(|address| bind(made.as_raw_fd(), &address))
            .map_err(|errno| failed(errno.into()))?;
        let listener = Listener { listener: made.into(), path };
        // Nobody can connect before it is listened at.
        fs::set_permissions(&listener.path, fs::Permissions::from_mode(0o600))
            .and_then(|()| Ok(listen(&listener.listener, Backlog::MAXALLOWABLE)?))
            .map_err(|error| {
                Error::io(|| format!("listen at {}", listener.path.display()))(error)
            })?;
        drop(lock);
        Ok(listener)
    }

    /// The next connection, if one waits; it does not block either.
    pub fn accept(&self) -> Result<Option<UnixStream>> {
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true).map_err(Error::io(|| "use a connection"))?;
                Ok(Some(stream))
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) || error.raw_os_error() == Some(Errno::ECONNABORTED as i32) =>
            {
                Ok(None)
            }
            Err(error) => {
                Err(Error::io(|| format!("accept a connection at {}", self.path.display()))(error))
            }
        }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl std::os::fd::AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether somebody listens at a socket's file. Asks with a socket of another type: the kernel
/// refuses that connection in either case, with another answer, and the listener sees nothing.
fn in_use(path: &Path) -> io::Result<bool> {
    let probe = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    match connect(probe.as_raw_fd(), &UnixAddr::new(path)?) {
        Err(Errno::ECONNREFUSED) => Ok(false),
        Err(Errno::EPROTOTYPE) | Ok(()) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not_disturbed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CAPTURE_SOCKET);
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "std leaves the file behind");
        let live = Listener::bind(dir.path(), CAPTURE_SOCKET).unwrap();
        let refused = Listener::bind(dir.path(), CAPTURE_SOCKET).unwrap_err();
        assert!(refused.to_string().contains(CAPTURE_SOCKET), "{refused}");
        assert!(live.accept().unwrap().is_none(), "the probe is not a connection");
        UnixStream::connect(&path).unwrap();
        assert!(live.accept().unwrap().is_some());
        drop(live);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_not_a_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SERVE_SOCKET);
        fs::write(&path, "mine").unwrap();
        assert!(Listener::bind(dir.path(), SERVE_SOCKET).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }
}
