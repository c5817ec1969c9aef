//! A CRIU that is played: which one, with which plugins, where its images go.

use std::{
    env, fs,
    io::{self, BufRead, BufReader},
    ops::Deref,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    time::Duration,
};

use super::{Process, Run};
use crate::{
    deadline::Deadline,
    machine::{SimulatedMachine, program},
};

/// How long a dump or a restore may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which CRIU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// 3.17 to 3.19: 10 hooks, no list of plugins.
    Criu319,
    /// 4.0: 12 hooks, no list of plugins.
    Criu40,
    /// 4.1: 12 hooks.
    Criu41,
    /// 4.2: 13 hooks.
    Criu42,
    /// After 4.2: 15 hooks.
    Dev,
    /// One that nobody knows yet: 16 hooks.
    New,
}

impl Flavour {
    /// Those that there are.
    pub const KNOWN: [Flavour; 5] =
        [Flavour::Criu319, Flavour::Criu40, Flavour::Criu41, Flavour::Criu42, Flavour::Dev];

    /// How many hooks it knows.
    pub fn hooks(self) -> usize {
        match self {
            Flavour::Criu319 => 10,
            Flavour::Criu40 | Flavour::Criu41 => 12,
            Flavour::Criu42 => 13,
            Flavour::Dev => 15,
            Flavour::New => 16,
        }
    }

    /// Whether it has a list of plugins in the inventory.
    pub fn has_inventory(self) -> bool {
        !matches!(self, Flavour::Criu319 | Flavour::Criu40)
    }

    fn program(self) -> &'static str {
        match self {
            Flavour::Criu319 => "criu-host-319",
            Flavour::Criu40 => "criu-host-40",
            Flavour::Criu41 => "criu-host-41",
            Flavour::Criu42 => "criu-host-42",
            Flavour::Dev => "criu-host-dev",
            Flavour::New => "criu-host-new",
        }
    }
}

/// A CRIU with an images directory.
#[derive(Debug)]
pub struct Criu {
    flavour: Flavour,
    dir: tempfile::TempDir,
    plugins: Vec<PathBuf>,
    env: Vec<(String, String)>,
    options: Vec<String>,
    stream: bool,
    log_level: u32,
    data_limit: Option<u64>,
}

/// A restored process. It ends when what it was restored with is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The number that it had.
    pub virtual_pid: u32,
    /// What a checkpointer sees of it.
    pub process: Process,
    /// The checksums of its mappings, as its CPU sees them, by address.
    pub seen: Vec<(u64, u32)>,
}

impl Deref for Task {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

/// A restore, and the tasks that run now.
#[derive(Debug)]
pub struct Restored {
    /// What CRIU and the plugin did.
    pub run: Run,
    /// None if it failed.
    pub tasks: Vec<Task>,
    input: Option<ChildStdin>,
}

impl Restored {
    /// Lets the tasks end.
    pub fn end(mut self) {
        drop(self.input.take());
    }
}

impl Deref for Restored {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.run
    }
}

impl Criu {
    /// One with vramstream's plugin.
    pub fn new(flavour: Flavour) -> io::Result<Self> {
        let plugin = plugin()?;
        Ok(Criu { plugins: vec![plugin], ..Self::bare(flavour)? })
    }

    /// The same with its files in a directory in this one.
    pub fn new_in(flavour: Flavour, dir: &Path) -> io::Result<Self> {
        Ok(Criu { plugins: vec![plugin()?], ..Self::bare_in(flavour, dir)? })
    }

    /// One without plugins.
    pub fn bare(flavour: Flavour) -> io::Result<Self> {
        Self::bare_in(flavour, &env::temp_dir())
    }

    fn bare_in(flavour: Flavour, dir: &Path) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("criu").tempdir_in(dir)?;
        fs::create_dir(dir.path().join("images"))?;
        Ok(Criu {
            flavour,
            dir,
            plugins: Vec::new(),
            env: Vec::new(),
            options: Vec::new(),
            stream: false,
            log_level: 2,
            data_limit: None,
        })
    }

    /// The same with another version of CRIU, on the same images.
    #[must_use]
    pub fn as_flavour(mut self, flavour: Flavour) -> Self {
        self.flavour = flavour;
        self
    }

    /// The same with a variable in the environment.
    #[must_use]
    pub fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.into(), value.into()));
        self
    }

    /// The same with more options of the host, for the next command: `--fail-after 1`.
    #[must_use]
    pub fn with_options(mut self, options: &str) -> Self {
        self.options = options.split_ascii_whitespace().map(Into::into).collect();
        self
    }

    /// The same with other plugins.
    #[must_use]
    pub fn with_plugins(mut self, plugins: &[&Path]) -> Self {
        self.plugins = plugins.iter().map(|&path| path.to_owned()).collect();
        self
    }

    /// The same with images through a streamer, which must be there.
    #[must_use]
    pub fn streaming(mut self) -> Self {
        self.stream = true;
        self
    }

    /// The same with messages up to this level: 4 is all.
    #[must_use]
    pub fn log_level(mut self, level: u32) -> Self {
        self.log_level = level;
        self
    }

    /// The same with at most so many bytes of data in each of its processes, by the kernel's count.
    #[must_use]
    pub fn with_data(mut self, limit: u64) -> Self {
        self.data_limit = Some(limit);
        self
    }

    /// Its images directory.
    pub fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    /// The names of its images of a plugin.
    pub fn plugin_images(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.images())? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.retain(|name| name != "inventory.img" && !name.ends_with(".sock"));
        names.sort();
        Ok(names)
    }

    /// Dumps processes of a machine, which go on.
    pub fn dump(&self, machine: &SimulatedMachine, processes: &[&Process]) -> io::Result<Run> {
        let command = self.dump_command(machine, processes)?;
        self.run(command).map(|(run, _)| run)
    }

    /// Begins a dump, to do something meanwhile.
    pub fn begin_dump(
        &self,
        machine: &SimulatedMachine,
        processes: &[&Process],
    ) -> io::Result<Child> {
        let mut command = self.dump_command(machine, processes)?;
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }

    fn dump_command(
        &self,
        machine: &SimulatedMachine,
        processes: &[&Process],
    ) -> io::Result<Command> {
        let mut command = self.command(machine, "dump")?;
        for process in processes {
            let pid = process.pid;
            command.arg(format!("--pid={pid}"));
            command.args(process.files.iter().map(|file| format!("--file={pid}:{file}")));
            command.args(process.vmas.iter().map(|vma| format!("--vma={pid}:{vma}")));
            command.args(process.user_memory.iter().map(|at| format!("--userptr={pid}:{at}")));
        }
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Restores what was dumped.
    pub fn restore(&self, machine: &SimulatedMachine) -> io::Result<Restored> {
        let mut command = self.command(machine, "restore")?;
        command.stdin(Stdio::piped());
        let (run, input) = self.run(command)?;
        let tasks = if run.status.success() { self.tasks(&run)? } else { Vec::new() };
        Ok(Restored { run, tasks, input })
    }

    fn command(&self, machine: &SimulatedMachine, what: &str) -> io::Result<Command> {
        let path = |name: &str| self.dir.path().join(name);
        let host = program(self.flavour.program())?;
        let mut command = match self.data_limit {
            Some(limit) => {
                let mut command = Command::new("prlimit");
                command.arg(format!("--data={limit}")).arg(host);
                command
            }
            None => Command::new(host),
        };
        for name in ["KFD_MAX_BUFFER_SIZE", "KFD_NUMA_CHECK"] {
            command.env_remove(name);
        }
        let (name, value) = machine.env();
        command.env(name, value).envs(self.env.iter().map(|(name, value)| (name, value)));
        command.arg(what).arg("--images").arg(self.images());
        command.arg("--record").arg(path("record")).arg("--log").arg(path("log"));
        command.arg(format!("--log-level={}", self.log_level));
        self.plugins.iter().for_each(|plugin| {
            command.arg("--plugin").arg(plugin);
        });
        if self.stream {
            command.arg("--stream");
        }
        command.args(&self.options);
        Ok(command)
    }

    /// Runs it to its end. Its tasks have its output too, so that goes to files.
    fn run(&self, mut command: Command) -> io::Result<(Run, Option<ChildStdin>)> {
        let path = |name: &str| self.dir.path().join(name);
        let _ = fs::remove_file(path("log"));
        command.stdout(fs::File::create(path("stdout"))?);
        command.stderr(fs::File::create(path("stderr"))?);
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let status: io::Result<ExitStatus> =
            Deadline::after(PATIENCE).until("the end of CRIU", || child.try_wait());
        let status = status.inspect_err(|_| {
            let _ = child.kill();
        })?;
        let lines: io::Result<Vec<String>> =
            BufReader::new(fs::File::open(path("stdout"))?).lines().collect();
        let text = |name: &str| fs::read(path(name)).map(|b| String::from_utf8_lossy(&b).into());
        let log: String = text("log").unwrap_or_default();
        Ok((
            Run { status, lines: lines?, log: Run::parse_log(&log), stderr: text("stderr")? },
            input,
        ))
    }

    fn tasks(&self, run: &Run) -> io::Result<Vec<Task>> {
        let record = fs::read_to_string(self.dir.path().join("record"))?;
        let mut tasks: Vec<Task> = Vec::new();
        for line in record.lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            let number = |word: &str| word.parse().map_err(io::Error::other);
            match (kind, tasks.last_mut()) {
                ("task", _) => {
                    let virtual_pid = number(rest)?;
                    let found = run.lines.iter().find_map(|line| {
                        line.strip_prefix("task ")?.strip_prefix(&format!("{virtual_pid} "))
                    });
                    let pid = number(found.unwrap_or_default())?;
                    let process = Process { pid, ..Process::default() };
                    tasks.push(Task { virtual_pid, process, seen: Vec::new() });
                }
                ("file", Some(task)) => {
                    let (fd, _) = rest.split_once(':').unwrap_or_default();
                    task.process.files.push(fd.parse().map_err(io::Error::other)?);
                }
                ("userptr", Some(task)) => {
                    let (_, place) = rest.split_once(':').unwrap_or_default();
                    task.process.user_memory.push(place.to_owned());
                }
                _ => {}
            }
        }
        for line in run.lines.iter().filter_map(|line| line.strip_prefix("vma ")) {
            let (vma, crc) = line.split_once(' ').unwrap_or_default();
            let (pid, place) = vma.split_once(':').unwrap_or_default();
            let task = tasks.iter_mut().find(|task| task.virtual_pid.to_string() == pid);
            let Some(task) = task else { continue };
            task.process.vmas.push(place.to_owned());
            let address = place.split(':').nth(1).and_then(|address| address.parse().ok());
            let crc = u32::from_str_radix(crc, 16).ok();
            task.seen.extend(address.zip(crc));
        }
        Ok(tasks)
    }
}

/// vramstream's plugin: `VRAMSTREAM_PLUGIN`, or the library near the running test.
pub fn plugin() -> io::Result<PathBuf> {
    if let Some(path) = env::var_os("VRAMSTREAM_PLUGIN").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let own = env::current_exe()?;
    let mut near = own.ancestors().skip(1).take(2).map(|dir| dir.join("libvramstream.so"));
    near.find(|path| path.is_file())
        .ok_or_else(|| io::Error::other(format!("no libvramstream.so near {}", own.display())))
}
