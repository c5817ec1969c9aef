//! The streamer under test, run as CRIU's users run it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use super::process::{Process, tail};
use super::{Result, wait_for};
use crate::streamer::Program;

/// The program: what VRAMSTREAM_BIN names, else the one built together with this one.
pub fn program() -> Result<PathBuf> {
    Ok(Program::under_test()?.path().to_owned())
}

/// A running streamer.
#[derive(Debug)]
pub struct Streamer {
    /// The program itself.
    pub process: Process,
    name: String,
    progress: PathBuf,
    errors: PathBuf,
}

/// How to start one.
#[derive(Debug)]
pub struct Start<'a> {
    /// The command words that it runs under, such as those that enter a network namespace.
    pub under: Vec<String>,
    /// The folder of CRIU's sockets.
    pub images: &'a Path,
    /// Its arguments after `-D` and `--progress-fd`.
    pub args: Vec<String>,
    /// Redirections in bash's notation, such as `10>fifo`.
    pub redirect: String,
    /// Its standard input.
    pub stdin: Stdio,
    /// Its standard output.
    pub stdout: Stdio,
}

impl<'a> Start<'a> {
    /// As `vramstream -D images ARGS`, with nothing on its standard streams.
    pub fn new(images: &'a Path, args: &[&str]) -> Self {
        Self {
            under: Vec::new(),
            images,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            redirect: String::new(),
            stdin: Stdio::null(),
            stdout: Stdio::null(),
        }
    }

    /// Under these command words.
    #[must_use]
    pub fn under(self, under: Vec<String>) -> Self {
        Self { under, ..self }
    }

    /// With this standard input.
    #[must_use]
    pub fn stdin(self, stdin: impl Into<Stdio>) -> Self {
        Self { stdin: stdin.into(), ..self }
    }

    /// With this standard output.
    #[must_use]
    pub fn stdout(self, stdout: impl Into<Stdio>) -> Self {
        Self { stdout: stdout.into(), ..self }
    }

    /// With these redirections.
    #[must_use]
    pub fn redirect(self, redirect: String) -> Self {
        Self { redirect, ..self }
    }

    /// Starts it.
    pub fn start(self) -> Result<Streamer> {
        let name = format!("vramstream {}", self.args.join(" "));
        let progress = self.images.join("progress");
        let errors = self.images.join("streamer.log");
        File::create(&progress)?;
        // The shell is here for its redirections: descriptors by number, without unsafe code.
        let script = format!("p=$1; shift; exec \"$@\" 9>>\"$p\" {}", self.redirect);
        let mut command = Command::new("bash");
        command.arg("-c").arg(script).arg("bash").arg(&progress).args(&self.under);
        command.arg(program()?).arg("-D").arg(self.images).args(["--progress-fd", "9"]);
        command.args(&self.args).stdin(self.stdin).stdout(self.stdout);
        command.stderr(File::create(&errors)?);
        let process = Process::start(&name, &mut command)?;
        Ok(Streamer { process, name, progress, errors })
    }
}

impl Streamer {
    /// Waits for a line of the word `line`, and possibly others, on the progress descriptor.
    pub fn says(&mut self, line: &str, limit: Duration) -> Result<()> {
        let what = format!("{line} from {}", self.name);
        wait_for(&what, limit, || {
            if fs::read_to_string(&self.progress)?
                .lines()
                .any(|said| said.split(' ').next() == Some(line))
            {
                return Ok(Some(()));
            }
            match self.process.ended()? {
                Some(status) => Err(self.message(status).into()),
                None => Ok(None),
            }
        })
    }

    /// Waits until CRIU can connect.
    pub fn ready(&mut self, limit: Duration) -> Result<()> {
        self.says("socket-init", limit)
    }

    /// Waits for its end, which must be a good one.
    pub fn succeeds(&mut self, limit: Duration) -> Result<()> {
        let status = self.process.wait(limit)?;
        if status.success() { Ok(()) } else { Err(self.message(status).into()) }
    }

    /// Waits for its end, which must be a failure with a message, and gives the message.
    pub fn fails(&mut self, limit: Duration) -> Result<String> {
        let status = self.process.wait(limit)?;
        let message = self.message(status);
        if status.success() {
            return Err(format!("{message}: it should have failed").into());
        }
        if fs::read_to_string(&self.errors)?.trim().is_empty() {
            return Err(format!("{message}: without a word on standard error").into());
        }
        Ok(message)
    }

    fn message(&self, status: ExitStatus) -> String {
        format!("{}: {status}\n{}", self.name, tail(&self.errors, "", 10))
    }
}
