//! A request and its answer.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

use nix::{errno::Errno, libc};

use super::{
    super::{
        caller::{Call, Slot},
        dispatch,
        host::FileId,
        interrupt::Interrupt,
        remote::{Remote, is_close_on_exec, see_who_traces},
    },
    Opened, Relay,
    caller::{RelayCaller, identity},
    lock,
};
use crate::abi::relay::{
    FIRST_MINOR, MOST_DESCRIPTORS, RelayAnswer, RelayDescriptor, RelayRequest, kind,
};

impl Relay {
    pub(super) fn answer(&self, request: &RelayRequest, argument: &mut [u8], interrupt: Interrupt) {
        match request.kind {
            kind::OPEN => self.end(request, self.open(request), &[], &[]),
            kind::IOCTL => {
                self.ioctl(request, argument, interrupt);
                lock(&self.pending).remove(&request.id);
            }
            kind::MMAP => self.map(request),
            kind::CLOSE => {
                self.close(request);
                self.end(request, Ok(()), &[], &[]);
            }
            kind::UNMAP => drop(lock(&self.mappings).remove(&request.file)),
            kind::INTERRUPT => {
                let pending = lock(&self.pending).get(&request.file).cloned();
                if let Some(interrupt) = pending {
                    interrupt.raise();
                }
            }
            _ => self.end(request, Err(Errno::ENOTTY), &[], &[]),
        }
    }

    fn open(&self, request: &RelayRequest) -> nix::Result<()> {
        let path = match request.device {
            0 => {
                self.see_what_is_allowed(request);
                PathBuf::from("/dev/kfd")
            }
            minor => format!("/dev/dri/renderD{minor}").into(),
        };
        let (id, fd) = dispatch::open(&self.host, request.process, &path)?;
        self.host.state().also_known_as(id, identity(request.file));
        lock(&self.files).insert(request.file, Opened { id, _fd: fd });
        Ok(())
    }

    /// The GPUs that the caller's device cgroup keeps from it.
    fn see_what_is_allowed(&self, request: &RelayRequest) {
        let gpus = self.host.machine().gpus.iter().map(|gpu| gpu.render_minor);
        let allowed = |minor: u32| {
            let bit = minor.wrapping_sub(FIRST_MINOR);
            let word = usize::try_from(bit / 64).ok().and_then(|at| request.allowed.get(at));
            word.is_some_and(|word| word & 1 << (bit % 64) != 0)
        };
        let hidden = (0..).zip(gpus).filter(|&(_, minor)| !allowed(minor)).map(|(gpu, _)| gpu);
        self.host.hide_gpus_from(request.process, hidden);
    }

    fn ioctl(&self, request: &RelayRequest, argument: &mut [u8], interrupt: Interrupt) {
        let caller = self.caller(request.process);
        let (caller, file) = match (caller, self.file(request)) {
            (Ok(caller), Ok(file)) => (caller, file),
            (Err(errno), _) | (_, Err(errno)) => return self.end(request, Err(errno), &[], &[]),
        };
        see_who_traces(&self.host, request.process, file);
        let mut call = Call {
            pid: request.process,
            credentials: caller.remote.credentials(),
            file,
            request: request.number,
            memory: &caller,
            descriptors: Vec::new(),
            keep_descriptors: false,
            interrupt,
        };
        let answer = dispatch::ioctl(&self.host, &mut call, argument);
        if answer.is_err() && !call.keep_descriptors {
            call.descriptors.clear();
        }
        self.end(request, answer, argument, &call.descriptors);
    }

    fn map(&self, request: &RelayRequest) {
        let view = self.file(request).and_then(|file| {
            dispatch::map(&self.host, request.process, file, request.offset, request.len)
        });
        let view = match view {
            Ok(view) => view,
            Err(errno) => return self.end(request, Err(errno), &[], &[]),
        };
        let mapping = self.next_mapping.fetch_add(1, Ordering::Relaxed) as u64;
        let (memory, offset) = view.file();
        let answer = RelayAnswer {
            id: request.id,
            memory: memory.as_raw_fd(),
            memory_offset: offset,
            mapping,
            ..RelayAnswer::default()
        };
        // Before the caller has it, and can give it up.
        let mut mappings = lock(&self.mappings);
        self.device.write(&answer, &[], &[]);
        mappings.insert(mapping, view);
    }

    fn close(&self, request: &RelayRequest) {
        let Some(opened) = lock(&self.files).remove(&request.file) else { return };
        // What a process leaves behind when it ends is no mistake: kernels clean up after it.
        if self.caller(request.process).map_or(true, |caller| caller.remote.is_ending()) {
            self.host.shared.log.abandon(request.process);
        }
        dispatch::release(&self.host, opened.id);
    }

    fn file(&self, request: &RelayRequest) -> nix::Result<FileId> {
        lock(&self.files).get(&request.file).map(|opened| opened.id).ok_or(Errno::EBADF)
    }

    fn caller(&self, process: u32) -> nix::Result<RelayCaller> {
        let mut callers = lock(&self.callers);
        let known = callers.get(&process).filter(|known| known.is_alive()).cloned();
        let remote = match known {
            Some(remote) => remote,
            None => {
                callers.retain(|_, known| known.is_alive());
                let remote = Arc::new(Remote::new(process)?);
                callers.insert(process, Arc::clone(&remote));
                remote
            }
        };
        Ok(RelayCaller { remote, device: Arc::clone(&self.device) })
    }

    fn end(
        &self,
        request: &RelayRequest,
        answer: nix::Result<()>,
        argument: &[u8],
        descriptors: &[(Slot, OwnedFd)],
    ) {
        if descriptors.len() > MOST_DESCRIPTORS {
            return self.end(request, Err(Errno::EMFILE), argument, &[]);
        }
        let all: Vec<_> = descriptors.iter().map(descriptor).collect();
        let len = |count: usize| u32::try_from(count).unwrap_or(0);
        let answer = RelayAnswer {
            id: request.id,
            error: answer.err().map_or(0, |errno| (errno as i32).unsigned_abs()),
            argument_len: len(argument.len()),
            descriptors: len(all.len()),
            memory: -1,
            ..RelayAnswer::default()
        };
        self.device.write(&answer, argument, &all);
    }
}

fn descriptor((slot, fd): &(Slot, OwnedFd)) -> RelayDescriptor {
    let (place, in_memory) = match *slot {
        Slot::Argument(at) => (at as u64, 0),
        Slot::Memory(address) => (address, 1),
    };
    let flags = if is_close_on_exec(fd) { libc::O_CLOEXEC.cast_unsigned() } else { 0 };
    RelayDescriptor { fd: fd.as_raw_fd(), flags, place, in_memory, reserved: 0 }
}
