//! A caller: a process like any other, and descriptors that may be of the module's files.

use std::{
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::Arc,
};

use nix::{errno::Errno, libc, sys::stat::fstat};

use super::{
    super::{
        caller::{CallerMemory, Inode, UserMemory},
        remote::Remote,
    },
    device::Device,
};

/// All opens of a device node have its inode: files of the module are known by their cookies. No
/// device has this number.
const COOKIES: u64 = u64::MAX;

/// What an open file of the module is known by.
pub(super) fn identity(cookie: u64) -> Inode {
    Inode { device: COOKIES, number: cookie }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct RelayCaller {
    pub remote: Arc<Remote>,
    pub device: Arc<Device>,
}

impl CallerMemory for RelayCaller {
    fn read(&self, address: u64, into: &mut [u8]) -> nix::Result<()> {
        CallerMemory::read(&self.remote, address, into)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> nix::Result<()> {
        CallerMemory::write(&self.remote, address, bytes)
    }

    fn inode(&self, fd: i32) -> nix::Result<Inode> {
        let process = self.remote.handle().as_raw_fd();
        // SAFETY: the call makes a descriptor and touches no memory.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, fd, 0) };
        let copy = Errno::result(copy).map_err(|_| Errno::EBADF)?;
        let copy = RawFd::try_from(copy).map_err(|_| Errno::EBADF)?;
        // SAFETY: the kernel has just made it for us.
        let copy = unsafe { OwnedFd::from_raw_fd(copy) };
        if let Some(cookie) = self.device.file_of(copy.as_fd())? {
            return Ok(identity(cookie));
        }
        let stat = fstat(&copy)?;
        Ok(Inode { device: stat.st_dev, number: stat.st_ino })
    }

    fn user_memory(
        &self,
        address: u64,
        len: u64,
        anonymous: bool,
    ) -> nix::Result<Arc<dyn UserMemory>> {
        self.remote.user_memory(address, len, anonymous)
    }

    fn promised_memory(&self) -> Arc<dyn UserMemory> {
        self.remote.promised_memory()
    }

    fn own_number(&self, pid: u32) -> u32 {
        self.remote.own_number(pid)
    }

    fn find_number(&self, number: u32, among: &[u32]) -> Option<u32> {
        self.remote.find_number(number, among)
    }
}
