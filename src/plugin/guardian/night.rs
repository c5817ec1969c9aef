//! What the guardian does, in its own process.

use std::{
    fs,
    os::fd::{AsFd, OwnedFd},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{prctl, ptrace, signal::SigSet},
    unistd::{Pid, chdir, setsid},
};

use crate::device::{DeviceError, Driver, Kfd, records::receive};

/// What it is called among processes.
const NAME: &std::ffi::CStr = c"vram-guardian";

/// How often it tries to become the tracer of who has another, and how long it waits each time:
/// long enough for the kernel to end CRIU, and for a debugger that somebody is about to end.
const MOST_TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(25);

/// Keeps the files that come on the socket until CRIU is gone, and starts queues then.
pub(super) fn watch(socket: &OwnedFd, criu: OwnedFd, tasks: Vec<Pid>, driver: &dyn Driver) {
    withdraw();
    let mut files = Vec::new();
    let mut told = true;
    loop {
        let ends = [(&criu, true), (socket, told)];
        let mut ends = ends
            .into_iter()
            .filter(|(_, wanted)| *wanted)
            .map(|(end, _)| PollFd::new(end.as_fd(), PollFlags::POLLIN))
            .collect::<Vec<_>>();
        match poll(&mut ends, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            // Nobody would know when.
            Err(_) => return,
        }
        let is_gone = ends.first().and_then(PollFd::any).unwrap_or(true);
        drop(ends);
        told = told && take(socket, &mut files);
        if is_gone {
            break;
        }
    }
    drop(criu);
    let files = files.into_iter().filter_map(|file| Kfd::adopt(driver, file).ok()).collect();
    start(files, tasks);
}

/// It has no part in what CRIU and its neighbours do: a signal to all of them does not end it, and it
/// keeps no directory in use. What is not allowed is no reason to give up.
fn withdraw() {
    let _ = SigSet::all().thread_block();
    let _ = setsid();
    let _ = chdir("/");
    let _ = prctl::set_name(NAME);
    let _ = fs::write("/proc/self/oom_score_adj", "-1000");
}

/// Takes what has come so far: whether more can come.
fn take(socket: &OwnedFd, files: &mut Vec<OwnedFd>) -> bool {
    let mut record = super::RECORD;
    loop {
        match receive(socket, &mut record, 1) {
            Ok(Some(received)) => files.extend(received.descriptors),
            Ok(None) => return false,
            Err(errno) => return errno == Errno::EAGAIN,
        }
    }
}

/// Starts the queues of all files. Which of the processes has which file only KFD knows, so all of
/// them are traced; none is stopped for that, and none is traced any more when this process ends.
fn start(mut files: Vec<Kfd>, mut tasks: Vec<Pid>) {
    for _ in 0..MOST_TRIES {
        // Who has ended needs nothing. Another that has its number now notices nothing of this, and
        // KFD knows that it is another.
        tasks.retain(|&task| ptrace::seize(task, ptrace::Options::empty()) == Err(Errno::EPERM));
        files.retain(|kfd| {
            matches!(kfd.unpause(), Err(DeviceError::Call { errno: Errno::EBADF, .. }))
        });
        if files.is_empty() || tasks.is_empty() {
            return;
        }
        thread::sleep(PAUSE);
    }
}
