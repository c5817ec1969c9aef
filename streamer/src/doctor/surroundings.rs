//! Everything that the checks look at, in one place.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::sys::resource::{Resource, getrlimit};
use vramstream::{device::Driver, system::System, uring};

/// The most of a small file that is read.
const MOST_TEXT: u64 = 64 << 10;

/// What this process may have.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Memory that it may lock, in bytes.
    pub locked_memory: u64,
    /// Files that it may open, at most.
    pub open_files: u64,
}

/// A machine, as far as it matters.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// What `/proc`, `/sys` and CRIU's directory for plugins are below.
    pub root: PathBuf,
    /// The variables of this process.
    pub environment: BTreeMap<OsString, OsString>,
    /// Who answers for the devices.
    pub driver: Arc<dyn Driver>,
    /// The KFD topology.
    pub topology: PathBuf,
    /// The directory of the simulated machine, if it is one.
    pub simulated: Option<PathBuf>,
    /// What this process may have.
    pub limits: Limits,
    /// Why io_uring cannot be used, or nothing.
    pub uring: Result<(), String>,
    /// The CRIU to look at instead of the one in `PATH`.
    pub criu: Option<PathBuf>,
    /// CRIU's directory for plugins, as it would be given to it with `--libdir`.
    pub libdir: Option<PathBuf>,
}

impl Surroundings {
    /// This machine.
    pub fn here(criu: Option<PathBuf>, libdir: Option<PathBuf>) -> Self {
        let system = System::from_env();
        let limit = |resource, hard| {
            getrlimit(resource).map_or(0, |(soft, most)| if hard { most } else { soft })
        };
        Surroundings {
            root: "/".into(),
            environment: env::vars_os().collect(),
            driver: Arc::clone(system.driver()),
            topology: system.topology_root().to_owned(),
            simulated: system.simulation().map(ToOwned::to_owned),
            limits: Limits {
                locked_memory: limit(Resource::RLIMIT_MEMLOCK, false),
                open_files: limit(Resource::RLIMIT_NOFILE, true),
            },
            uring: uring::probe().map_err(|error| error.to_string()),
            criu,
            libdir,
        }
    }

    /// A variable.
    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// A path of the machine.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// What is in a small file of the machine, without the spaces around it.
    pub(super) fn text(&self, path: &str) -> io::Result<String> {
        text(&self.path(path))
    }
}

/// What is in a small file, without the spaces around it.
pub(super) fn text(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(MOST_TEXT).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).trim().to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use vramstream::device::sim::{Credentials, Machine, Profile, SimHost};

    use super::*;

    /// A machine on which nothing stands in the way, below a directory; with simulated GPUs.
    pub(in crate::doctor) struct Scene {
        pub(in crate::doctor) dir: tempfile::TempDir,
        pub(in crate::doctor) here: Surroundings,
        pub(in crate::doctor) host: SimHost,
    }

    impl Scene {
        pub(in crate::doctor) fn new(gpus: u32) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let host = SimHost::new(Machine::new(&Profile::gfx90a(), gpus)).unwrap();
            let topology = dir.path().join("topology");
            host.write_sysfs(&topology).unwrap();
            let here = Surroundings {
                root: dir.path().to_owned(),
                environment: BTreeMap::new(),
                driver: Arc::new(host.process(Credentials::ROOT)),
                topology,
                simulated: None,
                limits: Limits { locked_memory: u64::MAX, open_files: 1 << 20 },
                uring: Ok(()),
                criu: None,
                libdir: None,
            };
            let scene = Scene { dir, here, host };
            scene.write("proc/sys/kernel/osrelease", "6.12.1-amd64\n");
            scene.write("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n");
            scene.write("proc/sys/fs/pipe-max-size", "1048576\n");
            scene.write("proc/sys/fs/pipe-user-pages-soft", "16384\n");
            fs::create_dir_all(scene.here.path("proc/self/ns")).unwrap();
            let initial = "user:[4026531837]";
            std::os::unix::fs::symlink(initial, scene.here.path("proc/self/ns/user")).unwrap();
            scene
        }

        /// Puts a file into the machine.
        pub(in crate::doctor) fn write(&self, path: &str, contents: impl AsRef<[u8]>) {
            let path = self.here.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, contents).unwrap();
        }

        /// Sets a variable.
        pub(in crate::doctor) fn set(&mut self, name: &str, value: impl Into<OsString>) {
            self.here.environment.insert(name.into(), value.into());
        }
    }
}
