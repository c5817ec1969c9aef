//! A process that calls from outside: what it may do, its descriptors, its memory.

use std::{
    fs,
    io::{IoSlice, IoSliceMut},
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        stat::stat,
        uio::{RemoteIoVec, process_vm_readv, process_vm_writev},
    },
    unistd::Pid,
};

use super::{
    caller::{CallerMemory, Credentials, Inode, UserMemory},
    door::check_mapped,
    host::{FileId, FileKind, SimHost},
    locked::not_locked,
};

mod numbers;

/// Bits of `CapEff`.
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_SYS_NICE: u64 = 1 << 23;
const CAP_CHECKPOINT_RESTORE: u64 = 1 << 40;

/// A bit of the flags in `stat`.
const PF_EXITING: u64 = 0x4;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Remote {
    pid: u32,
    /// Tells whether the process is there, so that its pid is not another's.
    handle: OwnedFd,
    credentials: Credentials,
}

impl Remote {
    /// A process that is there now.
    pub(super) fn new(pid: u32) -> nix::Result<Self> {
        // A process that is not in our pid namespace has the number 0.
        let number = i32::try_from(pid).ok().filter(|&pid| pid > 0).ok_or(Errno::ESRCH)?;
        // SAFETY: opens a descriptor and touches no memory.
        let handle = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) })?;
        let handle = RawFd::try_from(handle).ok().and_then(new_descriptor).ok_or(Errno::EBADF)?;
        Ok(Remote { pid, handle, credentials: credentials(pid) })
    }

    /// Stays the same process, whoever gets its number next.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// What it could do when it first called.
    pub(super) fn credentials(&self) -> Credentials {
        self.credentials
    }

    pub(super) fn is_alive(&self) -> bool {
        let mut polled = [PollFd::new(self.handle.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut polled, PollTimeout::ZERO), Ok(0) | Err(Errno::EINTR))
    }

    /// Whether it is gone or about to be: a kernel closes the descriptors of a process first.
    pub(super) fn is_ending(&self) -> bool {
        !self.is_alive() || is_exiting(self.pid)
    }

    fn check_mapped(&self, address: u64, len: u64, anonymous: bool) -> nix::Result<()> {
        not_locked();
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid));
        check_mapped(&maps.map_err(|_| Errno::EFAULT)?, address, len, anonymous)
    }

    fn number(&self) -> Pid {
        Pid::from_raw(self.pid.cast_signed())
    }

    /// Copies with a call that may copy less than it was asked for, and is told where the range to
    /// copy begins here, and the range there.
    fn transfer(
        &self,
        address: u64,
        len: usize,
        copy: impl Fn(usize, libc::iovec) -> isize,
    ) -> nix::Result<()> {
        not_locked();
        // A GPU's access to memory of a process that has ended goes nowhere.
        if !self.is_alive() {
            return Err(Errno::EFAULT);
        }
        let base = range(address)?;
        let mut done = 0;
        while done < len {
            let at = base.checked_add(done).ok_or(Errno::EFAULT)?;
            // An address of another process is no pointer of this one.
            let there =
                libc::iovec { iov_base: ptr::without_provenance_mut(at), iov_len: len - done };
            match Errno::result(copy(done, there)) {
                Ok(0) | Err(Errno::ESRCH) => return Err(Errno::EFAULT),
                Ok(copied) => done += copied.unsigned_abs(),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl CallerMemory for Arc<Remote> {
    fn read(&self, address: u64, into: &mut [u8]) -> nix::Result<()> {
        not_locked();
        let there = RemoteIoVec { base: range(address)?, len: into.len() };
        let here = &mut [IoSliceMut::new(into)];
        let copied = process_vm_readv(self.number(), here, &[there])?;
        if copied == there.len { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> nix::Result<()> {
        not_locked();
        let there = RemoteIoVec { base: range(address)?, len: bytes.len() };
        let copied = process_vm_writev(self.number(), &[IoSlice::new(bytes)], &[there])?;
        if copied == there.len { Ok(()) } else { Err(Errno::EFAULT) }
    }

    fn inode(&self, fd: i32) -> nix::Result<Inode> {
        let path = format!("/proc/{}/fd/{fd}", self.pid);
        let stat = stat(path.as_str()).map_err(|_| Errno::EBADF)?;
        Ok(Inode { device: stat.st_dev, number: stat.st_ino })
    }

    fn user_memory(
        &self,
        address: u64,
        len: u64,
        anonymous: bool,
    ) -> nix::Result<Arc<dyn UserMemory>> {
        self.check_mapped(address, len, anonymous)?;
        Ok(self.promised_memory())
    }

    fn promised_memory(&self) -> Arc<dyn UserMemory> {
        Arc::<Remote>::clone(self)
    }

    fn own_number(&self, pid: u32) -> u32 {
        numbers::own(pid)
    }

    fn find_number(&self, number: u32, among: &[u32]) -> Option<u32> {
        numbers::find(self.pid, number, among)
    }
}

impl UserMemory for Remote {
    fn is_going(&self) -> bool {
        self.is_ending()
    }

    unsafe fn read(&self, address: u64, to: *mut u8, len: usize) -> nix::Result<()> {
        self.transfer(address, len, |done, there| {
            let here = libc::iovec { iov_base: to.wrapping_add(done).cast(), ..there };
            let pid = self.number().as_raw();
            // SAFETY: the caller says that there is room for `len` bytes, of which this is a part.
            // The other address is the kernel's to check.
            unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) }
        })
    }

    unsafe fn write(&self, address: u64, from: *const u8, len: usize) -> nix::Result<()> {
        self.transfer(address, len, |done, there| {
            let here = libc::iovec { iov_base: from.wrapping_add(done).cast_mut().cast(), ..there };
            let pid = self.number().as_raw();
            // SAFETY: the caller says that there are `len` bytes, of which this is a part, and they
            // are only read. The other address is the kernel's to check.
            unsafe { libc::process_vm_writev(pid, &raw const here, 1, &raw const there, 1, 0) }
        })
    }

    fn check(&self, address: u64, len: u64) -> nix::Result<()> {
        self.check_mapped(address, len, false)
    }
}

fn range(address: u64) -> nix::Result<usize> {
    usize::try_from(address).map_err(|_| Errno::EFAULT)
}

/// What a process may do, by its effective capabilities.
fn credentials(pid: u32) -> Credentials {
    let effective = status(pid, "CapEff:").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    let has = |capability| effective.unwrap_or(0) & capability != 0;
    Credentials { checkpoint: has(CAP_CHECKPOINT_RESTORE | CAP_SYS_ADMIN), nice: has(CAP_SYS_NICE) }
}

/// Whether a descriptor that a caller is to get closes on exec.
pub(super) fn is_close_on_exec(fd: &OwnedFd) -> bool {
    let flags = fcntl(fd, FcntlArg::F_GETFD).unwrap_or_default();
    FdFlag::from_bits_truncate(flags).contains(FdFlag::FD_CLOEXEC)
}

/// Before a call on another process's file of KFD: whether the caller is its ptracer.
pub(super) fn see_who_traces(host: &SimHost, caller: u32, file: FileId) {
    let mut state = host.state();
    let Ok(&FileKind::Kfd(owner)) = state.file(file) else { return };
    if owner == caller {
        return;
    }
    match tracer_of(owner) {
        Some(tracer) => state.tracers.insert(owner, tracer),
        None => state.tracers.remove(&owner),
    };
}

/// The process that traces another.
fn tracer_of(pid: u32) -> Option<u32> {
    // A thread, and of interest is its process.
    let thread = status(pid, "TracerPid:")?.parse().ok().filter(|&tracer| tracer != 0)?;
    status(thread, "Tgid:")?.parse().ok()
}

/// The first word of a line of a process's status.
fn status(pid: u32, key: &str) -> Option<String> {
    Some(status_line(pid, key)?.split_ascii_whitespace().next()?.to_owned())
}

/// A line of a process's status, without its key.
pub(super) fn status_line(pid: u32, key: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned)
}

/// Takes over what a call has just opened.
pub(super) fn new_descriptor(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the kernel has just opened it for us.
    (number >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

fn is_exiting(pid: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // After the name, which may have anything in it: the state, five numbers, the flags.
    let after_name = text.rsplit_once(") ").map_or("", |(_, after)| after);
    let flags = after_name.split(' ').nth(6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & PF_EXITING != 0)
}
