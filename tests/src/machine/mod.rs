//! A simulated machine in a process of its own, with the directory that programs find it by:
//! `VRAMSTREAM_SIMULATED_GPUS` (see `vramstream::system`).
//!
//! | module | what it is |
//! |---|---|
//! | here | starts one, and asks it |
//! | [`spec`] | what it consists of |
//! | [`orders`] | the lines of its control channel |
//! | [`memory`] | memory on its GPUs that is nobody's |

pub mod memory;
pub mod orders;
pub mod spec;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io::{self, BufRead, BufReader, Read as _, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use vramstream::{device::SocketDriver, system::SIMULATED_GPUS};

pub use memory::GpuMemory;
pub use spec::{Kernel, MachineSpec};

/// The last line of an answer.
pub const END: &str = "end";
/// What an answer begins with that is none.
pub const WRONG: &str = "wrong: ";

/// A running machine.
#[derive(Debug)]
pub struct SimulatedMachine {
    spec: MachineSpec,
    dir: PathBuf,
    /// Removed with it, where it was made for it.
    _temporary: Option<tempfile::TempDir>,
    channel: Mutex<Channel>,
}

#[derive(Debug)]
struct Channel {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// A BO of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoState {
    /// The process's name for its GPU.
    pub gpu_id: u32,
    /// Its handle.
    pub handle: u64,
    /// Where it is in the GPU's address space.
    pub va: u64,
    /// In bytes.
    pub size: u64,
    /// What it was made with.
    pub flags: u32,
    /// The CRC-32 of its contents, where it has any.
    pub crc: Option<u32>,
}

/// Where a BO of a process is mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoPlace {
    /// Where it is in the GPU's address space.
    pub va: u64,
    /// The render node of its GPU.
    pub minor: u32,
    /// Where it is in the mmap space of that.
    pub offset: u64,
    /// The process's names for the GPUs that have it mapped.
    pub mapped: Vec<u32>,
}

impl SimulatedMachine {
    /// Starts one.
    pub fn start(spec: &MachineSpec) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("gpus").tempdir()?;
        let path = dir.path().to_owned();
        Self::launch(spec, path, Some(dir), &[])
    }

    /// Starts one whose files are in a directory, which is made if need be.
    pub fn start_in(spec: &MachineSpec, dir: &Path) -> io::Result<Self> {
        Self::launch(spec, dir.to_owned(), None, &[])
    }

    /// The same, whose devices are the kernel's as well, through the module behind `relay`.
    pub fn start_behind(spec: &MachineSpec, dir: &Path, relay: &Path) -> io::Result<Self> {
        let words = ["--relay".as_ref(), relay.as_os_str()];
        Self::launch(spec, dir.to_owned(), None, &words)
    }

    fn launch(
        spec: &MachineSpec,
        dir: PathBuf,
        temporary: Option<tempfile::TempDir>,
        words: &[&OsStr],
    ) -> io::Result<Self> {
        let mut command = Command::new(program("simulated-gpus")?);
        command.arg("--dir").arg(&dir).args(spec.args()).args(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let gone = || io::Error::other("simulated-gpus has no output");
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().ok_or_else(gone)?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let channel = Mutex::new(Channel { child, input, output });
        if line != "ready\n" {
            return Err(gone());
        }
        Ok(SimulatedMachine { spec: spec.clone(), dir, _temporary: temporary, channel })
    }

    /// What it consists of.
    pub fn spec(&self) -> &MachineSpec {
        &self.spec
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The variable of the environment with which a program is on this machine.
    pub fn env(&self) -> (&'static str, &OsStr) {
        (SIMULATED_GPUS, self.dir.as_os_str())
    }

    /// The driver of its devices.
    pub fn driver(&self) -> SocketDriver {
        SocketDriver::new(self.dir.join("gpus.sock"))
    }

    /// Asks for something, as [`orders`] says: the lines of the answer.
    pub fn ask(&self, order: &str) -> io::Result<Vec<String>> {
        let mut channel = self.channel();
        let Channel { input: Some(input), output, .. } = &mut *channel else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        writeln!(input, "{order}")?;
        let mut answer = Vec::new();
        let mut wrong = None;
        loop {
            let mut line = String::new();
            if output.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end();
            if line == END {
                return wrong.map_or(Ok(answer), |wrong| Err(io::Error::other(wrong)));
            }
            match line.strip_prefix(WRONG) {
                Some(what) => wrong = Some(what.to_owned()),
                None => answer.push(line.to_owned()),
            }
        }
    }

    fn ask_one<T: FromStr>(&self, order: &str) -> io::Result<T> {
        let answer = self.ask(order)?;
        let first = answer.first().and_then(|line| line.parse().ok());
        first.ok_or_else(|| io::Error::other(format!("{order}: {answer:?}")))
    }

    /// The BOs of a process, by address.
    pub fn bos(&self, pid: u32) -> io::Result<Vec<BoState>> {
        let answer = self.ask(&format!("bos {pid}"))?;
        let bo = |line: &String| {
            let mut words = line.split_ascii_whitespace();
            let mut next = || words.next().unwrap_or_default();
            Some(BoState {
                gpu_id: next().parse().ok()?,
                handle: next().parse().ok()?,
                va: next().parse().ok()?,
                size: next().parse().ok()?,
                flags: next().parse().ok()?,
                crc: u32::from_str_radix(next(), 16).ok(),
            })
        };
        let bos: Option<Vec<_>> = answer.iter().map(bo).collect();
        let mut bos = bos.ok_or_else(|| io::Error::other("no BOs"))?;
        bos.sort_by_key(|bo| bo.va);
        Ok(bos)
    }

    /// Where the BOs of a process are, by address.
    pub fn places(&self, pid: u32) -> io::Result<Vec<BoPlace>> {
        let place = |line: &String| {
            let mut words = line.split_ascii_whitespace();
            let mut next = || words.next().unwrap_or_default();
            Some(BoPlace {
                va: next().parse().ok()?,
                minor: next().parse().ok()?,
                offset: next().parse().ok()?,
                mapped: words.map(|word| word.parse().ok()).collect::<Option<_>>()?,
            })
        };
        let places: Option<Vec<_>> =
            self.ask(&format!("places {pid}"))?.iter().map(place).collect();
        let mut places = places.ok_or_else(|| io::Error::other("no places"))?;
        places.sort_by_key(|place| place.va);
        Ok(places)
    }

    /// Fills all memory of a process that has contents, each BO differently.
    pub fn fill(&self, pid: u32, kind: &str, seed: u64) -> io::Result<()> {
        for (n, bo) in (0..).zip(self.bos(pid)?).filter(|(_, bo)| bo.crc.is_some()) {
            self.ask(&format!("fill {pid} {} {kind} {}", bo.va, seed * 100_003 + n))?;
        }
        Ok(())
    }

    /// The queues of a process: number and whether it runs.
    pub fn queues(&self, pid: u32) -> io::Result<Vec<(u32, bool)>> {
        let queue = |line: &String| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            Some((words.first()?.parse().ok()?, *words.get(2)? == "Active"))
        };
        let queues: Option<_> = self.ask(&format!("queues {pid}"))?.iter().map(queue).collect();
        queues.ok_or_else(|| io::Error::other("no queues"))
    }

    /// How often each request was called.
    pub fn calls(&self) -> io::Result<BTreeMap<String, u64>> {
        let answer = self.ask("calls")?;
        let call = |line: &String| {
            let (name, times) = line.split_once(' ')?;
            Some((name.to_owned(), times.parse().ok()?))
        };
        let calls: Option<_> = answer.iter().map(call).collect();
        calls.ok_or_else(|| io::Error::other("no calls"))
    }

    /// What callers did wrong, or left behind, so far.
    pub fn complaints(&self) -> io::Result<Vec<String>> {
        self.ask("complaints")
    }

    /// Processes whose queues somebody has stopped and not started again.
    pub fn left_stopped(&self) -> io::Result<Vec<String>> {
        self.ask("left-stopped")
    }

    /// Waits until the work that RESUME began is done: false if it is not.
    pub fn resumed(&self, pid: u32) -> io::Result<bool> {
        self.ask_one(&format!("resumed {pid} 30000"))
    }

    /// Plans a fault, as [`orders`] says: its number.
    pub fn plan(&self, fault: &str) -> io::Result<usize> {
        self.ask_one(&format!("plan {fault}"))
    }

    /// How often a fault struck.
    pub fn hits(&self, fault: usize) -> io::Result<u64> {
        self.ask_one(&format!("hits {fault}"))
    }

    /// Ends a fault: how often it struck.
    pub fn release(&self, fault: usize) -> io::Result<u64> {
        self.ask_one(&format!("release {fault}"))
    }

    /// Ends it when its clients have closed their files: what they did wrong.
    pub fn end(self) -> io::Result<Vec<String>> {
        let mut channel = self.channel();
        drop(channel.input.take());
        let complaints: io::Result<Vec<_>> = channel.output.by_ref().lines().collect();
        channel.child.wait()?;
        complaints
    }

    /// Kills the daemon: the machine is gone, as if it had lost its power.
    pub fn kill(&self) -> io::Result<()> {
        let mut channel = self.channel();
        channel.child.kill()?;
        channel.child.wait().map(drop)
    }

    fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SimulatedMachine {
    fn drop(&mut self) {
        let mut channel = self.channel();
        let _ = channel.child.kill();
        let _ = channel.child.wait();
    }
}

/// Where a program of this package is: next to the running one.
pub fn program(name: &str) -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let mut near = own.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    near.find(|path| path.is_file()).ok_or_else(|| {
        let near = own.display();
        io::Error::other(format!(
            "no {name} next to {near}: build it with `cargo build --workspace`"
        ))
    })
}
