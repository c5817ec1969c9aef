//! A process with GPUs for real CRIU: device nodes that stand for files of a simulated machine.
//! (Mapped VRAM needs a kernel that maps it.)

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;

use super::host::Scratch;
use super::process::{Process, kill_pid, session_members};
use super::{Result, wait_for};
use crate::machine::{SimulatedMachine, program};
use crate::plugin::plugin;

/// A device that CRIU leaves to plugins, and that can be opened on every machine: /dev/fuse.
const DEVICE: (u64, u64) = (10, 229);
/// For the process to set itself up, which takes as long as it has memory, and for its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with the plugin in it, as CRIU wants one.
pub fn plugins(scratch: &Scratch) -> Result<PathBuf> {
    let dir = scratch.dir("plugins")?;
    fs::copy(plugin()?, dir.join("amdgpu_plugin.so"))?;
    Ok(dir)
}

/// See the [module](self). Killed on drop.
#[derive(Debug)]
pub struct GpuProcess {
    process: Process,
    /// Its number.
    pub pid: u32,
    /// Whether there is one of that number that is not our child.
    pub restored: bool,
    /// It goes on for as long as somebody can write to this.
    _input: File,
}

impl GpuProcess {
    /// Starts one with further options of `gpu-app`, with its files in an empty directory, and fills
    /// its memory on the GPUs.
    pub fn start(machine: &SimulatedMachine, dir: &Path, options: &[String]) -> Result<Self> {
        let nodes: Vec<_> =
            (0..=machine.spec().gpus).map(|n| dir.join(format!("node{n}"))).collect();
        for node in &nodes {
            let mode = Mode::S_IRUSR | Mode::S_IWUSR;
            mknod(node, SFlag::S_IFCHR, mode, makedev(DEVICE.0, DEVICE.1))?;
        }
        let (fifo, output) = (dir.join("input"), dir.join("output"));
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let mut input = OpenOptions::new().read(true).write(true).open(&fifo)?;
        input.write_all(b"go\n")?;
        let stand_in: Vec<_> = nodes.iter().map(|node| node.display().to_string()).collect();
        // A session of its own.
        let mut command = Command::new("setsid");
        command.arg(program("gpu-app")?);
        command.arg("--dir").arg(machine.dir()).args(machine.spec().args());
        command.arg("--stand-in").arg(stand_in.join(",")).args(options);
        command.current_dir("/").stdin(File::open(&fifo)?);
        command.stdout(File::create(&output)?).stderr(File::create(dir.join("errors"))?);
        let mut process = Process::start("gpu-app", &mut command)?;
        wait_for("gpu-app", PATIENCE, || {
            if let Some(status) = process.ended()? {
                let said = fs::read_to_string(dir.join("errors")).unwrap_or_default();
                return Err(format!("gpu-app: {status}\n{said}").into());
            }
            Ok(fs::read_to_string(&output)?.lines().any(|line| line == "ready").then_some(()))
        })?;
        let pid = process.pid();
        machine.fill(pid, "random", 7)?;
        Ok(GpuProcess { process, pid, restored: false, _input: input })
    }

    /// Its number, as a word for CRIU.
    pub fn target(&self) -> String {
        self.pid.to_string()
    }

    /// Waits for its end, which CRIU's dump has brought.
    pub fn gone(&mut self) -> Result<()> {
        self.process.wait(PATIENCE)?;
        // Its number is free when nobody is in its session: not who kept its files for it either.
        wait_for("the end of its session", PATIENCE, || {
            Ok(session_members(self.pid)?.is_empty().then_some(()))
        })
    }
}

impl Drop for GpuProcess {
    fn drop(&mut self) {
        if self.restored {
            let _ = kill_pid(self.pid);
        }
    }
}
