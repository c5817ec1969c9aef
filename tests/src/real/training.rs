//! A framework in training (`tests/frameworks/`), and the losses that it writes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::process::{Process, alive, kill_pid, run, session_members, tail};
use super::{Result, wait_for};

/// For a framework to be loaded, and for a training to come to its end, where all is emulated as well.
const PATIENCE: Duration = Duration::from_secs(900);

/// A framework that `scripts/frameworks-setup` sets up.
#[derive(Clone, Copy, Debug)]
pub enum Framework {
    /// `PyTorch`, on the CPU.
    Torch,
    /// `TensorFlow`, on the CPU.
    TensorFlow,
}

impl Framework {
    /// Its name for `scripts/frameworks-setup`.
    pub fn name(self) -> &'static str {
        match self {
            Framework::Torch => "torch",
            Framework::TensorFlow => "tensorflow",
        }
    }

    /// The name of its program in `tests/frameworks/`.
    pub fn script(self) -> String {
        format!("{}_loop.py", self.name())
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

/// Where a framework's Python and the program are.
#[derive(Clone, Debug)]
pub struct Program {
    /// A Python that has the framework.
    pub python: PathBuf,
    /// The program that it runs.
    pub script: PathBuf,
}

impl Program {
    /// As this machine has it, set up at the first call.
    pub fn of(framework: Framework) -> Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("frameworks");
        Ok(Self { python: framework.python()?, script: folder.join(framework.script()) })
    }
}

/// A training, before its dump and after its restore; killed on drop.
#[derive(Debug)]
pub struct Training {
    started: Process,
    pid: u32,
    restored: bool,
    losses: PathBuf,
    log: PathBuf,
}

impl Training {
    /// Starts one of so many steps, with its files in a folder. The same steps give the same losses.
    /// `parameters` is where those lie: `cpu` or `vram`.
    pub fn start(program: &Program, steps: u32, parameters: &str, dir: &Path) -> Result<Self> {
        let (losses, log) = (dir.join("losses"), dir.join("training.log"));
        let said = File::create(&log)?;
        // A session of its own.
        let mut command = Command::new("setsid");
        command.arg(&program.python).arg(&program.script).arg("--losses").arg(&losses);
        command.args(["--steps", &steps.to_string(), "--parameters", parameters]).current_dir("/");
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        let started = Process::start("the training", &mut command)?;
        let pid = started.pid();
        Ok(Self { started, pid, restored: false, losses, log })
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
                let said = tail(&self.log, "", 10);
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
        // (How a restored process ended nobody says.)
        if losses.lines().next_back().is_some_and(|line| line.starts_with("end ")) {
            return Ok(losses);
        }
        let said = tail(&self.log, "", 10);
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

/// What is wrong with losses that should be those of a training without an interruption, if anything is.
pub fn first_difference(losses: &str, reference: &str) -> Option<String> {
    let (mut found, mut wanted) = (losses.lines(), reference.lines());
    for line in 1_u32.. {
        let pair = (found.next(), wanted.next());
        if pair.0 != pair.1 {
            return Some(format!(
                "line {line} of the losses is {:?}, and not {:?}",
                pair.0, pair.1
            ));
        }
        if pair.0.is_none() {
            break;
        }
    }
    None
}
