//! The plugin in real CRIU: beside processes without GPU state, and with a process whose device nodes
//! stand for files of a simulated machine. (Mapped VRAM needs a kernel that maps it.)

use std::{collections::BTreeMap, ffi::OsStr, io};

use vramstream_tests::{
    machine::{BoState, MachineSpec, SimulatedMachine},
    real::gpus::{GpuProcess, plugins},
};

use super::*;

/// CRIU in a directory of images, to its end: what it says on standard error, without times and
/// numbers of processes.
fn run_criu(
    criu: &Criu,
    words: &[&str],
    images: &Path,
    plugins: Option<&Path>,
    env: &[(&str, &OsStr)],
) -> Result<String> {
    run_as_criu(Command::new(criu.path()), words, images, plugins, env)
}

/// The same, with this command.
fn run_as_criu(
    mut command: Command,
    words: &[&str],
    images: &Path,
    plugins: Option<&Path>,
    env: &[(&str, &OsStr)],
) -> Result<String> {
    command.args(words).arg("-D").arg(images).stdin(Stdio::null());
    if let Some(plugins) = plugins {
        command.arg("-L").arg(plugins);
    }
    command.envs(env.iter().copied());
    // A file, since what it restores may keep it.
    let said = images.join("stderr");
    command.stdout(Stdio::null()).stderr(File::create(&said)?);
    let status = Process::start("criu", &mut command)?.wait(LONG)?;
    let said = fs::read_to_string(said)?;
    if !status.success() {
        let log = images.join(format!("{}.log", words[0]));
        let log = fs::read_to_string(log).unwrap_or_default();
        let errors: Vec<_> = log.lines().filter(|line| line.contains("Error")).collect();
        return Err(format!("criu {words:?}: {status}\n{said}\n{}", errors.join("\n")).into());
    }
    Ok(said)
}

/// Lines of a log without what differs from run to run.
fn comparable(said: &str) -> Vec<String> {
    let line = |line: &str| {
        let line = line
            .split_once(") ")
            .map_or(line, |(time, rest)| if time.starts_with("(0") { rest } else { line });
        // Numbers of processes may have a digit more the second time.
        line.trim().split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect()
    };
    said.lines().map(line).collect()
}

#[test]
fn with_plain_processes_the_plugin_is_not_there() -> Result<()> {
    with_each_criu(|criu| {
        let mut said = Vec::new();
        for with in [false, true] {
            let case = Case::new()?;
            let plugins = plugins(&case.scratch)?;
            let plugins = with.then_some(plugins.as_path());
            let mut workload = case.workload(Kind::Tree(4), criu)?;
            let images = case.scratch.dir("images")?;
            let target = workload.target().to_string();
            let dump = run_criu(criu, &["dump", "-t", &target], &images, plugins, &[])?;
            workload.gone()?;
            let pid = images.join("pid");
            let pidfile = pid.display().to_string();
            let words = ["restore", "-d", "--pidfile", &pidfile];
            let restore = run_criu(criu, &words, &images, plugins, &[])?;
            workload.set_restored(fs::read_to_string(&pid)?.trim().parse()?);
            workload.goes_on()?;
            said.push((comparable(&dump), comparable(&restore)));
        }
        assert_eq!(said[0], said[1]);
        Ok(())
    })
}

/// What a restore made of a process.
trait Restored {
    /// It is there again, with this memory and with queues that run.
    fn is_restored(&mut self, machine: &SimulatedMachine, before: &Memory) -> Result<()>;

    /// What its descriptors are.
    fn descriptors(&self) -> Result<BTreeMap<String, PathBuf>>;
}

impl Restored for GpuProcess {
    fn is_restored(&mut self, machine: &SimulatedMachine, before: &Memory) -> Result<()> {
        self.restored = true;
        if !machine.resumed(self.pid)? {
            return Err("the queues do not run".into());
        }
        assert_eq!(&memory(machine, self.pid)?, before);
        assert!(machine.queues(self.pid)?.iter().all(|(_, running)| *running));
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid))?.count();
        assert_eq!(tasks, 1, "threads were left in the restored process");
        // Its files, each once, and nothing else.
        let complaints = machine.complaints()?;
        assert!(complaints.iter().all(|line| line.ends_with("is still open")), "{complaints:?}");
        assert_eq!(complaints.len(), 1 + machine.spec().gpus as usize, "{complaints:?}");
        Ok(())
    }

    fn descriptors(&self) -> Result<BTreeMap<String, PathBuf>> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid))?;
        let read = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), fs::read_link(entry.path())?))
        };
        entries.map(read).collect()
    }
}

/// BOs by address: size, flags, checksum.
type Memory = BTreeMap<u64, (u64, u32, Option<u32>)>;

fn memory(machine: &SimulatedMachine, pid: u32) -> Result<Memory> {
    let bo = |bo: BoState| (bo.va, (bo.size, bo.flags, bo.crc));
    Ok(machine.bos(pid)?.into_iter().map(bo).collect())
}

const BOS: [&str; 4] = ["vram:0:48M", "vram:1:32M", "gtt:0:1M", "userptr:1:64K"];

/// Two machines, and a process on the first.
struct GpuCase {
    case: Case,
    here: SimulatedMachine,
    there: SimulatedMachine,
    plugins: PathBuf,
    process: GpuProcess,
    before: Memory,
}

impl GpuCase {
    fn new() -> Result<Self> {
        let case = Case::new()?;
        let spec = MachineSpec { vram: 256 << 20, ..MachineSpec::gpus(2) };
        let here = SimulatedMachine::start(&spec)?;
        let there = SimulatedMachine::start(&spec.elsewhere())?;
        let plugins = plugins(&case.scratch)?;
        let process = GpuProcess::start(
            &here,
            &case.scratch.dir("app")?,
            &BOS.map(|bo| format!("--bo={bo}")),
        )?;
        let before = memory(&here, process.pid)?;
        assert!(before.values().filter(|(_, _, crc)| crc.is_some()).count() >= 3);
        Ok(GpuCase { case, here, there, plugins, process, before })
    }

    fn dump(&self, criu: &Criu, images: &Path, how: &[&str]) -> Result<()> {
        self.dump_with(criu, images, how, "hook")
    }

    /// The same, with a choice of where to wait for contents that were handed over.
    fn dump_with(&self, criu: &Criu, images: &Path, how: &[&str], join: &str) -> Result<()> {
        let target = self.process.target();
        let words = [&["dump", "-v4", "-o", "dump.log", "-t", &target], how].concat();
        let env = [self.here.env(), ("VRAMSTREAM_JOIN", join.as_ref())];
        run_criu(criu, &words, images, Some(&self.plugins), &env).map(drop)
    }

    fn restore(&mut self, criu: &Criu, images: &Path, how: &[&str]) -> Result<()> {
        let words = [&["restore", "-v4", "-o", "restore.log", "-d"], how].concat();
        run_criu(criu, &words, images, Some(&self.plugins), &[self.there.env()])?;
        self.process.is_restored(&self.there, &self.before)
    }

    /// A streamer on one of the machines.
    fn streamer<'a>(machine: &SimulatedMachine, start: Start<'a>) -> Start<'a> {
        let (name, value) = machine.env();
        start.under(vec!["env".into(), format!("{name}={}", value.to_string_lossy())])
    }
}

#[test]
fn a_gpu_process_to_a_directory_and_back() -> Result<()> {
    with_each_criu(|criu| {
        let mut case = GpuCase::new()?;
        let images = case.case.scratch.dir("images")?;
        let descriptors = case.process.descriptors()?.len();
        case.dump(criu, &images, &[])?;
        case.process.gone()?;
        assert_eq!(case.here.left_stopped()?, Vec::<String>::new());
        case.restore(criu, &images, &[])?;
        assert_eq!(case.process.descriptors()?.len(), descriptors);
        Ok(())
    })
}

/// The contents go from the devices to the image and back through the streamers alone.
fn handed_over(criu: &Criu, how: &[&str], join: &str) -> Result<()> {
    let mut case = GpuCase::new()?;
    let image = case.case.image("image");
    let start = case.case.capture(&["--to", &image, "capture"]);
    let mut capture = GpuCase::streamer(&case.here, start).start()?;
    capture.ready(SHORT)?;
    let source = case.case.source.clone();
    case.dump_with(criu, &source, &[&["--stream"], how].concat(), join)?;
    capture.succeeds(LONG)?;
    case.process.gone()?;
    let log = fs::read_to_string(source.join("dump.log"))?;
    assert!(log.contains("the streamer has all contents"), "{log}");
    assert_eq!(case.here.left_stopped()?, Vec::<String>::new());
    let start = case.case.serve(&["serve", "--from", &image]);
    let mut serve = GpuCase::streamer(&case.there, start).start()?;
    serve.ready(SHORT)?;
    let destination = case.case.destination.clone();
    case.restore(criu, &destination, &["--stream"])?;
    serve.succeeds(SHORT)
}

#[test]
fn a_gpu_process_handed_over_to_the_streamer() -> Result<()> {
    with_each_criu(|criu| handed_over(criu, &[], "hook"))
}

/// CRIU's images and the GPUs' contents at the same time; the gate holds CRIU until both are safe.
#[test]
fn a_gpu_process_handed_over_while_criu_goes_on() -> Result<()> {
    with_each_criu(|criu| {
        let scratch = Scratch::new()?;
        let gate = scratch.join("vramstream-commit-gate");
        symlink(program()?, &gate)?;
        handed_over(criu, &["--action-script", &gate.display().to_string()], "exit")
    })
}

/// From one machine to another, with nothing on a disk.
#[test]
fn a_gpu_process_over_tcp() -> Result<()> {
    with_each_criu(|criu| {
        let mut case = GpuCase::new()?;
        let start = case.case.serve(&["receive", "--listen", "127.0.0.1:0"]);
        let mut receive = GpuCase::streamer(&case.there, start).start()?;
        receive.says("listening", SHORT)?;
        let progress = fs::read_to_string(case.case.destination.join("progress"))?;
        let address = progress.lines().find_map(|line| line.strip_prefix("listening "));
        let to = format!("tcp://{}", address.ok_or("it listens nowhere")?);
        let args = ["--to", &to, "--connections", "3", "capture"];
        let start = case.case.capture(&args);
        let mut capture = GpuCase::streamer(&case.here, start).start()?;
        capture.ready(SHORT)?;
        let source = case.case.source.clone();
        case.dump(criu, &source, &["--stream"])?;
        capture.succeeds(LONG)?;
        case.process.gone()?;
        receive.ready(LONG)?;
        let destination = case.case.destination.clone();
        case.restore(criu, &destination, &["--stream"])?;
        receive.succeeds(SHORT)
    })
}

#[test]
fn a_gpu_process_in_the_format_of_criu_image_streamer() -> Result<()> {
    with_each_criu(|criu| {
        let mut case = GpuCase::new()?;
        let args = ["--format", "criu-image-streamer", "capture"];
        let mut capture = case.case.capture(&args).stdout(Stdio::piped()).start()?;
        let shard = capture.process.stdout()?;
        let start = case.case.serve(&["serve"]).stdin(shard);
        let mut serve = GpuCase::streamer(&case.there, start).start()?;
        capture.ready(SHORT)?;
        let source = case.case.source.clone();
        case.dump(criu, &source, &["--stream"])?;
        capture.succeeds(LONG)?;
        case.process.gone()?;
        serve.ready(LONG)?;
        let destination = case.case.destination.clone();
        case.restore(criu, &destination, &["--stream"])?;
        serve.succeeds(SHORT)
    })
}

#[test]
fn a_streamer_that_fails_fails_the_dump_and_the_process_goes_on() -> Result<()> {
    with_each_criu(|criu| {
        let case = GpuCase::new()?;
        let disk = case.case.scratch.small_disk("disk", 20 * MIB)?;
        let image = format!("file:{}", disk.join("image").display());
        let start = case.case.capture(&["--to", &image, "capture"]);
        let mut capture = GpuCase::streamer(&case.here, start).start()?;
        capture.ready(SHORT)?;
        let source = case.case.source.clone();
        let failed = case.dump(criu, &source, &["--stream"]);
        let said = failed.err().ok_or("the dump succeeded")?.to_string();
        assert!(said.contains("No space left"), "{said}");
        assert!(capture.fails(SHORT)?.contains("No space left"));
        // Stopped for the dump, and running again.
        assert_eq!(case.here.left_stopped()?, Vec::<String>::new());
        assert_eq!(memory(&case.here, case.process.pid)?, case.before);
        assert!(!disk.join("image").exists());
        Ok(())
    })
}

/// Bytes of data that CRIU has itself: a dump without GPU memory takes no more.
const CRIU_DATA: u64 = 16 * MIB;
/// What the plugin may need beside its buffers.
const PLUGIN_DATA: u64 = 16 * MIB;

/// Dumps a process, which goes on, with a limit on CRIU's data that the kernel holds.
fn dump_under(
    limit: u64,
    criu: &Criu,
    machine: &SimulatedMachine,
    app: &str,
    streamed: bool,
) -> Result<()> {
    let case = Case::new()?;
    let process = GpuProcess::start(machine, &case.scratch.dir("app")?, &[app.to_owned()])?;
    let plugins = plugins(&case.scratch)?;
    let mut command = Command::new("prlimit");
    command.arg(format!("--data={limit}")).arg(criu.path());
    let target = process.target();
    let mut words = vec!["dump", "-v4", "-o", "dump.log", "--leave-running", "-t", &target];
    let mut capture = None;
    if streamed {
        words.push("--stream");
        let start = case.capture(&["capture"]);
        let mut started = GpuCase::streamer(machine, start).start()?;
        started.ready(SHORT)?;
        capture = Some(started);
    }
    let env = [machine.env(), ("KFD_MAX_BUFFER_SIZE", "8M".as_ref())];
    run_as_criu(command, &words, &case.source, Some(&plugins), &env)?;
    if let Some(mut capture) = capture {
        capture.succeeds(LONG)?;
    }
    Ok(())
}

/// Contents that were handed over are none of CRIU's business; to files they go through buffers.
#[test]
fn criu_needs_no_more_memory_for_more_vram() -> Result<()> {
    with_each_criu(|criu| {
        let spec = MachineSpec { vram: 768 * MIB, ..MachineSpec::gpus(1) };
        let machine = SimulatedMachine::start(&spec)?;
        for streamed in [true, false] {
            dump_under(CRIU_DATA, criu, &machine, "--only-kfd", streamed)?;
            let buffers = if streamed { 0 } else { 8 * MIB };
            let limit = CRIU_DATA + buffers + PLUGIN_DATA;
            dump_under(limit, criu, &machine, "--bo=vram:0:640M", streamed)?;
        }
        Ok(())
    })
}
