//! The time in which a process's queues are stopped.

use crate::device::{Checkpoint, DeviceError, Kfd, ProcessInfo};

/// A process whose queues are stopped, once. They run again when this is dropped, on whatever path.
#[derive(Debug)]
pub struct Paused<'a> {
    kfd: &'a Kfd,
    info: ProcessInfo,
    running: bool,
}

impl<'a> Paused<'a> {
    /// Stops the queues of the process whose `/dev/kfd` this is. Only its ptracer may.
    pub fn pause(kfd: &'a Kfd) -> Result<Self, DeviceError> {
        let info = kfd.process_info()?;
        Ok(Paused { kfd, info, running: false })
    }

    /// How much state there is.
    pub fn info(&self) -> ProcessInfo {
        self.info
    }

    /// The state. It stays what it is until the queues run again.
    pub fn checkpoint(&self) -> Result<Checkpoint, DeviceError> {
        self.kfd.checkpoint(self.info)
    }

    /// Lets the queues run again.
    pub fn unpause(mut self) -> Result<(), DeviceError> {
        self.running = true;
        self.kfd.unpause()
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        if !self.running {
            // Whoever gave up has something more important to report.
            let _ = self.kfd.unpause();
        }
    }
}
