//! Descriptors that stand for objects.
//!
//! A dma-buf keeps its object for as long as any process has a descriptor of it. Here the
//! descriptor is of an empty memory file, or of a real dma-buf without memory where a kernel module
//! helps, and whether it is still open anywhere shows in the list
//! of file locks: each has one, which the machine we run on removes with the last descriptor.

use std::{
    collections::HashSet,
    fmt, fs,
    os::fd::{AsRawFd, OwnedFd},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        memfd::{MFdFlags, memfd_create},
        stat::{makedev, stat},
    },
    unistd::ftruncate,
};

use super::caller::Inode;

/// Who makes real dma-bufs, where somebody can.
pub(super) trait Exporter: fmt::Debug + Send + Sync {
    /// A descriptor of a new dma-buf, which nothing is known of but its size.
    fn export(&self, size: u64, writable: bool) -> nix::Result<OwnedFd>;
}

/// A new descriptor. Its size is that of the object, as with a dma-buf.
pub(super) fn descriptor(size: u64) -> nix::Result<OwnedFd> {
    let fd = memfd_create("dmabuf", MFdFlags::empty())?;
    ftruncate(&fd, i64::try_from(size).map_err(|_| Errno::EINVAL)?)?;
    Ok(fd)
}

/// Makes it show in the list of locks for as long as any descriptor of the file is open.
pub(super) fn mark(fd: &OwnedFd) -> nix::Result<()> {
    // SAFETY: locking a file that nobody else has touches no memory.
    Errno::result(unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
}

/// The files that are locked by a descriptor of some process; `None` where that cannot be known.
pub(super) fn open_somewhere() -> Option<HashSet<Inode>> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 14358 fe:00:5612674 0 EOF
    let inode = |line: &str| {
        let mut parts = line.split_ascii_whitespace().nth(5)?.split(':');
        let mut hexadecimal = || u64::from_str_radix(parts.next()?, 16).ok();
        let device = makedev(hexadecimal()?, hexadecimal()?);
        Some(Inode { device, number: parts.next()?.parse().ok()? })
    };
    Some(locks.lines().filter_map(inode).collect())
}

/// The descriptors of this process whose file a predicate chooses.
pub(super) fn descriptors_of_this_process(chosen: impl Fn(Inode) -> bool) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let number = |entry: fs::DirEntry| {
        let stat = stat(&entry.path()).ok()?;
        let inode = Inode { device: stat.st_dev, number: stat.st_ino };
        chosen(inode).then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    let mut numbers: Vec<i32> = entries.flatten().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::host::inode;

    #[test]
    fn a_descriptor_is_open_until_the_last_copy_is_closed() {
        let fd = descriptor(4096).unwrap();
        mark(&fd).unwrap();
        let this = inode(&fd).unwrap();
        let copy = fd.try_clone().unwrap();
        drop(fd);
        assert!(open_somewhere().unwrap().contains(&this));
        assert_eq!(descriptors_of_this_process(|inode| inode == this), [copy.as_raw_fd()]);
        drop(copy);
        assert!(!open_somewhere().unwrap().contains(&this));
    }
}
