//! Which machine this is: the one that the kernel shows, or a simulated one.
//!
//! With `VRAMSTREAM_SIMULATED_GPUS=DIR` in the environment it is simulated, and another process is
//! its devices (`simulated-gpus`):
//!
//! | file | in the place of | what |
//! |---|---|---|
//! | `DIR/gpus.sock` | | where the devices are |
//! | `DIR/topology` | `/sys/class/kfd/kfd/topology` | what there is |
//! | `DIR/dev` | `/sys/class/kfd/kfd/dev` | the device number of `/dev/kfd`, as `511:0` |
//! | `DIR/shm` | `/dev/shm` | shared memory |

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    device::{DeviceKind, Driver, SocketDriver, kernel::Kernel, numbers},
    topology::DEFAULT_ROOT,
};

/// The environment variable with the directory of a simulated machine.
pub const SIMULATED_GPUS: &str = "VRAMSTREAM_SIMULATED_GPUS";

/// A machine.
#[derive(Debug, Clone)]
pub struct System {
    driver: Arc<dyn Driver>,
    topology: PathBuf,
    shared_memory: PathBuf,
    /// The directory, where it is simulated.
    simulated: Option<PathBuf>,
}

impl System {
    /// The machine that the environment asks for.
    pub fn from_env() -> Self {
        match std::env::var_os(SIMULATED_GPUS) {
            Some(dir) if !dir.is_empty() => System::simulated(Path::new(&dir)),
            _ => System::real(),
        }
    }

    /// This machine.
    pub fn real() -> Self {
        System {
            driver: Arc::new(Kernel),
            topology: DEFAULT_ROOT.into(),
            shared_memory: "/dev/shm".into(),
            simulated: None,
        }
    }

    /// A machine whose files are in a directory.
    pub fn simulated(dir: &Path) -> Self {
        System {
            driver: Arc::new(SocketDriver::new(dir.join("gpus.sock"))),
            topology: dir.join("topology"),
            shared_memory: dir.join("shm"),
            simulated: Some(dir.to_owned()),
        }
    }

    /// The same with another driver.
    #[must_use]
    pub fn with_driver(self, driver: Arc<dyn Driver>) -> Self {
        System { driver, ..self }
    }

    /// Who answers for its devices.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Where the topology is.
    pub fn topology_root(&self) -> &Path {
        &self.topology
    }

    /// Where POSIX shared memory is.
    pub fn shared_memory(&self) -> &Path {
        &self.shared_memory
    }

    /// The directory of a simulated machine; `None` on a real one.
    pub fn simulation(&self) -> Option<&Path> {
        self.simulated.as_deref()
    }

    /// Whether there is a KFD driver at all. Asks no device.
    pub fn has_kfd(&self) -> bool {
        match &self.simulated {
            Some(dir) => dir.join("dev").exists(),
            None => numbers::kfd().is_some(),
        }
    }

    /// What a device number is of; `None` if it is nothing of ours. Asks no device.
    pub fn device(&self, number: u64) -> Option<DeviceKind> {
        match &self.simulated {
            Some(dir) => {
                let is_kfd = numbers::read(&dir.join("dev")) == Some(number);
                if is_kfd { Some(DeviceKind::Kfd) } else { numbers::render(number) }
            }
            None => numbers::of_kernel(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::makedev;
    use std::fs;

    use super::*;

    #[test]
    fn a_simulated_machine_is_what_its_directory_says() {
        let dir = tempfile::tempdir().unwrap();
        let system = System::simulated(dir.path());
        assert!(!system.has_kfd());
        assert_eq!(system.device(makedev(511, 0)), None);
        fs::write(dir.path().join("dev"), "511:0\n").unwrap();
        assert!(system.has_kfd());
        assert_eq!(system.device(makedev(511, 0)), Some(DeviceKind::Kfd));
        assert_eq!(system.device(makedev(511, 1)), None);
        let render = Some(DeviceKind::Render { minor: 130 });
        assert_eq!(system.device(makedev(226, 130)), render);
        assert_eq!(system.device(makedev(226, 1)), None);
    }
}
