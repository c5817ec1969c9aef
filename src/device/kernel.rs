//! The real devices, through the kernel.

use std::{
    fs::File,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    libc,
    sys::stat::{SFlag, fstat},
};

use super::{DeviceFile, DeviceKind, DeviceMemory, Driver, nodes, numbers};
use crate::abi::request_size;

/// The kernel of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kernel;

/// How the kernel names the file of a dma-buf; a name of its own may follow.
const DMA_BUF: &[u8] = b"/dmabuf:";

#[derive(Debug)]
struct KernelFile(File);

impl Driver for Kernel {
    fn open(&self, path: &Path) -> nix::Result<Box<dyn DeviceFile>> {
        self.adopt(nodes::open(path)?)
    }

    fn make_node(&self, path: &Path) -> nix::Result<()> {
        nodes::make(path)
    }

    fn adopt(&self, fd: OwnedFd) -> nix::Result<Box<dyn DeviceFile>> {
        Ok(Box::new(KernelFile(fd.into())))
    }

    fn identify(&self, fd: BorrowedFd<'_>) -> nix::Result<Option<DeviceKind>> {
        let stat = fstat(fd)?;
        let is_device = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR;
        if is_device {
            return Ok(numbers::of_kernel(stat.st_rdev));
        }
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let is_dma_buf = link.is_ok_and(|link| link.as_os_str().as_bytes().starts_with(DMA_BUF));
        Ok(is_dma_buf.then_some(DeviceKind::DmaBuf))
    }
}

impl DeviceFile for KernelFile {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> nix::Result<()> {
        // The kernel reads and writes as many bytes as the number says.
        if argument.len() != request_size(request) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the argument has the size that the kernel takes from the number, and the caller
        // vouches for what the argument points to.
        let answer =
            unsafe { libc::ioctl(self.0.as_raw_fd(), request.into(), argument.as_mut_ptr()) };
        Errno::result(answer).map(drop)
    }

    fn map(&self, offset: u64, len: usize) -> nix::Result<DeviceMemory> {
        DeviceMemory::map(&self.0, offset, len)
    }
}

impl AsFd for KernelFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_device() {
        let file = Kernel.open(Path::new("/dev/null")).unwrap();
        let request = crate::abi::kfd::GET_VERSION.number();
        // SAFETY: the argument has no addresses.
        let answer = unsafe { file.ioctl(request, &mut [0; 8]) };
        assert_eq!(answer, Err(Errno::ENOTTY));
        // SAFETY: as above.
        let answer = unsafe { file.ioctl(request, &mut [0; 7]) };
        assert_eq!(answer, Err(Errno::EINVAL));
        assert_eq!(Kernel.identify(file.as_fd()), Ok(None));
        assert_eq!(Kernel.identify(tempfile::tempfile().unwrap().as_fd()), Ok(None));
        assert_eq!(Kernel.open(Path::new("/nonexistent")).err(), Some(Errno::ENOENT));
    }
}
