//! Simulated GPUs in another process: the client, and the protocol.
//!
//! The other end is [`sim::Daemon`](super::sim::Daemon). To who uses a [`SocketDriver`] it is a
//! kernel: it knows its callers by what the kernel of this machine says of them, reaches their
//! memory by address, and gives them descriptors.
//!
//! # The protocol
//!
//! **A connection is an open file.** To open a node, a process connects to the daemon's
//! `SOCK_SEQPACKET` socket and sends an *open* request. From then on the connection is the file:
//! who has a descriptor of it has the file open, by fork or `SCM_RIGHTS` too, and when the last one
//! is closed the daemon releases the file. A descriptor of it can be the argument of an ioctl
//! that takes the descriptor of a device.
//!
//! **A request is one record**, little-endian, with one descriptor: a socket for the answer, which
//! is used once. So several threads, and several processes, can be in calls on one file.
//!
//! | bytes | field | open | check | ioctl | map | stand in | adopt, what |
//! |---|---|---|---|---|---|---|---|
//! | 0..4 | kind | 1 | 2 | 3 | 4 | 5 | 6, 7 |
//! | 4..8 | number | version: 1 | 0 | request | 0 | 0 | version: 1 |
//! | 8..16 | first | `st_dev` of the client's end | 0 | 0 | offset | `st_dev` | `st_dev` |
//! | 16..24 | second | `st_ino` of the client's end | 0 | 0 | length | `st_ino` | `st_ino` |
//! | 24.. | bytes | path, at most 4096 | none | argument | none | none | none |
//!
//! *Check* asks what the connection is. The caller of a request is the process that sent it
//! (`SCM_CREDENTIALS`), not the one that opened the file.
//!
//! **Stand-ins.** A checkpointer that knows devices and no sockets must be shown a device. *Stand in*
//! says that a device node, by its device and inode, stands for this open file: whoever has a
//! descriptor of that node can *adopt* the file, as the first request of a connection in place of
//! *open*.
//!
//! **Dma-bufs** are memory files of the daemon's. *What*, as the only request of a connection, asks
//! what a descriptor stands for, by its device and inode: EBADF if it is nothing of this machine.
//!
//! **The answer** is any number of records of descriptors, at most 250 each, and then the end:
//!
//! | bytes | field | descriptors | end |
//! |---|---|---|---|
//! | 0..4 | kind | 1 | 2 |
//! | 4..8 | errno | 0 | 0, or the error |
//! | 8..16 | offset | 0 | map: where in the file to map |
//! | 16.. | bytes | 16 for each descriptor: see below | ioctl: the argument, as long as it was; check, what: 1 and 0 for `/dev/kfd`, 2 and its minor number for a render node, 3 and 0 for a dma-buf, 32 bits each |
//!
//! With the end of a successful *map* comes one descriptor: the file to map. For each other
//! descriptor there are a place (0: `where` is a byte of the argument; 1: an address of the caller),
//! flags (bit 0: close on exec), both 32 bits, and `where`, 64 bits. The client writes the number
//! that the descriptor has got there, after all that the daemon has written itself.
//!
//! **Memory.** The daemon reads and writes the caller's memory with `process_vm_readv` and
//! `process_vm_writev`, and so do its engines where a BO is a userptr. It must be allowed to trace
//! the caller; where Yama restricts that the client names the daemon as its tracer.
//!
//! **The end.** When the daemon is gone every call is answered with ENODEV. A client may go at any
//! time.

use std::{
    io::IoSlice,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    libc,
    sys::{
        socket::{
            AddressFamily, SockFlag, SockType, UnixAddr, connect, getpeername, getsockopt, socket,
            socketpair, sockopt,
        },
        stat::{SFlag, fstat, stat},
        uio::{RemoteIoVec, process_vm_writev},
    },
    unistd::Pid,
};

use self::wire::{Answer, Place, Request};
use super::{DeviceFile, DeviceKind, DeviceMemory, Driver};
use crate::abi::request_size;

pub(in crate::device) mod wire;

/// What the memory files are called that stand for dma-bufs.
const DMA_BUF: &[u8] = b"/memfd:dmabuf";

/// The driver of simulated GPUs that are in another process.
#[derive(Debug, Clone)]
pub struct SocketDriver {
    path: PathBuf,
}

impl SocketDriver {
    /// Of the daemon that listens at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        SocketDriver { path: path.into() }
    }

    /// The daemon's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl SocketDriver {
    /// Makes the device node at `node` stand for an open file of this machine.
    pub fn stand_in(&self, file: impl AsFd, node: &Path) -> nix::Result<()> {
        let stat = stat(node)?;
        let file = SocketFile { socket: file.as_fd().try_clone_to_owned().map_err(io_errno)? };
        file.call(&Request::StandIn { device: stat.st_dev, inode: stat.st_ino })?.result()
    }

    fn connect(&self) -> nix::Result<SocketFile> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        let address = UnixAddr::new(&self.path)?;
        connect(socket.as_raw_fd(), &address).map_err(|errno| match errno {
            // It is the daemon that is not there, and not the node.
            Errno::ENOENT => Errno::ECONNREFUSED,
            errno => errno,
        })?;
        let file = SocketFile { socket };
        file.let_the_daemon_trace();
        Ok(file)
    }

    /// What a descriptor is that is no open file of this machine: a dma-buf, perhaps.
    fn identify_memory(&self, fd: BorrowedFd<'_>) -> nix::Result<Option<DeviceKind>> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        if !link.is_ok_and(|link| link.as_os_str().as_bytes().starts_with(DMA_BUF)) {
            return Ok(None);
        }
        let stat = fstat(fd)?;
        let answered = self.connect()?.call(&Request::What {
            version: wire::VERSION,
            device: stat.st_dev,
            inode: stat.st_ino,
        })?;
        match answered.result() {
            Ok(()) => wire::decode_kind(&answered.bytes).map(Some).ok_or(Errno::EPROTO),
            // It is called so by chance.
            Err(Errno::EBADF) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The file that a descriptor is a connection of, or stands in for.
    fn file_of(&self, fd: OwnedFd) -> nix::Result<SocketFile> {
        let stat = fstat(&fd)?;
        if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR {
            let file = self.connect()?;
            file.call(&Request::Adopt {
                version: wire::VERSION,
                device: stat.st_dev,
                inode: stat.st_ino,
            })?
            .result()?;
            return Ok(file);
        }
        let peer: UnixAddr = getpeername(fd.as_raw_fd()).map_err(|_| Errno::EBADF)?;
        let kind = getsockopt(&fd, sockopt::SockType).map_err(|_| Errno::EBADF)?;
        if peer.path() != Some(&self.path) || kind != SockType::SeqPacket {
            return Err(Errno::EBADF);
        }
        let file = SocketFile { socket: fd };
        file.let_the_daemon_trace();
        Ok(file)
    }
}

impl Driver for SocketDriver {
    fn open(&self, path: &Path) -> nix::Result<Box<dyn DeviceFile>> {
        let file = self.connect()?;
        let stat = fstat(&file.socket)?;
        file.call(&Request::Open {
            version: wire::VERSION,
            device: stat.st_dev,
            inode: stat.st_ino,
            path,
        })?
        .result()?;
        Ok(Box::new(file))
    }

    fn adopt(&self, fd: OwnedFd) -> nix::Result<Box<dyn DeviceFile>> {
        let file = self.file_of(fd)?;
        file.call(&Request::Check)?.result()?;
        Ok(Box::new(file))
    }

    fn identify(&self, fd: BorrowedFd<'_>) -> nix::Result<Option<DeviceKind>> {
        let file = match self.file_of(fd.try_clone_to_owned().map_err(io_errno)?) {
            Ok(file) => file,
            Err(Errno::EBADF) => return self.identify_memory(fd),
            Err(errno) => return Err(errno),
        };
        let answered = file.call(&Request::Check)?;
        answered.result()?;
        wire::decode_kind(&answered.bytes).map(Some).ok_or(Errno::EPROTO)
    }
}

fn io_errno(error: std::io::Error) -> Errno {
    Errno::try_from(error).unwrap_or(Errno::EIO)
}

/// A connection that is an open file.
#[derive(Debug)]
struct SocketFile {
    socket: OwnedFd,
}

/// A whole answer.
#[derive(Debug)]
struct Answered {
    errno: i32,
    offset: u64,
    bytes: Vec<u8>,
    /// What came with the end.
    file: Option<OwnedFd>,
    descriptors: Vec<(wire::Slot, OwnedFd)>,
}

impl Answered {
    fn result(&self) -> nix::Result<()> {
        if self.errno == 0 { Ok(()) } else { Err(Errno::from_raw(self.errno)) }
    }
}

impl SocketFile {
    /// Sends a request and waits for all of its answer.
    fn call(&self, request: &Request<'_>) -> nix::Result<Answered> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        wire::send(&self.socket, &request.encode(), &[theirs.as_fd()]).map_err(gone)?;
        // The daemon has the only one, so we see when it is gone.
        drop(theirs);
        let mut descriptors = Vec::new();
        let mut lost = false;
        let mut buffer = wire::buffer();
        loop {
            let mut received = match wire::receive(&ours, &mut buffer, wire::MOST_DESCRIPTORS) {
                Ok(Some(received)) => received,
                Ok(None) => return Err(Errno::ENODEV),
                Err(errno) => return Err(gone(errno)),
            };
            // Our table of descriptors is full.
            lost |= received.truncated;
            match Answer::decode(&buffer[..received.len]).ok_or(Errno::EPROTO)? {
                Answer::Descriptors(slots) => descriptors.extend(slots.zip(received.descriptors)),
                Answer::End { .. } if lost => return Err(Errno::EMFILE),
                Answer::End { errno, offset, bytes } => {
                    return Ok(Answered {
                        errno,
                        offset,
                        bytes: bytes.to_vec(),
                        file: received.descriptors.pop(),
                        descriptors,
                    });
                }
            }
        }
    }

    fn let_the_daemon_trace(&self) {
        let Ok(daemon) = getsockopt(&self.socket, sockopt::PeerCredentials) else { return };
        let pid = libc::c_ulong::from(daemon.pid().unsigned_abs());
        // Without Yama this is EINVAL, and not needed.
        // SAFETY: changes who may trace this process, and touches no memory.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, pid, 0, 0, 0) };
    }
}

impl DeviceFile for SocketFile {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> nix::Result<()> {
        if argument.len() != request_size(request) {
            return Err(Errno::EINVAL);
        }
        let answered = self.call(&Request::Ioctl { number: request, argument })?;
        if answered.bytes.len() != argument.len() {
            return Err(Errno::EPROTO);
        }
        argument.copy_from_slice(&answered.bytes);
        let answer = answered.result();
        for (slot, fd) in answered.descriptors {
            give(slot, fd, argument)?;
        }
        answer
    }

    fn map(&self, offset: u64, len: usize) -> nix::Result<DeviceMemory> {
        let answered = self.call(&Request::Map { offset, len: len as u64 })?;
        answered.result()?;
        DeviceMemory::map(answered.file.ok_or(Errno::EPROTO)?, answered.offset, len)
    }
}

impl AsFd for SocketFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Tells the caller the number of a descriptor, which is the caller's from then on.
fn give(slot: wire::Slot, fd: OwnedFd, argument: &mut [u8]) -> nix::Result<()> {
    use std::os::fd::IntoRawFd;
    if !slot.close_on_exec {
        fcntl(&fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    let number = fd.as_raw_fd().to_le_bytes();
    match slot.place {
        Place::Argument(at) => {
            let at = usize::try_from(at).map_err(|_| Errno::EPROTO)?;
            let end = at.checked_add(number.len()).ok_or(Errno::EPROTO)?;
            argument.get_mut(at..end).ok_or(Errno::EPROTO)?.copy_from_slice(&number);
        }
        Place::Memory(address) => {
            // Through the kernel, so that a bad address is an error.
            let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
            let to = RemoteIoVec { base, len: number.len() };
            if process_vm_writev(Pid::this(), &[IoSlice::new(&number)], &[to])? != number.len() {
                return Err(Errno::EFAULT);
            }
        }
    }
    let _ = fd.into_raw_fd();
    Ok(())
}

/// Whatever is wrong with the connection, the device is not there any more.
fn gone(errno: Errno) -> Errno {
    match errno {
        Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN => Errno::ENODEV,
        errno => errno,
    }
}
