//! GPU devices: open a node, issue ioctls on it, map its memory.
//!
//! A [`Driver`] is who answers: the [`kernel`], or a [simulated host](sim) in this process or
//! behind a socket. Everything above sees a [`Node`] and cannot tell which it is:
//!
//! ```text
//!   gpu, plugin       what to copy, when to pause
//!   Kfd, RenderNode   typed calls: safe, errors that name the node
//!   Node              one ioctl: transient answers are repeated, with a bound
//!   Driver            the kernel │ simulated in this process │ simulated behind a socket
//! ```
//!
//! # Soundness
//!
//! A device writes to memory by address and long after the call that asked it to. So nothing in
//! this module lends memory to a device by reference: a [`CopyQueue`](copy::CopyQueue) takes
//! [chunks](crate::ring::Chunk) by value and gives them back after their fence, memory that a
//! device shares with us is [`DeviceMemory`] and never a slice, and calls that take addresses are
//! unsafe.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::errno::Errno;

use crate::abi::{Plain, Request};

mod clock;
pub mod copy;
mod gem;
pub mod kernel;
mod kfd;
mod memory;
mod nodes;
pub mod numbers;
pub(crate) mod records;
mod render;
pub mod sim;
mod socket;

pub use gem::GemBo;
pub use kfd::{Checkpoint, CheckpointedBo, KFD_NODE, Kfd, ProcessInfo, RestoredBo};
pub use memory::DeviceMemory;
pub use render::{RenderInfo, RenderNode};
pub use socket::SocketDriver;

/// Who answers the ioctls.
pub trait Driver: fmt::Debug + Send + Sync {
    /// Opens a device node for reading and writing.
    fn open(&self, path: &Path) -> nix::Result<Box<dyn DeviceFile>>;

    /// Makes the node of a device under its usual name, where a container has none. Whoever has no
    /// nodes says EOPNOTSUPP.
    fn make_node(&self, path: &Path) -> nix::Result<()> {
        let _ = path;
        Err(Errno::EOPNOTSUPP)
    }

    /// Takes over a descriptor of a device that was opened elsewhere, in another process perhaps.
    fn adopt(&self, fd: OwnedFd) -> nix::Result<Box<dyn DeviceFile>>;

    /// What an open file is, whoever opened it; `None` if it is nothing of ours. No device is asked.
    fn identify(&self, fd: BorrowedFd<'_>) -> nix::Result<Option<DeviceKind>>;
}

/// The devices that belong to an AMD GPU, and what they give away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// `/dev/kfd`: one for all GPUs.
    Kfd,
    /// A render node.
    Render {
        /// Its minor number: 128 for `renderD128`.
        minor: u32,
    },
    /// A dma-buf: memory of some device, whose is not known.
    DmaBuf,
}

/// An open device node. Dropping it closes it.
pub trait DeviceFile: fmt::Debug + Send + Sync + AsFd {
    /// Issues an ioctl once. The argument has exactly the size that is in the number.
    ///
    /// # Safety
    ///
    /// Every address in the argument must be good for what this request does with it, for as long
    /// as it does it: that may be long after the call.
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> nix::Result<()>;

    /// Maps `len` bytes from `offset`, shared, for reading and writing.
    fn map(&self, offset: u64, len: usize) -> nix::Result<DeviceMemory>;
}

/// What went wrong with a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A call failed.
    #[error("{}: {call} failed: {errno}{}", node.display(), hint(*errno))]
    Call {
        /// The node.
        node: PathBuf,
        /// The ioctl by its name in the headers, or "open" or "mmap".
        call: &'static str,
        /// The answer.
        errno: Errno,
    },
    /// The device is not one of ours, or too old.
    #[error("{}: {what}", node.display())]
    Unsuitable {
        /// The node.
        node: PathBuf,
        /// Why.
        what: String,
    },
    /// Copies were submitted and never finished.
    #[error(
        "{}: the SDMA engine did not finish a copy within {seconds} s: it hangs (see the kernel log; a GPU reset ends it)",
        node.display()
    )]
    Hung {
        /// The node.
        node: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
}

/// What a person can do about it.
fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT | Errno::ENXIO => {
            " (is the amdgpu driver loaded, and is the device visible in this container?)"
        }
        Errno::EACCES | Errno::EPERM => {
            " (run as root, or give CAP_CHECKPOINT_RESTORE and access to the device)"
        }
        Errno::ENODEV | Errno::EIO | Errno::ECANCELED | Errno::ETIME => {
            " (the GPU was reset or is gone: see the kernel log)"
        }
        Errno::ENOMEM => {
            " (not enough GPU or system memory: a smaller KFD_MAX_BUFFER_SIZE needs less)"
        }
        Errno::EMFILE | Errno::ENFILE => " (raise the limit on open files, ulimit -n)",
        Errno::EINTR | Errno::EAGAIN | Errno::EBUSY => " (again and again)",
        _ => "",
    }
}

/// A device node by its path, with an open file.
#[derive(Debug)]
pub struct Node {
    path: PathBuf,
    file: Box<dyn DeviceFile>,
}

/// How often a call is repeated that was answered with EINTR, EAGAIN or EBUSY.
pub const MOST_REPEATS: u32 = 200;
/// So many repeats come at once: most such answers are gone by then.
const REPEATS_AT_ONCE: u32 = 20;
/// The pause before each later one.
const PAUSE: Duration = Duration::from_millis(5);

impl Node {
    /// Opens a device node.
    pub fn open(driver: &dyn Driver, path: &Path) -> Result<Node, DeviceError> {
        let failed = |errno| DeviceError::Call { node: path.to_owned(), call: "open", errno };
        let file = repeat(|| driver.open(path)).map_err(failed)?;
        Ok(Node { path: path.to_owned(), file })
    }

    /// A node that was opened elsewhere; `path` is for messages.
    pub fn adopt(driver: &dyn Driver, path: &Path, fd: OwnedFd) -> Result<Node, DeviceError> {
        let failed = |errno| DeviceError::Call { node: path.to_owned(), call: "open", errno };
        let file = driver.adopt(fd).map_err(failed)?;
        Ok(Node { path: path.to_owned(), file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Issues an ioctl, again while the answer is that it may work later, but not for ever.
    ///
    /// # Safety
    ///
    /// As for [`DeviceFile::ioctl`].
    pub unsafe fn call<T: Plain>(
        &self,
        request: &Request<T>,
        argument: &mut T,
    ) -> Result<(), DeviceError> {
        let before = *argument;
        repeat(|| {
            // A call that failed may have written its output over the input.
            *argument = before;
            // SAFETY: the caller vouches for the addresses, and the request for the size.
            unsafe { self.file.ioctl(request.number(), argument.as_bytes_mut()) }
        })
        .map_err(|errno| self.failed(request.name(), errno))
    }

    /// Issues an ioctl once, whatever the answer: for those that leave something half done.
    ///
    /// # Safety
    ///
    /// As for [`DeviceFile::ioctl`].
    pub unsafe fn call_once<T: Plain>(
        &self,
        request: &Request<T>,
        argument: &mut T,
    ) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for the addresses, and the request for the size.
        let answer = unsafe { self.file.ioctl(request.number(), argument.as_bytes_mut()) };
        answer.map_err(|errno| self.failed(request.name(), errno))
    }

    /// Maps memory of the device.
    pub fn map(&self, offset: u64, len: usize) -> Result<DeviceMemory, DeviceError> {
        repeat(|| self.file.map(offset, len)).map_err(|errno| self.failed("mmap", errno))
    }

    /// The open file alone, for somebody else to [adopt](Self::adopt).
    pub fn into_file(self) -> Result<OwnedFd, DeviceError> {
        // (EMFILE is all that can go wrong.)
        self.file.as_fd().try_clone_to_owned().map_err(|_| self.failed("dup", Errno::EMFILE))
    }

    /// The error of a call on this node.
    pub fn failed(&self, call: &'static str, errno: Errno) -> DeviceError {
        DeviceError::Call { node: self.path.clone(), call, errno }
    }
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn repeat<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    let mut repeats = 0;
    loop {
        match call() {
            Err(Errno::EINTR | Errno::EAGAIN | Errno::EBUSY) if repeats < MOST_REPEATS => {
                if repeats >= REPEATS_AT_ONCE {
                    std::thread::sleep(PAUSE);
                }
                repeats += 1;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transient_answers_are_repeated_with_a_bound() {
        let mut calls = 0;
        let answer = repeat(|| {
            calls += 1;
            if calls < 5 { Err(Errno::EINTR) } else { Ok(calls) }
        });
        assert_eq!(answer, Ok(5));
        let mut calls = 0;
        let answer: nix::Result<()> = repeat(|| {
            calls += 1;
            Err(Errno::EBUSY)
        });
        assert_eq!((answer, calls), (Err(Errno::EBUSY), MOST_REPEATS + 1));
        let mut calls = 0;
        let answer: nix::Result<()> = repeat(|| {
            calls += 1;
            Err(Errno::EIO)
        });
        assert_eq!((answer, calls), (Err(Errno::EIO), 1));
    }
}
