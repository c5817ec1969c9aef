//! `criu dump`: one process, one thread, the tracer of all tasks.

use std::{
    collections::BTreeMap,
    ffi::{c_int, c_void},
    fs::{self, File},
    io::Write as _,
    mem,
    os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    path::PathBuf,
    process::ExitCode,
    str::FromStr,
};

use clap::Args;
use nix::{
    errno::Errno,
    libc,
    sys::{
        ptrace,
        signal::{Signal, kill},
        stat::{fstat, makedev},
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

use super::{
    Common, Flavour, Result, Stage, complain,
    plugin::{ENOTSUP, Plugins, hook},
    record,
    record::{Record, Task, UserMemory, Vma},
    say, service,
};

/// The id of the first file.
const FIRST_ID: c_int = 7;

#[derive(Args, Debug)]
pub(super) struct Dump {
    #[command(flatten)]
    common: Common,
    /// A task, any number of times; the first is the root
    #[arg(long)]
    pid: Vec<i32>,
    /// A file of a task: PID:FD
    #[arg(long)]
    file: Vec<TaskFile>,
    /// A mapping of a device: PID:PATH:ADDRESS:LENGTH:OFFSET
    #[arg(long)]
    vma: Vec<Vma>,
    /// A mapping of another device: MAJOR:MINOR
    #[arg(long)]
    foreign_vma: Vec<String>,
    /// A file that this program opens itself and hands out as one of the root
    #[arg(long)]
    foreign_file: Vec<PathBuf>,
    /// Memory of userptrs: PID:ADDRESS:LENGTH
    #[arg(long)]
    userptr: Vec<UserMemory>,
    /// Something else fails after so many files
    #[arg(long)]
    fail_after: Option<usize>,
    /// Do not become the tracer
    #[arg(long)]
    no_trace: bool,
    /// Only what a pre-dump does
    #[arg(long)]
    pre_dump: bool,
    /// Kill the tasks at the end of a good dump, as CRIU does unless told otherwise
    #[arg(long)]
    kill: bool,
}

#[derive(Debug, Clone, Copy)]
struct TaskFile {
    pid: i32,
    fd: i32,
}

impl FromStr for TaskFile {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (pid, fd) = text.split_once(':').ok_or("PID:FD")?;
        let number = |word: &str| word.parse().map_err(|_| format!("{word:?} is no number"));
        Ok(TaskFile { pid: number(pid)?, fd: number(fd)? })
    }
}

impl Dump {
    pub(super) fn run(&self, flavour: &'static Flavour) -> Result<ExitCode> {
        let stage = if self.pre_dump { Stage::PreDump } else { Stage::Dump };
        self.common.begin(flavour, stage)?;
        let before = service::descriptors()?;
        let plugins = match Plugins::load(&self.common.plugin, stage) {
            Ok(plugins) => plugins,
            Err(error) => {
                eprintln!("criu-host: {error}");
                return Ok(ExitCode::FAILURE);
            }
        };
        if self.pre_dump {
            let done = self.mappings(&plugins);
            return Ok(code(done.is_ok()));
        }
        let mut record = Record::default();
        let mut handed_out = Vec::new();
        let mut done = self.dump(flavour, &plugins, &mut record, &mut handed_out);
        if done.is_ok() {
            done = self.finish(flavour, &mut record);
        }
        if let Err(error) = &done {
            complain(&format!("Dumping failed: {error}"));
        }
        plugins.exit(Stage::Dump, if done.is_ok() { 0 } else { -1 });
        self.release(done.is_ok())?;
        drop(handed_out);
        for (fd, what) in service::descriptors()? {
            if !before.iter().any(|(number, _)| *number == fd) {
                say(&format!("left {fd} {what}"));
            }
        }
        let threads = fs::read_dir("/proc/self/task")?.count();
        say(&format!("threads {threads}"));
        // Tasks are somebody else's children, and are let go by now.
        let children = waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
        let none = children == Err(Errno::ECHILD);
        say(&format!("children {}", if none { "none" } else { "left" }));
        Ok(code(done.is_ok()))
    }

    fn dump(
        &self,
        flavour: &Flavour,
        plugins: &Plugins,
        record: &mut Record,
        handed_out: &mut Vec<OwnedFd>,
    ) -> Result<()> {
        for &pid in &self.pid {
            if !self.no_trace {
                ptrace::seize(Pid::from_raw(pid), ptrace::Options::empty())?;
            }
            if flavour.hooks > hook::PAUSE_DEVICES {
                let ret = plugins.run_with(hook::PAUSE_DEVICES, pid);
                say(&format!("PAUSE_DEVICES {pid} = {ret}"));
                accept(ret)?;
            }
            if !self.no_trace {
                ptrace::interrupt(Pid::from_raw(pid))?;
                waitpid(Pid::from_raw(pid), None)?;
            }
        }
        if flavour.hooks > hook::CHECKPOINT_DEVICES {
            for &pid in &self.pid {
                let ret = plugins.run_with(hook::CHECKPOINT_DEVICES, pid);
                say(&format!("CHECKPOINT_DEVICES {pid} = {ret}"));
                accept(ret)?;
            }
        }
        let mut ids = BTreeMap::new();
        self.mappings(plugins)?;
        for path in &self.foreign_file {
            let file = fs::OpenOptions::new().read(true).open(path)?;
            let ret = dump_file(plugins, file.as_raw_fd(), 5);
            say(&format!("DUMP_EXT_FILE {} = {ret}", path.display()));
            if ret != ENOTSUP {
                return Err(format!("{} belongs to nobody here", path.display()).into());
            }
        }
        for &pid in &self.pid {
            let task = self.task(plugins, pid, &mut ids, handed_out)?;
            record.tasks.push(task);
        }
        if flavour.hooks > hook::DUMP_DEVICES_LATE
            && let Some(&root) = self.pid.first()
        {
            let ret = plugins.run_with(hook::DUMP_DEVICES_LATE, root);
            say(&format!("DUMP_DEVICES_LATE {root} = {ret}"));
            if ret != 0 && ret != ENOTSUP {
                return Err(format!("DUMP_DEVICES_LATE: {ret}").into());
            }
        }
        Ok(())
    }

    /// The mappings of all tasks, before any file.
    fn mappings(&self, plugins: &Plugins) -> Result<()> {
        for vma in self.vma.iter().filter(|vma| vma.path != super::task::OTHER) {
            let ret = handle_vma(plugins, number(&vma.path)?);
            say(&format!("HANDLE_DEVICE_VMA {} = {ret}", vma.path));
            if ret < 0 {
                return Err(format!("Can't handle non-regular mapping of {}", vma.path).into());
            }
        }
        for device in &self.foreign_vma {
            let (major, minor) = device.split_once(':').ok_or("MAJOR:MINOR")?;
            let ret = handle_vma(plugins, makedev(major.parse()?, minor.parse()?));
            say(&format!("HANDLE_DEVICE_VMA {device} = {ret}"));
            if ret != ENOTSUP {
                return Err(format!("device {device} belongs to nobody here").into());
            }
        }
        Ok(())
    }

    /// The files of a task, in the order of their numbers: all are fetched, and then handed out one
    /// after the other.
    fn task(
        &self,
        plugins: &Plugins,
        pid: i32,
        ids: &mut BTreeMap<(u64, u64), c_int>,
        handed_out: &mut Vec<OwnedFd>,
    ) -> Result<Task> {
        let mut numbers: Vec<RawFd> =
            self.file.iter().filter(|file| file.pid == pid).map(|file| file.fd).collect();
        numbers.sort_unstable();
        let mut fetched = Vec::new();
        for fd in numbers {
            fetched.push((fd, fetch(pid, fd)?));
        }
        let mut files = Vec::new();
        for (fd, open) in fetched {
            let stat = fstat(&open)?;
            let next = FIRST_ID + c_int::try_from(ids.len())? * 2;
            let known = ids.get(&(stat.st_dev, stat.st_ino)).copied();
            let id = known.unwrap_or(next);
            files.push(record::File { fd, id });
            if known.is_some() {
                continue;
            }
            ids.insert((stat.st_dev, stat.st_ino), id);
            let number = open.as_raw_fd();
            let ret = dump_file(plugins, number, id);
            say(&format!("DUMP_EXT_FILE {pid}:{fd} id={id} = {ret}"));
            // The number is another file's from now on.
            handed_out.push(something_else(open)?);
            if ret != 0 {
                return Err(format!("Can't dump file {fd} of process {pid}: {ret}").into());
            }
            if self.fail_after == Some(ids.len()) {
                return Err("something else failed".into());
            }
        }
        let mut vmas: Vec<_> = self.vma.iter().filter(|vma| vma.pid == pid).cloned().collect();
        vmas.sort_by_key(|vma| vma.address);
        let user_memory = self.userptr.iter().filter(|memory| memory.pid == pid).copied().collect();
        Ok(Task { pid, files, vmas, user_memory })
    }

    /// The inventory, which comes last.
    fn finish(&self, flavour: &Flavour, record: &mut Record) -> Result<()> {
        let names = super::locked(&super::host().inventory).clone();
        record.inventory = if flavour.inventory { names } else { None };
        record.write(&self.common.record)?;
        let mut image = if self.common.stream {
            let fd = service::streamer_open("inventory.img");
            if fd < 0 {
                return Err("Can't write inventory.img".into());
            }
            // SAFETY: opened by this program just now, and given to nobody else.
            File::from(unsafe { OwnedFd::from_raw_fd(fd) })
        } else {
            File::create(self.common.images.join("inventory.img"))?
        };
        Ok(image.write_all(b"an inventory")?)
    }

    /// The tasks go on, or are killed.
    fn release(&self, done: bool) -> Result<()> {
        for &pid in &self.pid {
            let pid = Pid::from_raw(pid);
            if self.kill && done {
                kill(pid, Signal::SIGKILL)?;
                if !self.no_trace {
                    waitpid(pid, Some(WaitPidFlag::__WALL))?;
                }
            } else if !self.no_trace {
                let _ = ptrace::detach(pid, None);
            }
        }
        service::uninstall(service::IMG_STREAMER);
        Ok(())
    }
}

fn code(done: bool) -> ExitCode {
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A result of a hook that may also say that it has nothing to do.
fn accept(ret: c_int) -> Result<()> {
    if ret < 0 && ret != ENOTSUP { Err(format!("a hook failed: {ret}").into()) } else { Ok(()) }
}

/// A file of another process.
fn fetch(pid: i32, fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: opens a descriptor.
    let process = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the kernel has just opened it.
    let process = unsafe { OwnedFd::from_raw_fd(RawFd::try_from(process)?) };
    // SAFETY: opens a descriptor.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) };
    let got = RawFd::try_from(Errno::result(got)?)?;
    // SAFETY: the kernel has just opened it.
    Ok(unsafe { OwnedFd::from_raw_fd(got) })
}

/// Closes a descriptor and opens something else under its number.
fn something_else(open: OwnedFd) -> Result<OwnedFd> {
    let number = open.into_raw_fd();
    let other = File::open("/dev/null")?;
    // SAFETY: the number is ours, and what it was is closed.
    Errno::result(unsafe { libc::dup2(other.as_fd().as_raw_fd(), number) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn dump_file(plugins: &Plugins, fd: RawFd, id: c_int) -> c_int {
    plugins.run(hook::DUMP_EXT_FILE, |function| {
        // SAFETY: this hook has this prototype.
        let function: unsafe extern "C" fn(c_int, c_int) -> c_int =
            unsafe { mem::transmute(function) };
        // SAFETY: as its prototype says.
        unsafe { function(fd, id) }
    })
}

fn handle_vma(plugins: &Plugins, device: u64) -> c_int {
    let Ok(file) = File::open("/dev/null") else { return -1 };
    // SAFETY: zeros are a struct stat.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    stat.st_mode = libc::S_IFCHR | 0o666;
    stat.st_rdev = device;
    plugins.run(hook::HANDLE_DEVICE_VMA, |function: *const c_void| {
        // SAFETY: this hook has this prototype.
        let function: unsafe extern "C" fn(c_int, *const libc::stat) -> c_int =
            unsafe { mem::transmute(function) };
        // SAFETY: as its prototype says.
        unsafe { function(file.as_raw_fd(), &raw const stat) }
    })
}

/// The number of a device of the machine that this process is on.
fn number(path: &str) -> Result<u64> {
    if let Some(minor) = path.strip_prefix("/dev/dri/renderD") {
        return Ok(makedev(226, minor.parse()?));
    }
    let dir = std::env::var_os(vramstream::system::SIMULATED_GPUS).ok_or("no machine")?;
    let text = fs::read_to_string(PathBuf::from(dir).join("dev"))?;
    let (major, minor) = text.trim().split_once(':').ok_or("no number")?;
    Ok(makedev(major.parse()?, minor.parse()?))
}
