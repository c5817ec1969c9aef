//! The simulated host behind the kernel's device files: a module and a daemon.
//!
//! There is one at a time. Another host, with other GPUs, is one that is stopped and one that is started.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    real::{process::run, wait_for},
};

use super::Result;

/// The kernel module.
const MODULE: &str = "/vm/module/amdgpu.ko";
/// The module as the kernel calls it.
const NAME: &str = "amdgpu";
/// Where the daemon meets it.
const RELAY: &str = "/dev/gpu-relay";
/// The daemon's files.
const DIR: &str = "/run/gpus";
/// What clients look for.
const TOPOLOGY: &str = "/sys/class/kfd/kfd/topology";

/// For the module to be given back by all who use it.
const PATIENCE: Duration = Duration::from_secs(30);

/// See the [module](self). What it knows of its processes, and what is done to it, is what a
/// [`SimulatedMachine`] can be asked. Stopped on drop.
#[derive(Debug)]
pub(crate) struct Machine {
    simulated: Option<SimulatedMachine>,
}

impl Machine {
    /// Starts one. It is there when its files are.
    pub(crate) fn start(spec: &MachineSpec) -> Result<Self> {
        run(Command::new("insmod").arg(MODULE))?;
        let mut machine = Self { simulated: None };
        let (dir, relay) = (Path::new(DIR), Path::new(RELAY));
        let _ = fs::remove_dir_all(dir);
        wait_for(RELAY, PATIENCE, || Ok(relay.exists().then_some(())))?;
        machine.simulated = Some(SimulatedMachine::start_behind(spec, dir, relay)?);
        let missing: Vec<_> = files(spec).into_iter().filter(|path| !path.exists()).collect();
        if !missing.is_empty() {
            return Err(format!("the machine has no {missing:?}").into());
        }
        Ok(machine)
    }

    /// Stops it, after its processes: what they did wrong.
    pub(crate) fn stop(mut self) -> Result<Vec<String>> {
        let complaints = self.simulated.take().ok_or("it has not started")?.end()?;
        unload()?;
        let left: Vec<_> = [Path::new("/dev/kfd"), Path::new("/sys/class/kfd")].into();
        if let Some(left) = left.iter().find(|path| path.exists()) {
            return Err(format!("{} is left of the machine", left.display()).into());
        }
        Ok(complaints)
    }
}

impl Deref for Machine {
    type Target = SimulatedMachine;

    #[allow(clippy::expect_used)] // there is none only while it starts or stops
    fn deref(&self) -> &SimulatedMachine {
        self.simulated.as_ref().expect("a machine that runs")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Where it was stopped, nothing is loaded. Else a test has failed, and the next wants its turn.
        let started = self.simulated.take();
        let loaded = Path::new("/sys/module").join(NAME).exists();
        drop(started);
        if loaded && let Err(error) = unload() {
            eprintln!("the machine cannot be stopped: {error}");
        }
    }
}

/// Device files and others that a machine is known by.
fn files(spec: &MachineSpec) -> Vec<PathBuf> {
    let minors = spec.first_minor..spec.first_minor + spec.gpus;
    let nodes = minors.map(|minor| format!("/dev/dri/renderD{minor}").into());
    ["/dev/kfd".into(), TOPOLOGY.into()].into_iter().chain(nodes).collect()
}

/// Takes the module out, as soon as nobody uses it.
fn unload() -> Result<()> {
    let mut why = None;
    let done = wait_for("the end of the module's use", PATIENCE, || {
        why = run(Command::new("rmmod").arg(NAME)).err();
        Ok(why.is_none().then_some(()))
    });
    done.map_err(|error| why.map_or(error, |why| why))
}
