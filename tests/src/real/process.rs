//! Child processes that do not outlive a test.

use std::fs;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Result, wait_for};

/// A running program, killed on drop.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts `command`, called `name` in messages.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        let child = command.spawn().map_err(|e| format!("{name}: cannot start it: {e}"))?;
        Ok(Self { name: name.to_owned(), child })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Takes its standard output, if that is a pipe and has not been taken.
    pub fn stdout(&mut self) -> Result<ChildStdout> {
        let name = &self.name;
        self.child.stdout.take().ok_or_else(|| format!("{name}: no standard output").into())
    }

    /// How it has ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for its end, at most for `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        wait_for(&what, limit, || self.ended())
    }

    /// Sends it SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `command` to its end and gives its standard output; another status than 0 is an error.
pub fn run(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {stderr}", output.status).into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether process `pid` exists and is no zombie.
pub fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.state != 'Z')
}

/// What /proc/PID/stat says of a process.
struct Stat {
    state: char,
    session: u32,
}

fn stat(pid: u32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some(Stat { state, session: fields.nth(2)?.parse().ok()? })
}

/// The processes of session `session`, zombies among them.
pub fn session_members(session: u32) -> Result<Vec<u32>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        if stat(pid).is_some_and(|stat| stat.session == session) {
            members.push(pid);
        }
    }
    Ok(members)
}

/// Sends SIGKILL to `pid`; one that is gone already is as well.
pub fn kill_pid(pid: u32) -> Result<()> {
    match kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(format!("cannot kill {pid}: {error}").into()),
    }
}

/// The last lines of a log, for a message; those that match `only`, if that is not empty.
pub fn tail(path: &Path, only: &str, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let matching: Vec<&str> = text.lines().filter(|line| line.contains(only)).collect();
    matching[matching.len().saturating_sub(lines)..].join("\n")
}
