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
        let told = self.start(cx).and_then(|()| match &self.0 {
            State::Runs(guardian) => Ok(send(guardian.socket(), &RECORD, &[kfd])?),
            State::NotStarted | State::Missing => Ok(()),
        });
        if let Err(error) = told {
            let what = format!(
                "nobody watches over a process: if CRIU is killed before the end of the dump, its queues stay stopped: {error}"
            );
            cx.say(Level::Warning, &what);
        }
    }

    fn start(&mut self, cx: Context<'_>) -> io::Result<()> {
        if !matches!(self.0, State::NotStarted) {
            return Ok(());
        }
        let tasks = tracees::of_this_thread()?;
        if tasks.is_empty() {
            // They cannot be dumped then, which somebody else will say.
            return Ok(());
        }
        // It is tried once: later there may be more threads.
        self.0 = State::Missing;
        let driver = cx.system.driver().clone();
        let work = move |socket, criu| night::watch(&socket, criu, tasks, &*driver);
        if let Some(guardian) = cx.host.beside(Box::new(work))? {
            self.0 = State::Runs(guardian);
        }
        Ok(())
    }
}
