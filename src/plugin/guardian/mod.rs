//! If CRIU is killed in the middle of a dump, somebody must start the queues that it has stopped.
//!
//! Only the ptracer of a process may, and that was CRIU. So before the first queue stops, a process
//! starts beside CRIU, the guardian, which is told of each open `/dev/kfd` whose queues are about to
//! stop. It sleeps until CRIU is gone, and is killed at the end of every dump that comes to an end.
//!
//! ```text
//!  plugin    start ── watch(kfd) ── PROCESS_INFO ── … ── UNPAUSE ── drop
//!  guardian    └─ sleeps ─ keeps the file ──────────────────────────┘ is killed
//!                 └─ CRIU is gone ── PTRACE_SEIZE ── UNPAUSE ── ends, and traces nobody any more
//! ```
//!
//! What it cannot help against: who kills it too, as the end of a control group does.
//!
//! A dump does not fail for want of a guardian: it warns.

mod night;
mod tracees;

use std::{io, os::fd::BorrowedFd};

use super::{context::Context, host::Beside};
use crate::{abi::criu::Level, device::records::send};

/// A record has nothing in it but a descriptor.
const RECORD: [u8; 1] = [0];

/// Nobody at first. The guardian ends when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Guardian(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    NotStarted,
    Runs(Box<dyn Beside>),
    /// There is none, and that was said.
    Missing,
}

impl Guardian {
    /// The queues of the process that has opened this `/dev/kfd` are about to stop. Must be called by
    /// the thread that traces it, while there is no other.
    pub(super) fn watch(&mut self, cx: Context<'_>, kfd: BorrowedFd<'_>) {
        if let Err(error) = self.try_watch(cx, kfd) {
            self.0 = State::Missing;
            let what = format!(
                "nobody watches over this dump: if CRIU is killed before its end, queues of the processes stay stopped ({error})"
            );
            cx.say(Level::Warning, &what);
        }
    }

    fn try_watch(&mut self, cx: Context<'_>, kfd: BorrowedFd<'_>) -> io::Result<()> {
        if let State::NotStarted = self.0 {
            let tasks = tracees::of_this_thread()?;
            if tasks.is_empty() {
                // It cannot be dumped then, which somebody else will say.
                return Ok(());
            }
            let driver = cx.system.driver().clone();
            let work = move |socket, criu| night::watch(&socket, criu, tasks, &*driver);
            self.0 = match cx.host.beside(Box::new(work))? {
                Some(guardian) => State::Runs(guardian),
                None => State::Missing,
            };
        }
        if let State::Runs(guardian) = &self.0 {
            send(guardian.socket(), &RECORD, &[kfd])?;
        }
        Ok(())
    }
}
