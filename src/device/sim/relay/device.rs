//! `/dev/gpu-relay`.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::{errno::Errno, libc};

use super::{super::dma_buf::Exporter, RelayError};
use crate::abi::{
    Plain, Request,
    relay::{
        IOC_EXPORT, IOC_NODE, IOC_SYSFS, IOC_VERSION, IOC_WHAT, MOST_ARGUMENT, RelayAnswer,
        RelayDescriptor, RelayExport, RelayRequest, RelaySysfs, RelayWhat,
    },
};

/// The module's end, by default `/dev/gpu-relay`.
#[derive(Debug)]
pub(super) struct Device {
    path: PathBuf,
    file: File,
}

/// Room for the longest request.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; size_of::<RelayRequest>() + MOST_ARGUMENT]
}

impl Device {
    pub(super) fn open(path: &Path) -> Result<Self, RelayError> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.map_err(|error| RelayError::Call {
            device: path.to_owned(),
            call: "open",
            errno: Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)),
        })?;
        Ok(Device { path: path.to_owned(), file })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn version(&self) -> Result<u32, RelayError> {
        let mut version = 0;
        // SAFETY: the argument has no addresses.
        unsafe { self.call(&IOC_VERSION, &mut version) }.map_err(self.failed("VERSION"))?;
        Ok(version)
    }

    /// Makes a render node, or `/dev/kfd` (0).
    pub(super) fn add_node(&self, minor: u32) -> Result<(), RelayError> {
        let mut minor = minor;
        // SAFETY: the argument has no addresses.
        unsafe { self.call(&IOC_NODE, &mut minor) }.map_err(self.failed("NODE"))
    }

    /// Makes a file below `/sys/class/kfd/kfd`.
    pub(super) fn add_file(&self, path: &str, text: &str, guard: u32) -> Result<(), RelayError> {
        let len = |text: &str| {
            u32::try_from(text.len()).map_err(|_| self.failed("SYSFS")(Errno::EMSGSIZE))
        };
        let mut file = RelaySysfs {
            path: path.as_ptr() as u64,
            data: text.as_ptr() as u64,
            path_len: len(path)?,
            data_len: len(text)?,
            guard,
            reserved: 0,
        };
        // SAFETY: both addresses are of slices that have their lengths and outlive the call, and the
        // module only reads them.
        unsafe { self.call(&IOC_SYSFS, &mut file) }.map_err(self.failed("SYSFS"))
    }

    /// The cookie of the open file of the module's that a descriptor is of.
    pub(super) fn file_of(&self, fd: BorrowedFd<'_>) -> nix::Result<Option<u64>> {
        let mut what = RelayWhat { fd: fd.as_raw_fd(), ..RelayWhat::default() };
        // SAFETY: the argument has no addresses.
        unsafe { self.call(&IOC_WHAT, &mut what) }?;
        Ok((what.file != 0).then_some(what.file))
    }

    /// Takes the next request, whose argument comes after it in the buffer.
    pub(super) fn read(&self, buffer: &mut [u8]) -> nix::Result<RelayRequest> {
        loop {
            match (&self.file).read(buffer) {
                Ok(len) if len >= size_of::<RelayRequest>() => {
                    return Ok(RelayRequest::from_prefix(&buffer[..len]));
                }
                Ok(_) => return Err(Errno::EIO),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)));
                }
            }
        }
    }

    /// Answers a request. Nobody may wait for the answer any more: then it goes nowhere.
    pub(super) fn write(
        &self,
        answer: &RelayAnswer,
        argument: &[u8],
        descriptors: &[RelayDescriptor],
    ) {
        let descriptors: Vec<u8> = descriptors.iter().flat_map(Plain::as_bytes).copied().collect();
        let mut all = Vec::with_capacity(256);
        for part in [answer.as_bytes(), argument, &descriptors] {
            all.extend_from_slice(part);
        }
        let _ = (&self.file).write(&all);
    }

    fn failed(&self, call: &'static str) -> impl FnOnce(Errno) -> RelayError {
        move |errno| RelayError::Call { device: self.path.clone(), call, errno }
    }

    /// # Safety
    ///
    /// Addresses in the argument are good for what the request does with them.
    unsafe fn call<T: Plain>(&self, request: &Request<T>, argument: &mut T) -> nix::Result<()> {
        let (fd, number) = (self.file.as_raw_fd(), request.number());
        // SAFETY: the argument is what the request takes; the caller vouches for its addresses.
        let answer =
            unsafe { libc::ioctl(fd, number.into(), argument.as_bytes_mut().as_mut_ptr()) };
        Errno::result(answer).map(drop)
    }
}

impl Exporter for Arc<Device> {
    fn export(&self, size: u64, writable: bool) -> nix::Result<OwnedFd> {
        let mode = if writable { libc::O_RDWR } else { libc::O_RDONLY };
        let mut export = RelayExport { size, flags: mode.cast_unsigned(), fd: -1 };
        // SAFETY: the argument has no addresses.
        unsafe { self.call(&IOC_EXPORT, &mut export) }?;
        // SAFETY: the module has just made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(export.fd) })
    }
}
