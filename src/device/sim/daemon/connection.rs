//! A connection is an open file. Its requests are answered by as many threads as there are requests
//! at a time, so one that blocks keeps nobody else waiting.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        socket::{Shutdown, setsockopt, shutdown, sockopt},
        time::TimeVal,
    },
};

use super::super::{
    arena::View,
    caller::{Call, Inode, Slot},
    dispatch,
    host::{FileId, SimHost},
    interrupt::Interrupt,
    remote::{Remote, is_close_on_exec, see_who_traces},
};
use crate::device::socket::wire::{self, Answer, Place, Request};

/// The most requests of a file at a time. More wait.
const MOST_THREADS: usize = 64;
/// So many threads stay to wait for requests.
const MOST_IDLE: usize = 2;
/// A caller that does not take its answer is not waited for longer.
const ANSWER_SECONDS: i64 = 60;
/// Between two attempts to send descriptors when too many are under way.
const TOO_MANY_PAUSE: Duration = Duration::from_millis(1);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Connection {
    host: SimHost,
    socket: OwnedFd,
    file: OnceLock<Opened>,
    callers: Mutex<BTreeMap<u32, Arc<Remote>>>,
    threads: AtomicUsize,
    idle: AtomicUsize,
    count: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Opened {
    id: FileId,
    closed: AtomicBool,
    /// What stands for the file in this process, if it was opened here. Others have the connection.
    _fd: Option<OwnedFd>,
}

impl Connection {
    /// Serves a connection that was accepted, and counts it for as long as it lasts.
    pub(super) fn start(host: &SimHost, socket: OwnedFd, count: &Arc<AtomicUsize>) {
        count.fetch_add(1, Ordering::AcqRel);
        let connection = Connection {
            host: host.clone(),
            socket,
            file: OnceLock::new(),
            callers: Mutex::default(),
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            count: Arc::clone(count),
        };
        Arc::new(connection).add_thread();
    }

    /// One more thread, if there can be one.
    fn add_thread(self: &Arc<Self>) {
        if self.threads.fetch_add(1, Ordering::AcqRel) < MOST_THREADS {
            let connection = Arc::clone(self);
            let named = thread::Builder::new().name("open file".to_owned());
            if named.spawn(move || connection.work()).is_ok() {
                return;
            }
        }
        self.threads.fetch_sub(1, Ordering::AcqRel);
    }

    fn work(self: Arc<Self>) {
        let mut buffer = wire::buffer();
        while self.one_request(&mut buffer).is_some() {
            if self.idle.load(Ordering::Acquire) >= MOST_IDLE {
                self.threads.fetch_sub(1, Ordering::AcqRel);
                return;
            }
        }
        // The end of the connection, or of our patience with it. The other threads see it too.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
        self.close();
        self.threads.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits for a request and answers it; `None` if the connection is of no more use.
    fn one_request(self: &Arc<Self>, buffer: &mut [u8]) -> Option<()> {
        self.idle.fetch_add(1, Ordering::AcqRel);
        let received = wire::receive(&self.socket, buffer, 1);
        let none_is_left = self.idle.fetch_sub(1, Ordering::AcqRel) == 1;
        let mut received = received.ok()??;
        if none_is_left {
            self.add_thread();
        }
        let reply = Reply::new(received.descriptors.pop()?);
        let (pid, request) = (received.pid?, Request::decode(&buffer[..received.len])?);
        match self.caller(pid) {
            Ok(caller) => self.answer(&caller, request, &reply),
            Err(errno) => {
                reply.end(Err(errno), &[]);
                Some(())
            }
        }
    }

    fn answer(&self, caller: &Arc<Remote>, request: Request<'_>, reply: &Reply) -> Option<()> {
        match (request, self.file.get()) {
            (Request::Open { version, device, inode, path }, None) => {
                let opened = match version {
                    wire::VERSION => self.open(caller.pid(), path, Inode { device, number: inode }),
                    _ => Err(Errno::EPROTO),
                };
                reply.end(opened, &[]);
                opened.ok()
            }
            (Request::Adopt { version, device, inode }, None) => {
                let adopted = match version {
                    wire::VERSION => self.adopt(Inode { device, number: inode }),
                    _ => Err(Errno::EPROTO),
                };
                reply.end(adopted, &[]);
                adopted.ok()
            }
            (Request::What { version, device, inode }, None) => {
                let inode = Inode { device, number: inode };
                let kind = match version {
                    wire::VERSION => dispatch::kind_of(&self.host, inode),
                    _ => Err(Errno::EPROTO),
                };
                match kind {
                    Ok(Some(kind)) => reply.end(Ok(()), &wire::encode_kind(kind)),
                    Ok(None) => reply.end(Err(Errno::EBADF), &[]),
                    Err(errno) => reply.end(Err(errno), &[]),
                }
                // It is no file.
                None
            }
            (Request::Check, Some(file)) => {
                match dispatch::kind(&self.host, file.id) {
                    Ok(kind) => reply.end(Ok(()), &wire::encode_kind(kind)),
                    Err(errno) => reply.end(Err(errno), &[]),
                }
                Some(())
            }
            (Request::StandIn { device, inode }, Some(file)) => {
                self.host.state().also_known_as(file.id, Inode { device, number: inode });
                reply.end(Ok(()), &[]);
                Some(())
            }
            (Request::Ioctl { number, argument }, Some(file)) => {
                self.ioctl(caller, file.id, number, argument, reply);
                Some(())
            }
            (Request::Map { offset, len }, Some(file)) => {
                reply.map(dispatch::map(&self.host, caller.pid(), file.id, offset, len));
                Some(())
            }
            // Not open yet, or to be opened again.
            _ => {
                reply.end(Err(Errno::EBADF), &[]);
                None
            }
        }
    }

    fn open(&self, pid: u32, path: &Path, inode: Inode) -> nix::Result<()> {
        let (id, fd) = dispatch::open(&self.host, pid, path)?;
        self.is(id, Some(fd))?;
        self.host.state().also_known_as(id, inode);
        Ok(())
    }

    fn adopt(&self, inode: Inode) -> nix::Result<()> {
        let id = self.host.state().adopt(inode)?;
        self.is(id, None)
    }

    fn is(&self, id: FileId, fd: Option<OwnedFd>) -> nix::Result<()> {
        if self.file.set(Opened { id, closed: AtomicBool::new(false), _fd: fd }).is_err() {
            // Two requests to open at once.
            dispatch::release(&self.host, id);
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    fn ioctl(
        &self,
        caller: &Arc<Remote>,
        file: FileId,
        request: u32,
        argument: &[u8],
        reply: &Reply,
    ) {
        see_who_traces(&self.host, caller.pid(), file);
        let mut argument = argument.to_vec();
        let mut call = Call {
            pid: caller.pid(),
            credentials: caller.credentials(),
            file,
            request,
            memory: caller,
            // (A caller that is killed closes its files, which ends what waits.)
            interrupt: Interrupt::default(),
            descriptors: Vec::new(),
            keep_descriptors: false,
        };
        let answer = dispatch::ioctl(&self.host, &mut call, &mut argument);
        if answer.is_ok() || call.keep_descriptors {
            for batch in call.descriptors.chunks(wire::MOST_DESCRIPTORS) {
                reply.descriptors(batch);
            }
        }
        reply.end(answer, &argument);
    }

    /// Nobody has the file any more. Calls that block on it end with that: a process that was killed
    /// does not go on waiting.
    fn close(&self) {
        let Some(opened) = self.file.get() else { return };
        if opened.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        // What a process leaves behind when it ends is no mistake: kernels clean up after it.
        if callers.values().all(|caller| caller.is_ending()) {
            callers.keys().for_each(|&pid| self.host.shared.log.abandon(pid));
        }
        drop(callers);
        dispatch::release(&self.host, opened.id);
    }

    fn caller(&self, pid: u32) -> nix::Result<Arc<Remote>> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        // A number may be another process's by now.
        if let Some(known) = callers.get(&pid)
            && known.is_alive()
        {
            return Ok(Arc::clone(known));
        }
        let caller = Arc::new(Remote::new(pid)?);
        callers.insert(pid, Arc::clone(&caller));
        Ok(caller)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Where the answer to a request goes. A caller that has gone needs no answer, and others may still
/// have the file: so what cannot be sent is nobody's trouble.
#[derive(Debug)]
struct Reply(OwnedFd);

impl Reply {
    fn new(socket: OwnedFd) -> Self {
        // If it is no socket, sending fails.
        let _ = setsockopt(&socket, sockopt::SendTimeout, &TimeVal::new(ANSWER_SECONDS, 0));
        Reply(socket)
    }

    fn end(&self, answer: nix::Result<()>, argument: &[u8]) {
        let errno = answer.err().map_or(0, |errno| errno as i32);
        let _ = wire::send(&self.0, &Answer::encode_end(errno, 0, argument), &[]);
    }

    fn map(&self, answer: nix::Result<View>) {
        match answer {
            Ok(view) => {
                let (file, offset) = view.file();
                let _ = wire::send(&self.0, &Answer::encode_end(0, offset, &[]), &[file]);
            }
            Err(errno) => self.end(Err(errno), &[]),
        }
    }

    fn descriptors(&self, batch: &[(Slot, OwnedFd)]) {
        let slots = batch.iter().map(|(slot, fd)| wire::Slot {
            place: match *slot {
                Slot::Argument(at) => Place::Argument(at as u64),
                Slot::Memory(address) => Place::Memory(address),
            },
            close_on_exec: is_close_on_exec(fd),
        });
        let record = Answer::encode_descriptors(slots);
        let fds: Vec<_> = batch.iter().map(|(_, fd)| fd.as_fd()).collect();
        // So many may be in sockets already: the caller is taking them out.
        while wire::send(&self.0, &record, &fds) == Err(Errno::ETOOMANYREFS) {
            thread::sleep(TOO_MANY_PAUSE);
        }
    }
}
