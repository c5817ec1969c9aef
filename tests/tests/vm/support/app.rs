//! `hsakmt-app`: an application on real libhsakmt (`tests/vm/app`), before and after its restore.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use vramstream_tests::real::{
    process::{Process, alive, kill_pid, session_members, tail},
    wait_for,
};

use super::{Case, Machine, Result};

const PROGRAM: &str = "/vm/app/hsakmt-app";
/// For what is slow because the machine is.
const PATIENCE: Duration = Duration::from_secs(180);

/// The application; killed on drop.
#[derive(Debug)]
pub(crate) struct App {
    started: Process,
    pid: u32,
    restored: bool,
    status: PathBuf,
    log: PathBuf,
    /// What its children report in: by the ends of the files' names.
    children: Vec<String>,
}

/// What of it must be the same after a restore.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// Address, size and flags of each BO.
    bos: Vec<(u64, u64, u32)>,
    /// Number of each queue, and whether it runs.
    queues: Vec<(u32, bool)>,
    /// Number and kind of each event.
    events: Vec<String>,
    /// Its descriptors, by number; devices by their place among those of the machine.
    descriptors: BTreeMap<u32, String>,
    /// Mappings of devices: addresses, rights, device.
    mappings: Vec<String>,
}

impl App {
    /// Starts it with these words, and waits until it has checked all of its memory.
    pub(crate) fn start(case: &Case, words: &[&str]) -> Result<Self> {
        let dir = case.dir("app")?;
        let (status, log) = (dir.join("status"), case.log("app.log")?);
        let said = File::create(&log)?;
        // A session of its own.
        let mut command = Command::new("setsid");
        command.arg(PROGRAM).arg("--status").arg(&status).args(words).current_dir("/");
        command.stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        let started = Process::start("the application", &mut command)?;
        let count = words.iter().skip_while(|&&word| word != "--children").nth(1);
        let count: u32 = count.map_or(Ok(0), |count| count.parse())?;
        let mut children: Vec<_> = (0..count).map(|child| child.to_string()).collect();
        children.extend(words.contains(&"--share").then(|| "shared".to_owned()));
        let pid = started.pid();
        let mut app = Self { started, pid, restored: false, status, log, children };
        app.goes_on()?;
        Ok(app)
    }

    /// The process to dump.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it, and each of its children, has gone through three more rounds; fails if it says
    /// that something is wrong.
    pub(crate) fn goes_on(&mut self) -> Result<()> {
        let files = self.children.iter().map(|child| {
            let name = format!("{}.{child}", self.status.display());
            PathBuf::from(name)
        });
        let files: Vec<_> = files.chain([self.status.clone()]).collect();
        for file in files {
            let before = round(&file)?.unwrap_or(0);
            wait_for("the application to go on", PATIENCE, || {
                let ended =
                    if self.restored { !alive(self.pid) } else { self.started.ended()?.is_some() };
                let now = round(&file)?;
                if ended {
                    let said = tail(&self.log, "", 10);
                    return Err(format!("the application has ended\n{said}").into());
                }
                Ok(now.filter(|&now| now >= before + 3).map(drop))
            })
            .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(())
    }

    /// What there is of it now.
    pub(crate) fn state(&self, machine: &Machine) -> Result<State> {
        let mut places = BTreeMap::from([("/dev/kfd".to_owned(), "kfd".to_owned())]);
        for (place, gpu) in machine.spec().machine().gpus.iter().enumerate() {
            places.insert(gpu.render_node().display().to_string(), format!("GPU {place}"));
        }
        let name = |path: &str| -> Result<String> {
            let device = path.starts_with("/dev/kfd") || path.starts_with("/dev/dri/");
            match places.get(path) {
                Some(place) => Ok(place.clone()),
                None if device => Err(format!("{path} is no device of this machine").into()),
                None => Ok(path.to_owned()),
            }
        };
        let mut descriptors = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{}/fd", self.pid))? {
            let entry = entry?;
            let number = entry.file_name().to_string_lossy().parse()?;
            let target = fs::read_link(entry.path())?.display().to_string();
            // Pipes and sockets have other numbers afterwards.
            let target = target.split(":[").next().unwrap_or_default().to_owned();
            descriptors.insert(number, name(&target)?);
        }
        let mut mappings = Vec::new();
        for line in fs::read_to_string(format!("/proc/{}/maps", self.pid))?.lines() {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            let [range, rights, _, _, _, path] = words.as_slice() else { continue };
            let is_device = |path: &Path| {
                path.metadata().is_ok_and(|metadata| metadata.file_type().is_char_device())
            };
            if is_device(Path::new(path)) {
                mappings.push(format!("{range} {rights} {}", name(path)?));
            }
        }
        let bos = machine.bos(self.pid)?;
        let events = machine.ask(&format!("events {}", self.pid))?;
        let number_and_kind = |line: &String| {
            line.rsplit_once(' ').map_or(line.clone(), |(event, _)| event.to_owned())
        };
        Ok(State {
            bos: bos.iter().map(|bo| (bo.va, bo.size, bo.flags)).collect(),
            queues: machine.queues(self.pid)?,
            events: events.iter().map(number_and_kind).collect(),
            descriptors,
            mappings,
        })
    }

    /// Waits until a successful dump has ended it, and its number is free again.
    pub(crate) fn gone(&mut self) -> Result<()> {
        if !self.restored {
            self.started.wait(PATIENCE)?;
        }
        wait_for("the end of its session", PATIENCE, || {
            Ok(session_members(self.pid)?.is_empty().then_some(()))
        })
    }

    /// Takes note that a restore made it again.
    pub(crate) fn set_restored(&mut self) {
        self.restored = true;
    }

    /// Kills it, and waits for its end.
    pub(crate) fn kill(mut self) -> Result<()> {
        for pid in session_members(self.pid)? {
            kill_pid(pid)?;
        }
        self.gone()
    }
}

impl State {
    /// The same on a machine whose GPUs have other places.
    pub(crate) fn assert_is(&self, other: &State, moved: bool) {
        let places = |state: &State| -> Vec<String> {
            let mut seen = Vec::new();
            let mut place = |name: &str| {
                let known = seen.iter().position(|known| known == name);
                let at = known.unwrap_or_else(|| {
                    seen.push(name.to_owned());
                    seen.len() - 1
                });
                format!("the GPU {at} of it")
            };
            let mut renamed = |text: &str| match text.find("GPU ") {
                Some(at) if moved => format!("{}{}", &text[..at], place(&text[at..])),
                _ => text.to_owned(),
            };
            let descriptors = state.descriptors.iter();
            let mut all: Vec<String> = descriptors
                .map(|(number, target)| format!("{number} {}", renamed(target)))
                .collect();
            all.extend(state.mappings.iter().map(|mapping| renamed(mapping)));
            all
        };
        assert_eq!(places(self), places(other), "descriptors and mappings");
        assert_eq!(self.bos, other.bos, "BOs");
        assert_eq!(self.queues, other.queues, "queues");
        assert_eq!(self.events, other.events, "events");
    }
}

impl Drop for App {
    fn drop(&mut self) {
        for pid in session_members(self.pid).unwrap_or_default() {
            let _ = kill_pid(pid);
        }
    }
}

/// How many rounds a status file tells of.
fn round(status: &Path) -> Result<Option<u64>> {
    let text = fs::read_to_string(status).unwrap_or_default();
    match text.trim().split_once(' ') {
        None => Ok(None),
        Some(("ok", count)) => Ok(Some(count.parse()?)),
        Some(_) => Err(text.trim().into()),
    }
}
