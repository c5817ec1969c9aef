//! Giving descriptors to a child.
//!
//! A descriptor reaches a child under its own number if it is not close-on-exec. Every descriptor
//! here is made close-on-exec and stays so but for the moment of the spawn, and all spawns of this
//! package that matter go through one lock: so no other child gets a copy, which would keep a pipe
//! open that a test waits to see closed.

use std::{
    io,
    os::fd::OwnedFd,
    process::{Child, Command},
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::io::{FdFlags, fcntl_setfd};

static SPAWNING: Mutex<()> = Mutex::new(());

/// Nothing is spawned or reaped by others while this is held.
pub(super) fn lock() -> MutexGuard<'static, ()> {
    SPAWNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spawns a child that inherits these descriptors under their numbers; they are closed here.
pub fn spawn(command: &mut Command, fds: Vec<OwnedFd>) -> io::Result<Child> {
    let guard = lock();
    for fd in &fds {
        fcntl_setfd(fd, FdFlags::empty())?;
    }
    let child = command.spawn();
    drop(fds);
    drop(guard);
    child.map_err(|error| {
        io::Error::new(error.kind(), format!("{}: {error}", command.get_program().display()))
    })
}
