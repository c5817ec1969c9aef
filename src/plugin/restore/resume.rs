//! The queues run: in CRIU itself, when the memory of all tasks is where it belongs.
//!
//! CRIU asks for every task, with GPU state or without, and does nothing about the answer. So no
//! driver is asked where no task has restored any state, a task that the driver does not know is no
//! error, and at the end it is counted whether all that were restored run.

use nix::errno::Errno;

use super::super::{
    context::Context,
    error::{Error, Result},
};
use crate::{
    abi::criu::Level,
    device::{DeviceError, Kfd},
};

/// What was resumed so far.
#[derive(Debug, Default)]
pub(in crate::plugin) struct Resume {
    kfd: Option<Kfd>,
    running: u32,
}

impl Resume {
    /// Starts the queues of a task: whether it had any.
    pub(in crate::plugin) fn task(&mut self, cx: Context<'_>, pid: u32) -> Result<bool> {
        if cx.host.restored() == 0 {
            return Ok(false);
        }
        let kfd = match self.kfd.take() {
            Some(kfd) => kfd,
            None => Kfd::open(&**cx.system.driver())?,
        };
        match self.kfd.insert(kfd).resume(pid) {
            Ok(()) => {
                self.running += 1;
                cx.say(Level::Info, &format!("the queues of process {pid} run"));
                Ok(true)
            }
            Err(DeviceError::Call { errno: Errno::ESRCH, .. }) => Ok(false),
            Err(error) => Err(Error::Unsupported(format!(
                "the queues of process {pid} do not run, although CRIU says that it is restored: {error}"
            ))),
        }
    }

    /// The end of the restore: how many processes were restored and do not run.
    pub(in crate::plugin) fn left(&self, cx: Context<'_>) -> u32 {
        cx.host.restored().saturating_sub(self.running)
    }
}
