//! A task that is restored: its files, then its mappings, and then it waits until its standard
//! input ends.

use std::{
    collections::BTreeSet,
    ffi::{c_int, c_void},
    fs::{self, File},
    io::Read as _,
    mem,
    num::NonZeroUsize,
    os::fd::{AsFd as _, IntoRawFd as _, OwnedFd, RawFd},
    path::Path,
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
    sys::{
        mman::{MapFlags, ProtFlags, mmap_anonymous},
        socket::{MsgFlags, recv, send},
    },
};
use vramstream::{
    device::{DeviceFile, DeviceKind, DeviceMemory},
    system::System,
};

use super::{
    Pending, Result, bug, complain, host, locked,
    plugin::{Plugins, hook},
    record::{Task, Vma},
    say, service,
};

/// What is in memory that a plugin must not rely on: a bool that is none, a pointer to nothing.
const GARBAGE: u8 = 0xa5;
const BAD_POINTER: usize = 0xdead_beef_0bad_f00d;
/// No task has descriptors from here on.
const FREE_NUMBERS: RawFd = 600;
/// The path of a mapping that is no device's: another file that CRIU opens in between.
pub(super) const OTHER: &str = "other";
/// From here on mappings count that a plugin has left behind.
const MUCH: u64 = 1 << 20;

pub(super) fn run(plugins: &Plugins, task: &Task, transport: OwnedFd) -> ! {
    let _ = service::install(service::TRANSPORT, transport);
    let transport = service::get(service::TRANSPORT);
    let said = match restore(plugins, task) {
        Ok(mappings) => {
            let _ = send(transport, b"restored", MsgFlags::empty());
            let mut buffer = [0; 16];
            if recv(transport, &mut buffer, MsgFlags::empty()) == Ok(3) {
                for (vma, memory) in &mappings {
                    say(&format!("vma {vma} {:08x}", checksum(memory)));
                }
                let _ = send(transport, b"runs", MsgFlags::empty());
                (0..service::MAX).for_each(service::uninstall);
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
            }
            0
        }
        Err(error) => {
            complain(&format!("task {}: {error}", task.pid));
            let _ = send(transport, b"failed", MsgFlags::empty());
            1
        }
    };
    // SAFETY: ends the process; nothing of the master runs in it any more.
    unsafe { libc::_exit(said) }
}

fn restore(plugins: &Plugins, task: &Task) -> Result<Vec<(Vma, DeviceMemory)>> {
    close_all()?;
    for memory in &task.user_memory {
        let address = NonZeroUsize::new(usize::try_from(memory.address)?);
        let len = NonZeroUsize::new(usize::try_from(memory.len)?).ok_or("a userptr of nothing")?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
        let both = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: nothing is there: NOREPLACE.
        unsafe { mmap_anonymous(address, len, both, flags) }?;
    }
    let maps = mappings_of_files()?;
    let descriptors: Vec<RawFd> = task.files.iter().map(|file| file.fd).collect();
    *locked(&host().pending) =
        Some(Pending { virtual_pid: task.pid, descriptors: descriptors.clone() });
    files(plugins, task)?;
    // All of them are in the list again when mappings are opened.
    if let Some(pending) = locked(&host().pending).as_mut() {
        pending.descriptors.clone_from(&descriptors);
    }
    let mapped = mappings(plugins, task)?;
    for (fd, what) in service::descriptors()? {
        if fd > 2 && !service::is_service(fd) && !descriptors.contains(&fd) {
            say(&format!("leak {fd} {what}"));
        }
    }
    let threads = fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        say(&format!("leak {threads} threads"));
    }
    let ours: BTreeSet<u64> = mapped.iter().map(|(_, memory)| memory.address()).collect();
    for (start, len, line) in mappings_of_files()? {
        let new = !maps.iter().any(|(known, ..)| *known == start) && !ours.contains(&start);
        if new && len >= MUCH {
            say(&format!("leak mapping {line}"));
        }
    }
    Ok(mapped)
}

/// Descriptors of the master are not the task's.
fn close_all() -> Result<()> {
    for (fd, _) in service::descriptors()? {
        if fd > 2 && !service::is_service(fd) {
            // SAFETY: what had it in the master is not used in a task.
            unsafe { libc::close(fd) };
        }
    }
    Ok(())
}

fn files(plugins: &Plugins, task: &Task) -> Result<()> {
    let mut later: Vec<_> = task.files.clone();
    while !later.is_empty() {
        let before = later.len();
        for file in mem::take(&mut later) {
            // One that was dumped once and has several numbers.
            let same = |other: &&super::record::File| other.id == file.id && other.fd < file.fd;
            if let Some(first) = task.files.iter().find(same) {
                // SAFETY: copies a descriptor that is open to a number that is free.
                Errno::result(unsafe { libc::dup2(first.fd, file.fd) })?;
                restored(file.fd);
                continue;
            }
            let (fd, retry) = restore_file(plugins, file.id);
            say(&format!(
                "RESTORE_EXT_FILE {}:{} id={} = {}",
                task.pid,
                file.fd,
                file.id,
                fd.min(0)
            ));
            if fd < 0 {
                return Err(format!("Can't restore file {}: {fd}", file.id).into());
            }
            if retry {
                later.push(file);
                continue;
            }
            put(fd, file.fd)?;
            restored(file.fd);
        }
        if later.len() == before {
            return Err("all files that are left wait for another: CRIU would wait for ever".into());
        }
    }
    Ok(())
}

fn restored(fd: RawFd) {
    if let Some(pending) = locked(&host().pending).as_mut() {
        pending.descriptors.retain(|&left| left != fd);
    }
}

/// Moves what a plugin has opened to the number that the task had it under.
fn put(fd: RawFd, wanted: RawFd) -> Result<()> {
    if fd == wanted {
        return Ok(());
    }
    // SAFETY: asks about a number, whatever it is.
    if unsafe { libc::fcntl(wanted, libc::F_GETFD) } >= 0 {
        return Err(format!("fd {wanted} already in use").into());
    }
    // SAFETY: both numbers are CRIU's now.
    Errno::result(unsafe { libc::dup2(fd, wanted) })?;
    // SAFETY: as above.
    Errno::result(unsafe { libc::close(fd) })?;
    Ok(())
}

/// The descriptor, and whether to ask again later.
fn restore_file(plugins: &Plugins, id: c_int) -> (c_int, bool) {
    let two = host().flavour.hooks >= 15;
    let mut retry = GARBAGE;
    let ret = plugins.run(hook::RESTORE_EXT_FILE, |function: *const c_void| {
        if two {
            // SAFETY: this hook has this prototype here.
            let function: unsafe extern "C" fn(c_int, *mut u8) -> c_int =
                unsafe { mem::transmute(function) };
            // SAFETY: as its prototype says; a bool is a byte.
            unsafe { function(id, &raw mut retry) }
        } else {
            // SAFETY: a C function that takes one argument does not look at what is in the second
            // one's register. This is there to see that.
            let function: unsafe extern "C" fn(c_int, usize) -> c_int =
                unsafe { mem::transmute(function) };
            // SAFETY: as above.
            unsafe { function(id, BAD_POINTER) }
        }
    });
    match (two, retry) {
        (false, _) | (true, 0) => (ret, false),
        (true, 1) => (ret, true),
        _ => bug("RESTORE_EXT_FILE has not said whether to ask again"),
    }
}

/// What CRIU makes a mapping from.
struct Chain {
    fd: RawFd,
    file: Option<Arc<dyn DeviceFile>>,
    /// What the process has mapped from now on.
    now: String,
}

/// UPDATE_VMA_MAP for each mapping, in the order of addresses, and then the mappings.
fn mappings(plugins: &Plugins, task: &Task) -> Result<Vec<(Vma, DeviceMemory)>> {
    let system = System::from_env();
    let mut chains: Vec<Chain> = Vec::new();
    let mut planned = Vec::new();
    for vma in &task.vmas {
        if vma.path == OTHER {
            let fd = File::open("/dev/null")?.into_raw_fd();
            chains.push(Chain { fd, file: None, now: OTHER.into() });
            continue;
        }
        let (ret, offset, fd) = update(plugins, vma);
        say(&format!("UPDATE_VMA_MAP {}:{:#x} = {ret} fd={}", vma.path, vma.address, fd.min(0)));
        let offset = if ret == 1 { offset } else { vma.offset };
        // CRIU gives each mapping of a device a file of its own (`file-ids.c`), so that none is made
        // from the descriptor of another.
        chains.push(begin(&system, vma, fd)?);
        planned.push((Vma { offset, ..vma.clone() }, chains.len() - 1));
    }
    let mut done = Vec::new();
    for (mut vma, chain) in planned {
        let chain = &chains[chain];
        vma.path.clone_from(&chain.now);
        let file = chain.file.as_ref().ok_or("no file")?;
        let memory = file.map(vma.offset, usize::try_from(vma.len)?);
        let memory =
            memory.map_err(|e| format!("Can't map {} at {:#x}: {e}", vma.path, vma.offset))?;
        done.push((vma, memory));
    }
    // The mapping closes its descriptor.
    for chain in chains.iter().filter(|chain| chain.fd >= 0) {
        // SAFETY: it is CRIU's since the plugin has given it away, or was from the start.
        unsafe { libc::close(chain.fd) };
    }
    Ok(done)
}

/// From the plugin's descriptor, or else from the saved path.
fn begin(system: &System, vma: &Vma, fd: RawFd) -> Result<Chain> {
    let failed = |errno| format!("Can't open {}: {errno}", vma.path);
    let mut now = vma.path.clone();
    let file = if fd >= 0 {
        let copy = out_of_the_way(fd)?;
        if let Some(DeviceKind::Render { minor }) = system.driver().identify(copy.as_fd())? {
            now = format!("/dev/dri/renderD{minor}");
        }
        system.driver().adopt(copy).map_err(failed)?
    } else {
        system.driver().open(Path::new(&vma.path)).map_err(failed)?
    };
    Ok(Chain { fd, file: Some(file.into()), now })
}

/// A copy where CRIU would have none: the numbers that are free stay free.
fn out_of_the_way(fd: RawFd) -> Result<OwnedFd> {
    let number = fcntl(service::borrowed(fd), FcntlArg::F_DUPFD_CLOEXEC(FREE_NUMBERS))?;
    Ok(service::owned(number))
}

fn update(plugins: &Plugins, vma: &Vma) -> (c_int, u64, RawFd) {
    let mut offset = u64::MAX;
    let mut fd: c_int = -1;
    let path = std::ffi::CString::new(vma.path.as_str()).unwrap_or_default();
    let ret = plugins.run(hook::UPDATE_VMA_MAP, |function: *const c_void| {
        // SAFETY: this hook has this prototype.
        let function: unsafe extern "C" fn(
            *const libc::c_char,
            u64,
            u64,
            *mut u64,
            *mut c_int,
        ) -> c_int = unsafe { mem::transmute(function) };
        // SAFETY: as its prototype says.
        unsafe { function(path.as_ptr(), vma.address, vma.offset, &raw mut offset, &raw mut fd) }
    });
    (ret, offset, fd)
}

fn checksum(memory: &DeviceMemory) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    let mut buffer = [0; 4096];
    let mut at = 0;
    while at < memory.len() {
        let len = buffer.len().min(memory.len() - at);
        memory.read(at, &mut buffer[..len]);
        hash.update(&buffer[..len]);
        at += len;
    }
    hash.finalize()
}

/// The mappings of this process that are of files or shared: start, length, line. What the
/// allocator has is nobody's business.
fn mappings_of_files() -> Result<Vec<(u64, u64, String)>> {
    let mut all = Vec::new();
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let mut words = line.split_ascii_whitespace();
        let (range, mode) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let Some((start, end)) = range.split_once('-') else { continue };
        let (start, end) = (u64::from_str_radix(start, 16)?, u64::from_str_radix(end, 16)?);
        let named = words.nth(3).is_some_and(|name| name.starts_with('/'));
        if named || mode.ends_with('s') {
            all.push((start, end - start, line.to_owned()));
        }
    }
    Ok(all)
}
