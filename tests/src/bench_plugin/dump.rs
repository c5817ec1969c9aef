//! One dump by real CRIU of a process that goes on afterwards, and what it cost.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    machine::SimulatedMachine,
    real::{
        Result,
        criu::{Criu, versions},
        gpus::{GpuProcess, plugins},
        host::Scratch,
    },
    streamer::{Launch, Operation, Program, Running},
};

/// How long a dump may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A machine, a CRIU and the plugin.
#[derive(Debug)]
pub struct Lab {
    /// The machine.
    pub machine: SimulatedMachine,
    /// Folders.
    pub scratch: Scratch,
    criu: Criu,
    plugins: PathBuf,
    gate: PathBuf,
}

/// How to dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Through a streamer that throws everything away; contents are waited for in this hook.
    HandedOver {
        /// What `VRAMSTREAM_JOIN` says.
        join: &'static str,
    },
    /// Into files.
    Directory {
        /// What `KFD_MAX_BUFFER_SIZE` says.
        buffer: &'static str,
    },
}

/// What it cost.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// From CRIU's start to its end.
    pub seconds: f64,
    /// Processor time of CRIU, what it runs, and the streamer.
    pub cpu: f64,
    /// The most memory that CRIU had.
    pub peak: u64,
}

impl Lab {
    /// With this machine, and files in a temporary directory or this one.
    pub fn new(machine: SimulatedMachine, disk: Option<&Path>) -> Result<Self> {
        let scratch = match disk {
            Some(disk) => Scratch::in_dir(disk)?,
            None => Scratch::new()?,
        };
        let criu = versions()?.into_iter().rfind(|criu| criu.at_least(4, 2));
        let criu = criu.ok_or("scripts/criu-setup has set up no CRIU of 4.2 or later")?;
        let gate = scratch.join("vramstream-commit-gate");
        symlink(Program::under_test()?.path(), &gate)?;
        let plugins = plugins(&scratch)?;
        Ok(Lab { machine, scratch, criu, plugins, gate })
    }

    /// A process with further options of `gpu-app`.
    pub fn process(&self, name: &str, options: &[String]) -> Result<GpuProcess> {
        GpuProcess::start(&self.machine, &self.scratch.dir(name)?, options)
    }

    /// Dumps a process, which goes on.
    pub fn dump(&self, process: &GpuProcess, how: How) -> Result<Cost> {
        let images = self.scratch.dir("images")?;
        let cost = self.dump_into(&images, process, how);
        fs::remove_dir_all(&images)?;
        let stopped = self.machine.left_stopped()?;
        if !stopped.is_empty() {
            return Err(format!("queues were left stopped: {stopped:?}").into());
        }
        cost
    }

    fn dump_into(&self, images: &Path, process: &GpuProcess, how: How) -> Result<Cost> {
        let mut command = Command::new(self.criu.path());
        let target = process.target();
        command.args(["dump", "--leave-running", "-o", "dump.log", "-t", &target]);
        command.arg("-D").arg(images).arg("-L").arg(&self.plugins);
        let (name, value) = self.machine.env();
        command.env(name, value).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut capture = None;
        match how {
            How::Directory { buffer } => {
                command.env("KFD_MAX_BUFFER_SIZE", buffer);
                // Or the dump would wait for what others have written before it.
                rustix::fs::sync();
            }
            How::HandedOver { join } => {
                capture = Some(self.capture(images)?);
                command.arg("--stream").arg("--action-script").arg(&self.gate);
                command.env("VRAMSTREAM_JOIN", join);
            }
        }
        let mut criu = Running::of(&mut command)?;
        let ended = criu.wait_within(PATIENCE)?;
        let log = || fs::read_to_string(images.join("dump.log")).unwrap_or_default();
        if !ended.success() {
            return Err(format!("criu dump: {}\n{}", ended.status, log()).into());
        }
        let mut cpu = ended.cpu;
        if let Some(mut capture) = capture {
            let ended = capture.wait_within(PATIENCE)?;
            ended.expect_success()?;
            cpu += ended.cpu;
        }
        let (seconds, cpu) = (ended.wall.as_secs_f64(), cpu.as_secs_f64());
        Ok(Cost { seconds, cpu, peak: ended.peak_memory })
    }

    /// A streamer that waits for CRIU. Its standard output is /dev/null.
    pub fn capture(&self, images: &Path) -> Result<Running> {
        capture(&self.machine, images)
    }
}

/// A streamer on a machine that waits for CRIU, and throws away what it takes.
pub fn capture(machine: &SimulatedMachine, images: &Path) -> Result<Running> {
    let (name, value) = machine.env();
    let on_machine = format!("{name}={}", value.to_string_lossy());
    let program = Program::under_test()?.through(&["env", &on_machine]);
    let capture = Launch::new(&program, images).no_shards().start(Operation::Capture)?;
    capture.wait_for("socket-init")?;
    Ok(capture)
}
