//! The door for callers in this process.

use std::{
    fs,
    mem::ManuallyDrop,
    os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev},
    unistd::Pid,
};

use super::{
    caller::{Call, CallerMemory, Credentials, Inode, Slot, UserMemory},
    dispatch,
    host::{FileId, SimHost, inode},
    interrupt::Interrupt,
    locked::not_locked,
};
use crate::device::{DeviceFile, DeviceKind, DeviceMemory, Driver};

/// A process on a simulated machine, and the driver of what it opens.
#[derive(Debug, Clone)]
pub struct SimProcess {
    host: SimHost,
    pid: u32,
    credentials: Credentials,
    /// Raised by tests alone.
    pub(super) interrupt: Interrupt,
}

impl SimProcess {
    pub(super) fn new(host: SimHost, pid: u32, credentials: Credentials) -> Self {
        SimProcess { host, pid, credentials, interrupt: Interrupt::default() }
    }

    /// Its number on the machine.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The machine.
    pub fn host(&self) -> &SimHost {
        &self.host
    }

    /// From now on nobody minds what this process leaves behind, as when it is killed.
    pub fn abandon(&self) {
        self.host.shared.log.abandon(self.pid);
    }

    fn file(&self, id: FileId, fd: OwnedFd) -> Box<dyn DeviceFile> {
        let fd = ManuallyDrop::new(fd);
        Box::new(SimFile { process: self.clone(), id, fd })
    }
}

impl Driver for SimProcess {
    fn open(&self, path: &Path) -> nix::Result<Box<dyn DeviceFile>> {
        let (id, fd) = dispatch::open(&self.host, self.pid, path)?;
        Ok(self.file(id, fd))
    }

    fn adopt(&self, fd: OwnedFd) -> nix::Result<Box<dyn DeviceFile>> {
        let id = self.host.state().adopt(inode(&fd)?)?;
        Ok(self.file(id, fd))
    }

    fn identify(&self, fd: BorrowedFd<'_>) -> nix::Result<Option<DeviceKind>> {
        dispatch::kind_of(&self.host, inode(fd)?)
    }
}

/// An open file in the hands of a process.
#[derive(Debug)]
struct SimFile {
    process: SimProcess,
    id: FileId,
    /// Closed before anything is said about it.
    fd: ManuallyDrop<OwnedFd>,
}

impl DeviceFile for SimFile {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> nix::Result<()> {
        let mut call = Call {
            pid: self.process.pid,
            credentials: self.process.credentials,
            file: self.id,
            request,
            memory: &OwnMemory,
            interrupt: self.process.interrupt.clone(),
            descriptors: Vec::new(),
            keep_descriptors: false,
        };
        let answer = dispatch::ioctl(&self.process.host, &mut call, argument);
        if answer.is_ok() || call.keep_descriptors {
            for (slot, fd) in call.descriptors {
                let number = fd.into_raw_fd().to_le_bytes();
                match slot {
                    Slot::Argument(at) => {
                        if let Some(field) = argument.get_mut(at..at + number.len()) {
                            field.copy_from_slice(&number);
                        }
                    }
                    Slot::Memory(address) => CallerMemory::write(&OwnMemory, address, &number)?,
                }
            }
        }
        answer
    }

    fn map(&self, offset: u64, len: usize) -> nix::Result<DeviceMemory> {
        dispatch::map(&self.process.host, self.process.pid, self.id, offset, len as u64)?.map()
    }
}

impl AsFd for SimFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let inode = inode(&*self.fd);
        // SAFETY: nobody uses it from here on.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
        match inode {
            Ok(inode) => dispatch::let_go(&self.process.host, self.id, inode),
            Err(_) => dispatch::release(&self.process.host, self.id),
        }
    }
}

/// The memory and the descriptors of this process, reached through the kernel so that a bad
/// address is an error and not a crash.
#[derive(Debug, Clone, Copy)]
struct OwnMemory;

impl CallerMemory for OwnMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> nix::Result<()> {
        not_locked();
        let (base, len) = (range(address)?, into.len());
        let local = &mut [std::io::IoSliceMut::new(into)];
        let done = process_vm_readv(Pid::this(), local, &[RemoteIoVec { base, len }])?;
        if done == len { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> nix::Result<()> {
        not_locked();
        let (base, len) = (range(address)?, bytes.len());
        let local = &[std::io::IoSlice::new(bytes)];
        let done = process_vm_writev(Pid::this(), local, &[RemoteIoVec { base, len }])?;
        if done == len { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn inode(&self, fd: i32) -> nix::Result<Inode> {
        let mut stat = std::mem::MaybeUninit::<nix::libc::stat>::uninit();
        // SAFETY: there is room for the answer. (Not a borrow of the descriptor, which may be none.)
        let answer = unsafe { nix::libc::fstat(fd, stat.as_mut_ptr()) };
        Errno::result(answer).map_err(|_| Errno::EBADF)?;
        // SAFETY: the call has succeeded, so it has written all of it.
        let stat = unsafe { stat.assume_init() };
        Ok(Inode { device: stat.st_dev, number: stat.st_ino })
    }

    fn user_memory(
        &self,
        address: u64,
        len: u64,
        anonymous: bool,
    ) -> nix::Result<Arc<dyn UserMemory>> {
        check_own(address, len, anonymous)?;
        Ok(Arc::new(OwnMemory))
    }

    fn promised_memory(&self) -> Arc<dyn UserMemory> {
        Arc::new(OwnMemory)
    }
}

impl UserMemory for OwnMemory {
    unsafe fn read(&self, address: u64, to: *mut u8, len: usize) -> nix::Result<()> {
        let from = std::ptr::with_exposed_provenance::<u8>(range(address)?);
        // SAFETY: whoever made the userptr BO said that a device may use this memory until the BO
        // is gone (the contract of `DeviceFile::ioctl`); the engine's side has room.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(())
    }

    unsafe fn write(&self, address: u64, from: *const u8, len: usize) -> nix::Result<()> {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(range(address)?);
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(())
    }

    fn check(&self, address: u64, len: u64) -> nix::Result<()> {
        check_own(address, len, false)
    }

    fn local(&self, address: u64) -> Option<*mut u8> {
        usize::try_from(address).ok().map(std::ptr::with_exposed_provenance_mut)
    }
}

fn check_own(address: u64, len: u64, anonymous: bool) -> nix::Result<()> {
    not_locked();
    let maps = fs::read_to_string("/proc/self/maps").map_err(|_| Errno::EFAULT)?;
    check_mapped(&maps, address, len, anonymous)
}

fn range(address: u64) -> nix::Result<usize> {
    usize::try_from(address).map_err(|_| Errno::EFAULT)
}

/// Whether all of a range is in `/proc/PID/maps`, and its first part not of a file.
pub(super) fn check_mapped(maps: &str, address: u64, len: u64, anonymous: bool) -> nix::Result<()> {
    let end = address.checked_add(len).ok_or(Errno::EFAULT)?;
    let mut at = address;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let bounds = words.next().and_then(|range| range.split_once('-'));
        let Some((Ok(from), Ok(to))) =
            bounds.map(|(from, to)| (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)))
        else {
            continue;
        };
        if at < from || at >= to {
            continue;
        }
        if at == address && anonymous && words.nth(3).is_some_and(|inode| inode != "0") {
            return Err(Errno::EPERM);
        }
        at = to;
        if at >= end {
            return Ok(());
        }
    }
    Err(Errno::EFAULT)
}
