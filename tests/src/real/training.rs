//! A framework in training (`tests/frameworks/`), and the losses that it writes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::process::{Process, alive, kill_pid, run, session_members, tail};
use super::{Result, wait_for};

/// For a framework to be loaded, and for a training to come to its end.
const PATIENCE: Duration = Duration::from_secs(120);

/// A framework that `scripts/frameworks-setup` sets up.
#[derive(Clone, Copy, Debug)]
pub enum Framework {
    /// `PyTorch`, on the CPU.
    Torch,
    /// `TensorFlow`, on the CPU.
    TensorFlow,
}

impl Framework {
    fn name(self) -> &'static str {
        match self {
            Framework::Torch => "torch",
            Framework::TensorFlow => "tensorflow",
        }
    }

    /// The Python that has it, set up at the first call.
    fn python(self) -> Result<PathBuf> {
        static PYTHONS: [OnceLock<std::result::Result<PathBuf, String>>; 2] =
            [const { OnceLock::new() }; 2];
        let once = &PYTHONS[self as usize];
        let python = once.get_or_init(|| {
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/frameworks-setup");
            let lines =
                run(Command::new(script).arg(self.name())).map_err(|error| error.to_string())?;
            let path = lines.split_once(' ').map(|(_, path)| path.trim().into());
            path.ok_or_else(|| format!("{script} names no python: {lines:?}"))
        });
        Ok(python.clone()?)
    }
}

/// A training, before its dump and after its restore; killed on drop.
#[derive(Debug)]
pub struct Training {
    started: Process,
    pid: u32,
    restored: bool,
    losses: PathBuf,
    errors: PathBuf,
}

impl Training {
    /// Starts one of so many steps, with its files in a folder. The same steps give the same losses.
    pub fn start(framework: Framework, steps: u32, dir: &Path) -> Result<Self> {
        let (losses, errors) = (dir.join("losses"), dir.join("training.log"));
        let name = format!("frameworks/{}_loop.py", framework.name());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        // A session of its own.
        let mut command = Command::new("setsid");
        command.arg(framework.python()?).arg(script).arg("--losses").arg(&losses);
        command.args(["--steps", &steps.to_string()]).current_dir("/");
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors)?);
        let started = Process::start("the training", &mut command)?;
        let pid = started.pid();
        Ok(Self { started, pid, restored: false, losses, errors })
    }

    /// The process to dump.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// All that it has written: a line a step.
    pub fn losses(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.losses).unwrap_or_default())
    }

    /// How many steps it has made.
    pub fn steps(&self) -> Result<usize> {
        Ok(self.losses()?.lines().filter(|line| !line.starts_with("end ")).count())
    }

    /// Waits until it has made so many steps.
    pub fn reaches(&mut self, steps: usize) -> Result<()> {
        wait_for("the training's steps", PATIENCE, || {
            if let Some(status) = self.started.ended()? {
                let said = tail(&self.errors, "", 10);
                return Err(format!("the training has ended: {status}\n{said}").into());
            }
            Ok((self.steps()? >= steps).then_some(()))
        })
    }

    /// Waits until a successful dump has ended it, and its number is free again.
    pub fn gone(&mut self) -> Result<()> {
        self.started.wait(PATIENCE)?;
        wait_for("the end of its session", PATIENCE, || {
            Ok(session_members(self.pid)?.is_empty().then_some(()))
        })
    }

    /// Takes note that a restore made it again.
    pub fn set_restored(&mut self) {
        self.restored = true;
    }

    /// Waits for its end, which is that of the training, and gives all losses.
    pub fn ends(&mut self) -> Result<String> {
        wait_for("the end of the training", PATIENCE, || {
            let ended =
                if self.restored { !alive(self.pid) } else { self.started.ended()?.is_some() };
            Ok(ended.then_some(()))
        })?;
        let losses = self.losses()?;
        if losses.lines().next_back().is_some_and(|line| line.starts_with("end ")) {
            return Ok(losses);
        }
        let said = tail(&self.errors, "", 10);
        Err(format!("the training has failed after step {}\n{said}", self.steps()?).into())
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        if self.restored {
            let _ = kill_pid(self.pid);
        }
    }
}
