//! Programs to checkpoint: each runs until it is killed and reports, over and over, how far it has
//! come and whether everything it owns is still what it was.
//!
//! ```text
//! vramstream-workload counter    STATUS
//! vramstream-workload tree       STATUS PROCESSES tcp|unix
//! vramstream-workload memory     STATUS BYTES SEED
//! vramstream-workload namespaces STATUS
//! vramstream-workload device     STATUS PATH
//! ```
//!
//! STATUS is an absolute path. The report is one line of `key=value` words, replaced by rename so
//! that a reader never sees half of one: `pid`, `count` (grows for as long as all is well) and
//! `verify` (`ok`, or what is wrong with `_` for blanks), for `tree` also `listen`, the address of a
//! listening socket (of 127.0.0.1, or a path) that answers each connection with the count.
//! CRIU before 4.2 cannot dump TCP sockets on kernels that refuse SO_PASSCRED on them (6.16 and
//! newer), hence the choice.
//!
//! Each starts a session of its own and has nothing but /dev/null (or a file) as its standard
//! streams, so CRIU needs neither `--shell-job` nor the terminal. The process that was started is the
//! one to dump, for `namespaces` its child, whose pid the file STATUS.pid gives.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

use memmap2::MmapRaw;
use nix::fcntl::OFlag;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::{close, dup2_stderr, dup2_stdin, dup2_stdout, pipe2, pivot_root, setsid};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The time between two rounds of a workload that does little.
const PAUSE: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result =
        match args.as_slice() {
            ["counter", status] => counter(status),
            ["tree", status, processes, listen] => tree(status, processes, listen),
            ["tree-child", index, processes, memfd] => tree_child(index, processes, memfd),
            ["memory", status, bytes, seed] => memory(status, bytes, seed),
            ["namespaces", status] => namespaces(status),
            ["namespaces-map", pid] => namespaces_map(pid),
            ["namespaces-init", status] => namespaces_init(status),
            ["device", status, path] => device(status, path),
            _ => Err("usage: vramstream-workload counter|tree|memory|namespaces|device STATUS ..."
                .into()),
        };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The streams are gone by the time most things fail; the status file tells the test.
            let _ = writeln!(std::io::stderr(), "vramstream-workload: {error}");
            if let Some(status) = args.get(1).filter(|path| path.starts_with('/')) {
                let _ = Status::new(status).report(0, &error.to_string(), "");
            }
            ExitCode::FAILURE
        }
    }
}

/// Leaves the caller's session and terminal, and all files that the caller has handed down.
fn detach(stream: &Path) -> Result<()> {
    let mut inherited = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        inherited.extend(entry?.file_name().to_string_lossy().parse::<RawFd>());
    }
    for fd in inherited.into_iter().filter(|&fd| fd > 2) {
        // One of them was the directory just read, so that failing is in order.
        let _ = close(fd);
    }
    let file = OpenOptions::new().read(true).write(true).open(stream)?;
    dup2_stdin(&file)?;
    dup2_stdout(&file)?;
    dup2_stderr(&file)?;
    // Fails only for a process that leads its group, and then that is what is wanted already.
    let _ = setsid();
    Ok(())
}

/// The file that tells a test how the workload is doing.
struct Status {
    path: PathBuf,
    temporary: PathBuf,
}

impl Status {
    fn new(path: &str) -> Self {
        Self { path: PathBuf::from(path), temporary: PathBuf::from(format!("{path}.tmp")) }
    }

    fn report(&self, count: u64, verify: &str, more: &str) -> Result<()> {
        let verify: String =
            verify.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
        let line = format!("pid={} count={count} verify={verify} {more}\n", std::process::id());
        fs::write(&self.temporary, line)?;
        fs::rename(&self.temporary, &self.path)?;
        Ok(())
    }
}

fn counter(status: &str) -> Result<()> {
    detach(Path::new("/dev/null"))?;
    count(status)
}

fn count(status: &str) -> Result<()> {
    let status = Status::new(status);
    let mut count = 0;
    loop {
        count += 1;
        status.report(count, "ok", "")?;
        sleep(PAUSE);
    }
}

/// Counts with a file of one's choice open: with a device that CRIU cannot dump, a dump of it fails.
fn device(status: &str, path: &str) -> Result<()> {
    detach(Path::new("/dev/null"))?;
    let _open = OpenOptions::new().read(true).write(true).open(path)?;
    count(status)
}

/// The xorshift64* generator: what it yields does not compress.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn memory(status: &str, bytes: &str, seed: &str) -> Result<()> {
    const BLOCK: usize = 16 << 20;
    let bytes: usize = bytes.parse()?;
    let mut random = XorShift(seed.parse::<u64>()? | 1);
    detach(Path::new("/dev/null"))?;
    let status = Status::new(status);

    let mut data = vec![0u8; bytes];
    for word in data.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next().to_le_bytes());
    }
    let sums: Vec<u32> = data.chunks(BLOCK).map(crc32fast::hash).collect();

    let mut count = 0;
    let mut verify = "ok".to_owned();
    loop {
        for (block, (chunk, sum)) in data.chunks(BLOCK).zip(&sums).enumerate() {
            if crc32fast::hash(chunk) != *sum {
                verify = format!("block {block} of {BLOCK} bytes has changed");
            }
            sleep(Duration::from_millis(1));
        }
        // A count is a whole pass, so that one more of them means that all has been read again.
        count += u64::from(verify == "ok");
        status.report(count, &verify, "")?;
    }
}

/// Counters in memory that all processes of a tree share.
///
/// The mapping is used through the kernel (process_vm_readv on oneself): that goes through the very
/// mapping that CRIU has to bring back as a shared one, and needs no unsafe code.
struct Shared {
    map: MmapRaw,
}

impl Shared {
    fn map(file: &File, slots: usize) -> Result<Self> {
        Ok(Self { map: MmapRaw::map_raw(file).map_err(|e| format!("mapping {slots} slots: {e}"))? })
    }

    fn slot(&self, index: usize) -> RemoteIoVec {
        RemoteIoVec { base: self.map.as_mut_ptr().addr() + index * 8, len: 8 }
    }

    fn get(&self, index: usize) -> Result<u64> {
        let mut bytes = [0; 8];
        process_vm_readv(
            nix::unistd::getpid(),
            &mut [IoSliceMut::new(&mut bytes)],
            &[self.slot(index)],
        )?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn set(&self, index: usize, value: u64) -> Result<()> {
        let bytes = value.to_le_bytes();
        process_vm_writev(nix::unistd::getpid(), &[IoSlice::new(&bytes)], &[self.slot(index)])?;
        Ok(())
    }
}

/// A child and the pipes to it.
struct Branch {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
}

/// Starts the children of node `index` in a binary heap of `processes` nodes.
fn branches(index: usize, processes: usize, memfd: &str) -> Result<Vec<Branch>> {
    let mut branches = Vec::new();
    for child in [2 * index + 1, 2 * index + 2] {
        if child >= processes {
            break;
        }
        let mut child = Command::new(std::env::current_exe()?)
            .args(["tree-child", &child.to_string(), &processes.to_string(), memfd])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no pipe")?;
        let output = child.stdout.take().ok_or("no pipe")?;
        branches.push(Branch { child, input, output });
    }
    Ok(branches)
}

fn read_u64(from: &mut impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Sends `round` down all branches, then adds up how many processes answer.
fn ask(branches: &mut [Branch], round: u64) -> Result<u64> {
    for branch in &mut *branches {
        branch.input.write_all(&round.to_le_bytes())?;
    }
    let mut sum = 0;
    for branch in &mut *branches {
        sum += read_u64(&mut branch.output)?;
    }
    Ok(sum)
}

fn tree_child(index: &str, processes: &str, memfd: &str) -> Result<()> {
    let index: usize = index.parse()?;
    let processes: usize = processes.parse()?;
    let shared = Shared::map(&open_memfd(memfd)?, processes)?;
    let mut branches = branches(index, processes, memfd)?;
    let (mut stdin, mut stdout) = (std::io::stdin(), std::io::stdout());
    loop {
        let round = read_u64(&mut stdin)?;
        shared.set(index, round)?;
        let sum = 1 + ask(&mut branches, round)?;
        stdout.write_all(&sum.to_le_bytes())?;
        stdout.flush()?;
    }
}

/// Opens the memory file that a parent handed down as descriptor number `memfd`.
fn open_memfd(memfd: &str) -> Result<File> {
    Ok(OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{memfd}"))?)
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn new(kind: &str, status: &str) -> Result<Self> {
        match kind {
            "tcp" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
            "unix" => {
                let listener = UnixListener::bind(format!("{status}.sock"))?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener))
            }
            _ => Err(format!("cannot listen on {kind}").into()),
        }
    }

    fn address(&self) -> Result<String> {
        Ok(match self {
            Self::Tcp(listener) => listener.local_addr()?.to_string(),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                address.as_pathname().ok_or("the socket has no path")?.display().to_string()
            }
        })
    }

    /// Tells `count` to a caller, if there is one.
    fn answer(&self, count: u64) {
        let line = format!("{count}\n");
        // A caller that has gone away again is no concern of the workload.
        let _ = match self {
            Self::Tcp(listener) => {
                listener.accept().and_then(|mut c| c.0.write_all(line.as_bytes()))
            }
            Self::Unix(listener) => {
                listener.accept().and_then(|mut c| c.0.write_all(line.as_bytes()))
            }
        };
    }
}

fn tree(status: &str, processes: &str, listen: &str) -> Result<()> {
    let processes: usize = processes.parse()?;
    detach(Path::new("/dev/null"))?;

    let memfd = File::from(memfd_create(c"vramstream-workload", MFdFlags::empty())?);
    memfd.set_len((processes as u64 * 8).next_multiple_of(4096))?;
    let shared = Shared::map(&memfd, processes)?;
    let mut branches = branches(0, processes, &memfd.as_raw_fd().to_string())?;

    // A file that has lost its name, and a pipe with bytes in it: both exist only in the image.
    let mut random = XorShift(0x5eed);
    let content: Vec<u8> = (0..8192).flat_map(|_| random.next().to_le_bytes()).collect();
    let deleted_path = format!("{status}.deleted");
    let deleted = OpenOptions::new().read(true).write(true).create_new(true).open(&deleted_path)?;
    deleted.write_all_at(&content, 0)?;
    fs::remove_file(&deleted_path)?;
    let (read_end, write_end) = pipe2(OFlag::O_CLOEXEC)?;
    let (mut read_end, mut write_end) = (File::from(read_end), File::from(write_end));
    write_end.write_all(&content[..4096])?;

    let listener = Listener::new(listen, status)?;
    let address = listener.address()?;

    let status = Status::new(status);
    let mut count = 0;
    loop {
        count += 1;
        let verdict = (|| -> Result<()> {
            shared.set(0, count)?;
            let alive = 1 + ask(&mut branches, count)?;
            if alive != processes as u64 {
                return Err(format!("{alive} of {processes} processes answer").into());
            }
            for index in 0..processes {
                let seen = shared.get(index)?;
                if seen != count {
                    return Err(format!("process {index} is at {seen}, not {count}").into());
                }
            }
            let mut again = vec![0; content.len()];
            deleted.read_exact_at(&mut again, 0)?;
            if again != content {
                return Err("the deleted file has changed".into());
            }
            let mut again = vec![0; 4096];
            read_end.read_exact(&mut again)?;
            if again != content[..4096] {
                return Err("the bytes in the pipe have changed".into());
            }
            write_end.write_all(&again)?;
            if listener.address()? != address {
                return Err("the listener has another address".into());
            }
            for branch in &mut branches {
                if let Some(exit) = branch.child.try_wait()? {
                    return Err(format!("a child has gone: {exit}").into());
                }
            }
            Ok(())
        })();
        listener.answer(count);
        let verify = verdict.map_or_else(|error| error.to_string(), |()| "ok".into());
        status.report(count, &verify, &format!("listen={address}"))?;
        if verify != "ok" {
            return Err(verify.into());
        }
        sleep(PAUSE);
    }
}

/// Starts a process in user, mount, pid and network namespaces of its own and waits for its end.
fn namespaces(status: &str) -> Result<()> {
    detach(Path::new("/dev/null"))?;
    // Without devtmpfs there is no /dev/null inside: an ordinary file takes its place.
    fs::write(format!("{status}.stdio"), "")?;

    // A mount namespace of the file system of `/` and nothing else, so that CRIU has little to
    // understand: what is mounted below `/` on this machine is not the test's business.
    let root = PathBuf::from(format!("{status}.root"));
    fs::create_dir_all(&root)?;
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("/"), &root, none, MsFlags::MS_BIND, none)?;
    // A user namespace may mount proc only where a proc is visible already.
    mount(Some("proc"), &root.join("proc"), Some("proc"), MsFlags::empty(), none)?;
    std::env::set_current_dir(&root)?;
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    std::env::set_current_dir("/")?;

    // All ids are mapped to themselves: only somebody outside may write such a map. (With a map of
    // one id, CRIU 4.1.1 cannot restore the group ranges among the network namespace's sysctls.)
    let exe = std::env::current_exe()?;
    let mut mapper = Command::new(&exe)
        .args(["namespaces-map", &std::process::id().to_string()])
        .stdin(Stdio::piped())
        .spawn()?;
    unshare(
        CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNET,
    )?;
    drop(mapper.stdin.take());
    if !mapper.wait()?.success() {
        return Err("the ids could not be mapped".into());
    }

    let mut init = Command::new(&exe).args(["namespaces-init", status]).spawn()?;
    let pid = format!("{status}.pid");
    fs::write(format!("{pid}.tmp"), init.id().to_string())?;
    fs::rename(format!("{pid}.tmp"), &pid)?;
    init.wait()?;
    Ok(())
}

/// Maps all ids of process `pid` to themselves, once standard input has ended.
fn namespaces_map(pid: &str) -> Result<()> {
    std::io::stdin().read_to_end(&mut Vec::new())?;
    fs::write(format!("/proc/{pid}/uid_map"), "0 0 4294967295\n")?;
    fs::write(format!("/proc/{pid}/gid_map"), "0 0 4294967295\n")?;
    Ok(())
}

fn namespaces_init(status: &str) -> Result<()> {
    detach(Path::new(&format!("{status}.stdio")))?;
    mount(
        Some("proc"),
        "/proc",
        Some("proc"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        None::<&str>,
    )?;
    let status = Status::new(status);
    let mut count = 0;
    loop {
        count += 1;
        let me = fs::read_link("/proc/self")?;
        let devices = fs::read_to_string("/proc/self/net/dev")?;
        let links = devices.lines().skip(2).count();
        let mounts = fs::read_to_string("/proc/self/mountinfo")?.lines().count();
        let ids = fs::read_to_string("/proc/self/uid_map")?;
        let ids: Vec<&str> = ids.split_whitespace().collect();
        let verify = if me != Path::new("1") {
            format!("the process is {} in its pid namespace", me.display())
        } else if links != 1 {
            format!("there are {links} network devices")
        } else if mounts != 3 {
            format!("there are {mounts} mounts")
        } else if ids != ["0", "0", "4294967295"] {
            format!("the ids are mapped as {ids:?}")
        } else {
            "ok".to_owned()
        };
        status.report(count, &verify, "")?;
        if verify != "ok" {
            return Err(verify.into());
        }
        sleep(PAUSE);
    }
}
