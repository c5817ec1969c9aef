//! Descriptors that the caller left open for us, by number.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::error::{Error, Result};

/// Takes over the descriptor `number`, which is closed; `what` it is for is said in messages.
///
/// The standard streams are duplicated instead: they stay open, as programs expect of them.
pub(super) fn inherit(number: i32, what: &str) -> Result<OwnedFd> {
    let failed = || format!("use file descriptor {number} for {what}: is it open?");
    match number {
        0 => return std::io::stdin().as_fd().try_clone_to_owned().map_err(Error::io(failed)),
        1 => return std::io::stdout().as_fd().try_clone_to_owned().map_err(Error::io(failed)),
        ..0 => return Err(Error::Usage(format!("{number} is not a file descriptor, for {what}"))),
        2 => return std::io::stderr().as_fd().try_clone_to_owned().map_err(Error::io(failed)),
        _ => {}
    }
    let fd = duplicate(number).map_err(Error::io(failed))?;
    // Whoever shared it may have made it non-blocking for purposes of their own.
    if let Ok(flags) = rustix::fs::fcntl_getfl(&fd) {
        let _ = rustix::fs::fcntl_setfl(&fd, flags - rustix::fs::OFlags::NONBLOCK);
    }
    // The number itself goes: a reader at the other end waits for the last copy to be closed.
    let _ = nix::unistd::close(number);
    Ok(fd)
}

/// A duplicate with close-on-exec. Asking the kernel for a descriptor of a process, which happens
/// to be this one, is the way to get from a number to a descriptor without trusting the number.
fn duplicate(number: i32) -> std::io::Result<OwnedFd> {
    let this = Pid::from_raw(i32::try_from(std::process::id()).unwrap_or(0))
        .ok_or(std::io::ErrorKind::Unsupported)?;
    let by_pidfd = pidfd_open(this, PidfdFlags::empty())
        .and_then(|pidfd| pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()));
    match by_pidfd {
        Ok(fd) => Ok(fd),
        Err(rustix::io::Errno::BADF) => Err(rustix::io::Errno::BADF.into()),
        // An old kernel, or a container that forbids it: pipes and files can be opened again.
        Err(_) => reopen(number),
    }
}

fn reopen(number: i32) -> std::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{number}");
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0);
    // The two lowest bits of the flags: read, write, both.
    let mode = flags & 3;
    let file = File::options().read(mode != 1).write(mode != 0).open(path)?;
    Ok(file.into())
}
