//! The time in which a process's queues are stopped.

use std::borrow::Borrow;

use crate::device::{Checkpoint, DeviceError, Kfd, ProcessInfo};

/// A process whose queues are stopped, once. They run again when this is dropped, on whatever path.
#[derive(Debug)]
pub struct Paused<K: Borrow<Kfd>> {
    kfd: K,
    info: ProcessInfo,
    running: bool,
}

impl<K: Borrow<Kfd>> Paused<K> {
    /// Stops the queues of the process whose `/dev/kfd` this is. Only its ptracer may.
    pub fn pause(kfd: K) -> Result<Self, DeviceError> {
        let info = kfd.borrow().process_info()?;
        Ok(Paused { kfd, info, running: false })
    }

    /// How much state there is.
    pub fn info(&self) -> ProcessInfo {
        self.info
    }

    /// The state. It stays what it is until the queues run again.
    pub fn checkpoint(&self) -> Result<Checkpoint, DeviceError> {
        self.kfd.borrow().checkpoint(self.info)
    }

    /// Lets the queues run again.
    pub fn unpause(mut self) -> Result<(), DeviceError> {
        self.running = true;
        self.kfd.borrow().unpause()
    }
}

impl<K: Borrow<Kfd>> Drop for Paused<K> {
    fn drop(&mut self) {
        if !self.running {
            // Whoever gave up has something more important to report.
            let _ = self.kfd.borrow().unpause();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::device::sim::{Application, BoPlan, Credentials, Machine, Profile, SimHost};

    #[test]
    fn queues_run_again_once_on_every_path() {
        let host = SimHost::new(Machine::new(&Profile::gfx90a(), 1)).unwrap();
        let process = host.process(Credentials::USER);
        let app = Application::start(&process, &[BoPlan::vram(0, 4096)]).unwrap();
        let checkpointer = host.process(Credentials::ROOT);
        host.trace(&checkpointer, &process);
        Kfd::open(&checkpointer).unwrap().version().unwrap();
        let fd = app.kfd().as_fd().try_clone_to_owned().unwrap();
        let kfd = Kfd::adopt(&checkpointer, fd).unwrap();
        for dropped in [true, false] {
            let before = host.calls("CRIU_OP");
            let paused = Paused::pause(&kfd).unwrap();
            assert!(paused.info().bos > 0);
            assert!(!host.left_stopped().is_empty());
            if dropped {
                drop(paused);
            } else {
                paused.unpause().unwrap();
            }
            assert_eq!(host.left_stopped(), []);
            assert_eq!(host.calls("CRIU_OP"), before + 2);
        }
        assert_eq!(host.complaints(), []);
    }
}
