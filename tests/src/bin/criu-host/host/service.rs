//! Service descriptors: at the upper end of the table, the same in all processes, and what is
//! behind them.

use std::{
    fs,
    io::IoSlice,
    mem::ManuallyDrop,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicI32, Ordering},
    thread,
    time::Duration,
};

use memmap2::MmapRaw;
use nix::{
    cmsg_space,
    errno::Errno,
    libc,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        socket::{
            AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
            UnixAddr, bind, connect, getsockname, recvmsg, sendmsg, socket,
        },
    },
};
use vramstream_tests::fake_criu::wire::{
    CAPTURE_SOCKET, Reply, Request, SERVE_SOCKET, connect as connect_to, receive_message, send_fd,
    send_message,
};

use super::{Result, Stage, bug, host, say};

/// The log.
pub(super) const LOG: i32 = 1;
/// The images directory.
pub(super) const IMG: i32 = 2;
/// The connection to the image streamer.
pub(super) const IMG_STREAMER: i32 = 3;
/// A task's connection to the master.
pub(super) const TRANSPORT: i32 = 13;
/// The store of descriptors.
pub(super) const FDSTORE: i32 = 15;
/// One more than the last.
pub(super) const MAX: i32 = 16;

/// As many descriptors a process has at most here, if it may.
const MOST: u64 = 1 << 16;

/// Where their numbers begin: at the end of the table.
static BASE: AtomicI32 = AtomicI32::new(0);

/// Takes the end of the table.
pub(super) fn prepare() -> Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most.min(MOST), most)?;
    BASE.store(i32::try_from(most.min(MOST))? - 2 * MAX, Ordering::Relaxed);
    Ok(())
}

fn base() -> RawFd {
    BASE.load(Ordering::Relaxed)
}

/// Makes a descriptor a service.
pub(super) fn install(kind: i32, fd: OwnedFd) -> nix::Result<()> {
    // SAFETY: nothing of this program has numbers this high.
    Errno::result(unsafe { libc::dup3(fd.as_raw_fd(), base() + kind, libc::O_CLOEXEC) })?;
    Ok(())
}

/// Ends a service.
pub(super) fn uninstall(kind: i32) {
    // SAFETY: the number belongs to this module.
    unsafe { libc::close(base() + kind) };
}

/// The descriptor of a service, or -1.
pub(super) fn get(kind: i32) -> RawFd {
    // SAFETY: asks about a number, whatever it is.
    let there = unsafe { libc::fcntl(base() + kind, libc::F_GETFD) } >= 0;
    if there { base() + kind } else { -1 }
}

pub(super) fn is_service(fd: RawFd) -> bool {
    (base()..base() + MAX).contains(&fd)
}

/// Memory that all processes of a run share.
#[derive(Debug)]
pub(super) struct Shared(NonNull<Cells>);

#[derive(Debug)]
struct Cells {
    streamer_is_busy: AtomicBool,
    stored: AtomicI32,
}

// SAFETY: the memory lives as long as the process, and all of it is atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn new() -> Result<Self> {
        let file = tempfile::tempfile()?;
        file.set_len(4096)?;
        let map = ManuallyDrop::new(MmapRaw::map_raw(&file)?);
        Ok(Shared(NonNull::new(map.as_mut_ptr().cast()).ok_or("no memory")?))
    }

    fn cells(&self) -> &Cells {
        // SAFETY: zeros, page-aligned, and never unmapped.
        unsafe { self.0.as_ref() }
    }
}

pub(super) fn connect_streamer(images: &Path, stage: Stage) -> Result<()> {
    let socket = if stage == Stage::Restore { SERVE_SOCKET } else { CAPTURE_SOCKET };
    let stream = connect_to(images, socket, Duration::from_secs(30))?;
    Ok(install(IMG_STREAMER, stream.into())?)
}

/// `img_streamer_open`.
pub(super) fn streamer_open(name: &str) -> i32 {
    let busy = &host().shared.cells().streamer_is_busy;
    while busy.swap(true, Ordering::Acquire) {
        thread::yield_now();
    }
    let answer = exchange(name);
    busy.store(false, Ordering::Release);
    answer.unwrap_or_else(|error| {
        say(&format!("error stream {name}: {error}"));
        -1
    })
}

fn exchange(name: &str) -> Result<i32> {
    let fd = get(IMG_STREAMER);
    if fd < 0 {
        return Err("no streamer any more".into());
    }
    // SAFETY: the service is open, and stays so: the value is never dropped.
    let socket = ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(fd) });
    send_message(&socket, &Request { filename: name.as_bytes().to_vec() })?;
    let restores = host().stage == Stage::Restore;
    if restores && !receive_message::<Reply>(&socket)?.exists {
        return Ok(-libc::ENOENT);
    }
    // Without O_CLOEXEC, as CRIU's.
    let (read, write) = nix::unistd::pipe()?;
    let (theirs, ours) = if restores { (write, read) } else { (read, write) };
    send_fd(&socket, &theirs)?;
    Ok(ours.into_raw_fd())
}

/// Makes the store of descriptors: a socket that is connected to itself.
pub(super) fn make_store() -> Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let store = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
    bind(store.as_raw_fd(), &UnixAddr::new_unnamed())?;
    let own: UnixAddr = getsockname(store.as_raw_fd())?;
    connect(store.as_raw_fd(), &own)?;
    Ok(install(FDSTORE, store)?)
}

/// `fdstore_add`.
pub(super) fn store(fd: i32) -> i32 {
    let store = get(FDSTORE);
    if store < 0 {
        bug("fdstore_add before there is a store");
    }
    let fds = [fd];
    let sent = sendmsg::<()>(
        store,
        &[IoSlice::new(&[0])],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::empty(),
        None,
    );
    match sent {
        Ok(_) => host().shared.cells().stored.fetch_add(1, Ordering::AcqRel),
        Err(errno) => {
            say(&format!("error fdstore_add: {errno}"));
            -1
        }
    }
}

/// `fdstore_get`.
pub(super) fn fetch(id: i32) -> i32 {
    let store = get(FDSTORE);
    if store < 0 {
        bug("fdstore_get before there is a store");
    }
    let size = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or(0);
    let value = (&raw const id).cast();
    // SAFETY: the option is an int, which lives during the call.
    let set = unsafe { libc::setsockopt(store, libc::SOL_SOCKET, libc::SO_PEEK_OFF, value, size) };
    if set < 0 {
        return -1;
    }
    let mut byte = [0];
    let mut control = cmsg_space!(RawFd);
    let mut iov = [std::io::IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let Ok(message) = recvmsg::<()>(store, &mut iov, Some(&mut control), flags) else { return -1 };
    let mut fds = message.cmsgs().into_iter().flatten().filter_map(|message| match message {
        ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
        _ => None,
    });
    fds.next().unwrap_or(-1)
}

/// The descriptors of this process: number and what they are.
pub(super) fn descriptors() -> Result<Vec<(RawFd, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let number: RawFd = entry.file_name().to_string_lossy().parse()?;
        // The one of this directory is closed by then.
        let Ok(link) = fs::read_link(entry.path()) else { continue };
        if !link.starts_with(format!("/proc/{}/fd", std::process::id())) {
            all.push((number, link.display().to_string()));
        }
    }
    all.sort();
    Ok(all)
}

/// A borrowed descriptor that is open by agreement.
pub(super) fn borrowed(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: callers have it open for as long as they use this.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// A descriptor that was opened just now, and given to nobody else.
pub(super) fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: callers say so.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Appends to the log, in one piece.
pub(super) fn write_log(line: &[u8]) {
    let fd = get(LOG);
    if fd >= 0 {
        let _ = nix::unistd::write(borrowed(fd), line);
    }
}
