//! Starting the workloads of `bin/workload.rs`, and seeing how they are.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::criu::Criu;
use super::process::{Process, alive, kill_pid, session_members};
use super::{Result, wait_for};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// One process that counts.
    Counter,
    /// As many processes, with pipes, shared memory, a deleted file and a listening socket.
    Tree(u32),
    /// One process with as many bytes of random memory.
    Memory(u64),
    /// A process in user, mount, pid and network namespaces of its own.
    Namespaces,
    /// A process that has a file open.
    Device(&'static str),
}

/// A workload, before its dump and after its restore; killed on drop.
#[derive(Debug)]
pub struct Workload {
    kind: Kind,
    started: Process,
    status: PathBuf,
    target: u32,
    restored: Option<u32>,
}

/// What a workload last said of itself.
#[derive(Debug)]
pub struct Report {
    /// How far it has come.
    pub count: u64,
    /// `ok`, or what is wrong.
    pub verify: String,
    /// Where it listens.
    pub listen: Option<String>,
}

impl Workload {
    /// Starts `program` as `kind`, to report in folder `dir`, and waits until it runs; what it does
    /// depends on what `criu` can dump.
    pub fn start(program: &str, kind: Kind, criu: &Criu, dir: &Path) -> Result<Self> {
        let status = dir.join("status");
        let words: Vec<String> = match kind {
            Kind::Counter => vec!["counter".into()],
            Kind::Tree(processes) => {
                // CRIU before 4.2 wants to know SO_PASSCRED of every socket; since 6.16 kernels
                // have it for UNIX sockets only.
                let listen = if criu.at_least(4, 2) { "tcp" } else { "unix" };
                vec!["tree".into(), processes.to_string(), listen.into()]
            }
            Kind::Memory(bytes) => vec!["memory".into(), bytes.to_string(), "20260101".into()],
            Kind::Namespaces => vec!["namespaces".into()],
            Kind::Device(path) => vec!["device".into(), path.into()],
        };
        let mut command = Command::new(program);
        command.arg(&words[0]).arg(&status).args(&words[1..]).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut started = Process::start("the workload", &mut command)?;
        let target = if let Kind::Namespaces = kind {
            let path = dir.join("status.pid");
            wait_for("the workload's child", Duration::from_secs(10), || {
                Ok(fs::read_to_string(&path).ok())
            })?
            .parse()?
        } else {
            started.pid()
        };
        wait_for("the workload's first report", Duration::from_secs(60), || {
            if let Some(status) = started.ended()? {
                return Err(format!("the workload has ended: {status}").into());
            }
            Ok(status.exists().then_some(()))
        })?;
        let workload = Self { kind, started, status, target, restored: None };
        workload.goes_on()?;
        Ok(workload)
    }

    /// The process to dump.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Which workload it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What it last said.
    pub fn report(&self) -> Result<Report> {
        let line = fs::read_to_string(&self.status)?;
        let words: HashMap<&str, &str> =
            line.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        Ok(Report {
            count: words.get("count").ok_or("a report without a count")?.parse()?,
            verify: (*words.get("verify").ok_or("a report without a verdict")?).to_owned(),
            listen: words.get("listen").map(|&listen| listen.to_owned()),
        })
    }

    /// Waits until it has counted on, and fails if it says that something is wrong.
    ///
    /// Three more rounds, because the first may have begun before the call.
    pub fn goes_on(&self) -> Result<()> {
        let before = self.report()?.count;
        wait_for("the workload to go on", Duration::from_secs(60), || {
            let report = self.report()?;
            if report.verify != "ok" {
                return Err(format!("{:?}: {}", self.kind, report.verify).into());
            }
            if !alive(self.restored.unwrap_or(self.target)) {
                return Err(format!("{:?}: the process has ended", self.kind).into());
            }
            Ok((report.count >= before + 3).then_some(()))
        })?;
        if let Some(address) = self.report()?.listen {
            let mut answer = String::new();
            if address.starts_with('/') {
                let mut stream = UnixStream::connect(&address)?;
                stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                stream.read_to_string(&mut answer)?;
            } else {
                let mut stream = TcpStream::connect(&address)?;
                stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                stream.read_to_string(&mut answer)?;
            }
            let _: u64 = answer.trim().parse().map_err(|_| format!("{address}: {answer:?}"))?;
        }
        Ok(())
    }

    /// Waits until a successful dump has ended all its processes and their numbers are free again.
    pub fn gone(&mut self) -> Result<()> {
        self.started.wait(Duration::from_secs(30))?;
        let target = self.target;
        wait_for("the dumped processes to be reaped", Duration::from_secs(30), || {
            let gone = session_members(target)?.is_empty() && stat_gone(target);
            Ok(gone.then_some(()))
        })
    }

    /// Takes note of the process that a restore made of it.
    pub fn set_restored(&mut self, pid: u32) {
        self.restored = Some(pid);
    }

    /// Fails if there is a process of it, or one appears within a while.
    pub fn stays_gone(&self) -> Result<()> {
        let before = self.report()?.count;
        // A restore that has failed kills what it made, but does not wait until that is reaped.
        wait_for("the half-restored processes to go", Duration::from_secs(10), || {
            let alive = session_members(self.target)?.into_iter().any(alive);
            Ok((!alive).then_some(()))
        })?;
        std::thread::sleep(Duration::from_millis(500));
        if self.report()?.count != before {
            return Err("a process runs that was not restored".into());
        }
        Ok(())
    }
}

fn stat_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

impl Drop for Workload {
    fn drop(&mut self) {
        // The members go by the session's number, which a restored process has again.
        let members = session_members(self.target).unwrap_or_default();
        for pid in members.into_iter().chain(self.restored) {
            let _ = kill_pid(pid);
        }
    }
}
