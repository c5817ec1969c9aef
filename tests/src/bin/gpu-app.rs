//! An application on a simulated machine, in a process of its own: something to checkpoint.
//!
//! ```text
//! gpu-app --dir DIR [MACHINE] --bo vram:0:4M --bo gtt:1:64K:visible --bo userptr:0:8K
//! ```
//!
//! Prints its pid, waits for a line, sets itself up, and prints what it has: each file of a device
//! (`file NUMBER PATH`), each mapping of memory (`vma PATH ADDRESS LENGTH OFFSET`), where its
//! userptrs are (`userptr ADDRESS LENGTH`), and `ready`. Then it waits until its standard input
//! ends. (Mappings are printed with the addresses that they would have: those of the BOs.)
//!
//! With `--stand-in KFD,RENDER,..` the files are held by another process, and this one has open
//! device nodes, which stand for them: what a checkpointer sees that knows devices and no sockets.
#![forbid(unsafe_code)]

use std::{
    error::Error,
    fs::{File, OpenOptions},
    hint,
    io::{self, BufRead, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use clap::Parser;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use vramstream::{
    abi::kfd::flags,
    device::{
        SocketDriver,
        sim::{AppBo, BoPlan, Machine, Program, ProgramPlan},
    },
    ring::ByteSize,
};
use vramstream_tests::{images::random_bytes, machine::MachineSpec};

#[derive(Parser)]
struct Options {
    /// The directory of the machine
    #[arg(long)]
    dir: PathBuf,
    #[command(flatten)]
    spec: MachineSpec,
    /// Memory: KIND:GPU:SIZE, then :visible for a mapping, :all for all GPUs
    #[arg(long)]
    bo: Vec<String>,
    /// Sizes of memory of the render node alone
    #[arg(long)]
    gem: Vec<String>,
    /// Memory of its own, which is random
    #[arg(long, default_value = "0")]
    memory: ByteSize,
    /// The GPUs that it uses, by place; all if none is named
    #[arg(long, value_delimiter = ',')]
    uses: Vec<usize>,
    /// Open the render nodes before /dev/kfd
    #[arg(long)]
    renders_first: bool,
    /// More files of each render node
    #[arg(long, default_value_t = 0)]
    more_renders: usize,
    /// More files of /dev/kfd
    #[arg(long, default_value_t = 0)]
    more_kfds: usize,
    /// Open the devices and do nothing with them
    #[arg(long)]
    idle: bool,
    /// Open only /dev/kfd
    #[arg(long)]
    only_kfd: bool,
    /// Device nodes that are to stand for the files: of /dev/kfd, and of each render node
    #[arg(long, value_delimiter = ',')]
    stand_in: Vec<PathBuf>,
    /// Only hold what was inherited, until this process ends
    #[arg(long, hide = true)]
    keep: Option<u32>,
    /// Be the one who does
    #[arg(long, hide = true)]
    kept: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-app: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    if let Some(of) = options.keep {
        return kept(options, of);
    }
    println!("pid {}", std::process::id());
    // Until then it can be hidden that there are GPUs.
    io::stdin().lock().read_line(&mut String::new())?;
    let machine = options.spec.machine();
    let driver = SocketDriver::new(options.dir.join("gpus.sock"));
    let own = random_bytes(1, usize::try_from(options.memory.0)?);
    let program = Program::start(&driver, &machine, &plan(options)?)?;
    for (address, len) in program.user_memory() {
        println!("userptr {address} {len}");
    }
    let more = program.more_kfds().iter().chain(program.more_renders());
    let files = std::iter::once(program.kfd()).chain(program.renders()).chain(more);
    if options.stand_in.is_empty() {
        for file in files {
            println!("file {} {}", file.as_fd().as_raw_fd(), file.path().display());
        }
        mappings(&program, &machine);
        println!("ready");
        io::stdin().read_to_end(&mut Vec::new())?;
    } else {
        let files: Vec<_> = files.collect();
        let mut nodes = Vec::new();
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        for (file, node) in files.iter().zip(&options.stand_in) {
            driver.stand_in(file.as_fd(), node)?;
            nodes.push(open_node(node)?);
        }
        keep(&options.dir, &fds)?;
        mappings(&program, &machine);
        drop(files);
        drop(program);
        for (node, path) in nodes.iter().zip(&options.stand_in) {
            println!("file {} {}", node.as_raw_fd(), path.display());
        }
        println!("ready");
        io::stdin().read_to_end(&mut Vec::new())?;
    }
    hint::black_box(own);
    Ok(())
}

fn mappings(program: &Program, machine: &Machine) {
    let print = |path: &Path, bo: &AppBo| {
        println!("vma {} {} {} {}", path.display(), bo.va, bo.size, bo.mmap_offset);
    };
    let visible = program.bos().iter().filter(|bo| bo.memory.is_some());
    for bo in visible {
        let registers = bo.flags & (flags::DOORBELL | flags::MMIO_REMAP) != 0;
        let path = if registers { Some(program.kfd().path()) } else { None };
        print(path.unwrap_or(&machine.gpus[bo.gpu].render_node()), bo);
    }
    for bo in program.runtime_bos().iter().filter(|bo| bo.flags & flags::DOORBELL != 0) {
        print(program.kfd().path(), bo);
    }
    let _ = io::stdout().flush();
}

/// A device that cannot be opened for both is opened for reading.
fn open_node(path: &Path) -> io::Result<File> {
    let both = OpenOptions::new().read(true).write(true).open(path);
    both.or_else(|_| File::open(path))
}

/// Another process with copies of these descriptors, which is not in this one's tree, for as long
/// as this one is there.
fn keep(dir: &Path, fds: &[BorrowedFd<'_>]) -> Result<(), Box<dyn Error>> {
    let copies: Vec<OwnedFd> =
        fds.iter().map(BorrowedFd::try_clone_to_owned).collect::<Result<_, _>>()?;
    for copy in &copies {
        fcntl(copy, FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    let own = std::process::id().to_string();
    keeper(dir, &["--keep", &own]).stdout(Stdio::null()).status()?;
    Ok(())
}

fn keeper(dir: &Path, how: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(how).arg("--dir").arg(dir).stdin(Stdio::null());
    command
}

/// The first time starts the keeper and ends, the second time is the keeper.
fn kept(options: &Options, of: u32) -> Result<(), Box<dyn Error>> {
    if !options.kept {
        keeper(&options.dir, &["--kept", "--keep", &of.to_string()]).process_group(0).spawn()?;
        return Ok(());
    }
    while Path::new(&format!("/proc/{of}")).exists() {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn plan(options: &Options) -> Result<ProgramPlan, Box<dyn Error>> {
    let size = |word: &String| -> Result<u64, Box<dyn Error>> {
        let ByteSize(bytes) = word.parse()?;
        Ok(bytes)
    };
    let gpus = match (options.only_kfd, options.uses.is_empty()) {
        (true, _) => Some(Vec::new()),
        (false, true) => None,
        (false, false) => Some(options.uses.clone()),
    };
    Ok(ProgramPlan {
        bos: options.bo.iter().map(|bo| memory(bo)).collect::<Result<_, _>>()?,
        gpus,
        renders_first: options.renders_first,
        more_renders: options.more_renders,
        more_kfds: options.more_kfds,
        gem: options.gem.iter().map(size).collect::<Result<_, _>>()?,
        idle: options.idle || options.only_kfd,
    })
}

fn memory(word: &str) -> Result<BoPlan, Box<dyn Error>> {
    let words: Vec<&str> = word.split(':').collect();
    let [kind, gpu, size, how @ ..] = words.as_slice() else {
        return Err(format!("{word:?} is not KIND:GPU:SIZE").into());
    };
    let ByteSize(size) = size.parse()?;
    let gpu = gpu.parse()?;
    let plan = match *kind {
        "vram" => BoPlan::vram(gpu, size),
        "gtt" => BoPlan::gtt(gpu, size),
        "userptr" => BoPlan::userptr(gpu, size),
        _ => return Err(format!("there is no memory of kind {kind:?}").into()),
    };
    Ok(BoPlan { host_visible: how.contains(&"visible"), all_gpus: how.contains(&"all"), ..plan })
}
