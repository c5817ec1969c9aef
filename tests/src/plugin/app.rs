//! An application to checkpoint: `gpu-app`.

use std::{
    ffi::OsString,
    io::{self, BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

use crate::machine::{SimulatedMachine, program};

/// What a checkpointer sees of a process with devices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its descriptors of devices.
    pub files: Vec<i32>,
    /// Its mappings of devices: `PATH:ADDRESS:LENGTH:OFFSET`.
    pub vmas: Vec<String>,
    /// Where its userptrs are: `ADDRESS:LENGTH`.
    pub user_memory: Vec<String>,
}

/// A running application. Dropping it kills it.
#[derive(Debug)]
pub struct App {
    child: Child,
    process: Process,
}

impl App {
    /// Starts an application with the options of `gpu-app`, separated by blanks:
    /// `--bo vram:0:4M:visible --bo userptr:0:8K`.
    pub fn start(machine: &SimulatedMachine, options: &str) -> io::Result<Self> {
        Self::start_without(machine, options, &[])
    }

    /// The same, and some GPUs of the machine are hidden from it.
    pub fn start_without(
        machine: &SimulatedMachine,
        options: &str,
        hidden: &[usize],
    ) -> io::Result<Self> {
        let options = options.split_ascii_whitespace().map(OsString::from);
        let mut child = Command::new(program("gpu-app")?)
            .arg("--dir")
            .arg(machine.dir())
            .args(machine.spec().args())
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let gone = || io::Error::other("gpu-app has ended");
        let mut output = BufReader::new(child.stdout.take().ok_or_else(gone)?);
        let mut app = App { child, process: Process::default() };
        loop {
            let mut line = String::new();
            if output.read_line(&mut line)? == 0 {
                return Err(gone());
            }
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let process = &mut app.process;
            match words.as_slice() {
                ["pid", pid] => {
                    process.pid = pid.parse().map_err(io::Error::other)?;
                    for gpu in hidden {
                        machine.ask(&format!("hide {pid} {gpu}"))?;
                    }
                    let input = app.child.stdin.as_mut().ok_or_else(gone)?;
                    input.write_all(b"go\n")?;
                }
                ["file", number, _] => {
                    process.files.push(number.parse().map_err(io::Error::other)?);
                }
                ["vma", place @ ..] => process.vmas.push(place.join(":")),
                ["userptr", place @ ..] => process.user_memory.push(place.join(":")),
                ["ready"] => return Ok(app),
                _ => return Err(io::Error::other(format!("gpu-app says {line:?}"))),
            }
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// What a checkpointer sees of it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Lets it close everything and end: whether it did.
    pub fn end(mut self) -> io::Result<bool> {
        drop(self.child.stdin.take());
        Ok(self.child.wait()?.success())
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
