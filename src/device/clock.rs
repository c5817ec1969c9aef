//! Whether the driver's clock is ours.
//!
//! A render node is told until when to wait, by the monotonic clock of the kernel. A process in a time
//! namespace has another one, and CRIU restores each task in such a namespace, so that its clock goes
//! on where it was: what is "in 10 s" there may be long past for the driver, or days ahead.

use std::{fs, io::ErrorKind, os::unix::fs::MetadataExt};

/// This process's time namespace, and its inode where it is the first one of the machine
/// (`PROC_TIME_INIT_INO`, "include/linux/proc_ns.h").
const TIME_NAMESPACE: &str = "/proc/self/ns/time";
const INITIAL_INODE: u64 = 0xefff_fffa;

/// Whether deadlines by our clock mean the same to the driver.
pub(super) fn is_the_drivers() -> bool {
    match fs::metadata(TIME_NAMESPACE) {
        Ok(namespace) => namespace.ino() == INITIAL_INODE,
        // A kernel without time namespaces; but where there is no /proc nobody knows.
        Err(error) => error.kind() == ErrorKind::NotFound && fs::metadata("/proc/self/ns").is_ok(),
    }
}
