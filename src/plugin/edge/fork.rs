//! A process beside CRIU's, that CRIU does not notice.

use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        signal::{Signal, kill},
        socket::{AddressFamily, SockFlag, SockType, socketpair},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpid},
};

use super::super::host::{Beside, Work};

/// A child that sends no signal when it ends: CRIU exits at the first SIGCHLD that it does not
/// expect, and waits for "any child" without those of this kind, or for those that have ended. This one
/// ends when it is dropped.
#[derive(Debug)]
struct Child {
    pid: Pid,
    socket: OwnedFd,
}

impl Beside for Child {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // One that somebody else has killed may have been waited for, and its number be another's.
        let state = waitpid(self.pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
        if state != Ok(WaitStatus::StillAlive) {
            return;
        }
        // Whatever it does, and whoever has stopped it.
        let _ = kill(self.pid, Signal::SIGKILL);
        while waitpid(self.pid, Some(WaitPidFlag::__WALL)) == Err(Errno::EINTR) {}
    }
}

/// Starts a process that does this work and ends. Of all descriptors of this process it has the two
/// that the work is given: its end of the socket, and a handle of this process.
pub(super) fn beside(work: Work) -> io::Result<Box<dyn Beside>> {
    // The child has one thread, and locks that others hold would never be given back.
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("CRIU has more than one thread"));
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (socket, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
    let this = open_process(getpid())?;
    // No flags, and no signal at its end. The C library's fork would have one.
    // SAFETY: there is no other thread, so the child finds all memory in order. It runs on a copy of
    // this stack, and never returns from below.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if pid == 0 {
        let _ends = Ends;
        close_others([theirs.as_raw_fd(), this.as_raw_fd()]);
        work(theirs, this);
        return Err(io::Error::other("unreachable"));
    }
    let pid = i32::try_from(Errno::result(pid)?).map_err(io::Error::other)?;
    Ok(Box::new(Child { pid: Pid::from_raw(pid), socket }))
}

/// Ends this process when it is dropped, without giving back or flushing what is its parent's. A
/// panic too must not get out, into a second CRIU.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        // SAFETY: takes no memory and does not return.
        unsafe { libc::_exit(0) };
    }
}

/// Closes all descriptors but two.
fn close_others(mut keep: [RawFd; 2]) {
    keep.sort_unstable();
    let [first, second] = keep.map(i32::cast_unsigned);
    let ranges = [(0, first), (first + 1, second), (second + 1, u32::MAX)];
    for (from, end) in ranges {
        if from < end {
            // SAFETY: what owned these descriptors is another process's, and is never dropped here.
            unsafe { libc::syscall(libc::SYS_close_range, from, end - 1, 0) };
        }
    }
}

/// A handle of a process.
fn open_process(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: opens a descriptor and touches no memory.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
