//! The application on real libhsakmt, `tests/vm/app`: whether it goes on, and what it has.
//!
//! It checks all of its memory and its events itself, round after round. What is looked at from outside is
//! what it cannot see: mappings, descriptors, and the driver's side.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use vramstream_tests::{
    machine::SimulatedMachine,
    real::{
        process::{Process, alive, kill_pid, session_members, tail},
        wait_for,
    },
};

use super::{Case, Result};

const PROGRAM: &str = "/vm/app/hsakmt-app";
/// For a round, and for all to begin; the machine is slow.
const PATIENCE: Duration = Duration::from_secs(120);

/// It, before its dump and after its restore; killed on drop.
#[derive(Debug)]
pub(crate) struct App {
    started: Process,
    pid: u32,
    restored: bool,
    /// One of each of its processes that reports.
    status: Vec<PathBuf>,
    log: PathBuf,
}

/// What it has on a machine, as long as it goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Its descriptors, those of render nodes without their number.
    pub(crate) descriptors: Vec<String>,
    /// Its mappings of devices: address, access and what is mapped there.
    pub(crate) mappings: Vec<String>,
    /// Its BOs but for their contents, its queues and its events but for their state.
    pub(crate) driver: Vec<String>,
}

impl App {
    /// Starts it with these options, and waits until it runs.
    pub(crate) fn start(case: &Case, options: &[&str]) -> Result<Self> {
        let (dir, log) = (case.dir("app")?, case.log("app.log")?);
        let said = fs::File::create(&log)?;
        // A session of its own.
        let mut command = Command::new("setsid");
        command.arg(PROGRAM).arg("--status").arg(dir.join("status")).args(options);
        command.current_dir("/").stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        let started = Process::start("the application", &mut command)?;
        let mut status = vec![dir.join("status")];
        let mut words = options.iter();
        while let Some(&word) = words.next() {
            if word == "--share" {
                status.push(dir.join("status.second"));
            }
            if word == "--children" {
                let children: u32 = words.next().ok_or("how many children?")?.parse()?;
                status.extend((0..children).map(|n| dir.join(format!("status.child{n}"))));
            }
        }
        let pid = started.pid();
        let mut app = Self { started, pid, restored: false, status, log };
        wait_for("the application's first rounds", PATIENCE, || {
            if let Some(status) = app.started.ended()? {
                let said = tail(&app.log, "", 10);
                return Err(format!("the application has ended: {status}\n{said}").into());
            }
            Ok(app.status.iter().all(|path| path.exists()).then_some(()))
        })?;
        app.goes_on()?;
        Ok(app)
    }

    /// The process to dump.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until each of its processes has checked all that it has some times more, and fails if one of
    /// them has found something wrong.
    pub(crate) fn goes_on(&self) -> Result<()> {
        let at = |path: &PathBuf| generation(path);
        let before = self.status.iter().map(at).collect::<Result<Vec<_>>>()?;
        wait_for("the application to go on", PATIENCE, || {
            if !alive(self.pid) {
                let said = tail(&self.log, "", 10);
                return Err(format!("the application has ended\n{said}").into());
            }
            let now = self.status.iter().map(at).collect::<Result<Vec<_>>>()?;
            // The first round may have begun before the call.
            Ok(now.iter().zip(&before).all(|(now, before)| *now >= before + 3).then_some(()))
        })
        .map_err(|error| format!("{error}\n{}", self.places()).into())
    }

    /// Where its processes are, for a message.
    fn places(&self) -> String {
        let members = session_members(self.pid).unwrap_or_default();
        let place = |pid: &u32| {
            let read = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            format!("{pid}: {} {}\n{}", read("stat"), read("syscall"), read("stack"))
        };
        members.iter().map(place).collect()
    }

    /// Waits until a successful dump has ended all of it, and its numbers are free again.
    pub(crate) fn gone(&mut self) -> Result<()> {
        if !self.restored {
            self.started.wait(PATIENCE)?;
        }
        wait_for("the end of its session", PATIENCE, || {
            Ok(session_members(self.pid)?.is_empty().then_some(()))
        })
    }

    /// Ends it.
    pub(crate) fn end(mut self) -> Result<()> {
        self.clear()
    }

    /// Ends it, for it to be restored.
    pub(crate) fn clear(&mut self) -> Result<()> {
        for pid in session_members(self.pid)? {
            kill_pid(pid)?;
        }
        self.gone()
    }

    /// Takes note that a restore made it again.
    pub(crate) fn set_restored(&mut self) {
        self.restored = true;
    }

    /// What it has on this machine.
    pub(crate) fn facts(&self, machine: &SimulatedMachine) -> Result<Facts> {
        let (pid, places) = (self.pid, machine.places(self.pid)?);
        let mut descriptors = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let entry = entry?;
            // It writes its report while we look.
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            let link = link.display().to_string();
            if link.contains("/status") {
                continue;
            }
            let what =
                link.trim_end_matches(|c: char| link.starts_with("/dev/dri") && c.is_numeric());
            descriptors.push(format!("{} {what}", entry.file_name().display()));
        }
        descriptors.sort();

        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        let mut mappings = Vec::new();
        for line in maps.lines().filter(|line| line.contains(" /dev/")) {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [range, access, offset, _, _, path] = words.as_slice() else {
                return Err(format!("what is mapped is not /dev's: {line}").into());
            };
            let Some(minor) = path.strip_prefix("/dev/dri/renderD") else {
                mappings.push(format!("{range} {access} {path}"));
                continue;
            };
            let at = range.split_once('-').ok_or("no range")?.0;
            let (at, offset) = (u64::from_str_radix(at, 16)?, u64::from_str_radix(offset, 16)?);
            let minor: u32 = minor.parse()?;
            let bo = places.iter().find(|bo| bo.minor == minor && bo.offset == offset);
            let bo = bo.ok_or_else(|| format!("this is of no BO: {line}\n{places:x?}"))?;
            mappings.push(format!("{range} {access} BO at {:#x}, mapped at {at:#x}", bo.va));
        }

        let mut driver = Vec::new();
        for bo in machine.bos(pid)? {
            let place = places.iter().find(|place| place.va == bo.va).ok_or("a BO is nowhere")?;
            let (va, size) = (bo.va, bo.size);
            let of = format!("{} {:#x} {:#x}", bo.gpu_id, bo.handle, bo.flags);
            driver.push(format!("BO {va:#x} {size:#x} {of} on {:?}", place.mapped));
        }
        for (id, _) in machine.queues(pid)? {
            driver.push(format!("queue {id}"));
        }
        for event in machine.ask(&format!("events {pid}"))? {
            let words: Vec<&str> = event.split(' ').collect();
            driver.push(format!("event {} of kind {}", words[0], words[1]));
        }
        Ok(Facts { descriptors, mappings, driver })
    }

    /// Whether all of its queues run.
    pub(crate) fn queues_run(&self, machine: &SimulatedMachine) -> Result<()> {
        let left = machine.left_stopped()?;
        let queues = machine.queues(self.pid)?;
        if left.is_empty() && queues.iter().all(|&(_, runs)| runs) {
            return Ok(());
        }
        Err(format!("its queues do not run: {queues:?}, {left:?}").into())
    }
}

impl Drop for App {
    fn drop(&mut self) {
        for pid in session_members(self.pid).unwrap_or_default() {
            let _ = kill_pid(pid);
        }
        // The machine cannot be stopped while it is there.
        let _ = self.gone();
    }
}

/// How far a process says that it is.
fn generation(status: &Path) -> Result<u64> {
    let line = fs::read_to_string(status)?;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    match words.as_slice() {
        ["ok", generation, _] => Ok(generation.parse()?),
        _ => Err(format!("{}: {line}", status.display()).into()),
    }
}
