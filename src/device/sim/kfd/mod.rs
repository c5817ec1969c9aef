//! `/dev/kfd`.
//!
//! A [process object](process) belongs to a pid and is shared by all files that this pid opens; it
//! goes, with all memory of it, when the last of them is closed.
//!
//! ```text
//!  settings           versions, apertures, clocks, policies: small answers
//!  memory, dmabuf     BOs and where GPUs see them
//!  queue, event, svm  the objects that a checkpoint serialises
//!  ring               queues of SDMA engines that run
//!  needs, gate        what a queue cannot do without, and what it cannot do while it is stopped
//!  special            what debuggers and profilers ask for, and what few queues have
//!  criu               CRIU_OP
//!  mapping            mmap of /dev/kfd
//!  inspect, fill, scribble  what tests ask of a process and do to its memory
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
};

use nix::errno::Errno;

use super::{
    KernelRelease,
    caller::Call,
    dispatch::with,
    drm,
    host::{FileId, FileKind, SimHost, State},
};
use crate::abi::{kfd::CRIU_OP, request_nr};

mod criu;
mod dmabuf;
mod event;
mod fill;
mod gate;
mod inspect;
mod mapping;
mod memory;
mod needs;
mod process;
mod queue;
mod ring;
mod scribble;
mod settings;
mod slots;
mod special;
mod svm;
#[cfg(test)]
mod tests;

pub use fill::Fill;
pub use inspect::{BoInfo, EventInfo, QueueInfo, QueueState};
pub(super) use mapping::map;
pub(super) use needs::{EOP_SIZE, save_area};
use process::KfdProcess;
pub use ring::QueueProgress;
pub use scribble::Scribble;

/// What the kernel answers to a queue of a type that it does not know; user space has no name
/// for it.
const ENOTSUPP: i32 = 524;

/// No process has this number.
const EVERYBODY: u32 = 0;

/// The KFD processes.
#[derive(Debug, Default)]
pub(super) struct KfdState {
    processes: BTreeMap<u32, KfdProcess>,
    /// GPUs that a device cgroup keeps from processes: (pid, GPU).
    hidden: BTreeSet<(u32, usize)>,
}

impl KfdState {
    fn process(&mut self, pid: u32) -> nix::Result<&mut KfdProcess> {
        self.processes.get_mut(&pid).ok_or(Errno::EBADF)
    }

    /// The GPU that a process calls by this id.
    pub(super) fn gpu_of(&self, pid: u32, gpu_id: u32) -> Option<usize> {
        let process = self.processes.get(&pid)?;
        Some(process.devices[process.device_index(gpu_id)?].gpu)
    }

    /// Whether KFD memory of a process is at this place of a GPU's mmap space: then the file that
    /// is this process's compute address space may map it, though it has no handle.
    pub(super) fn grants(&self, pid: u32, gpu: usize, mmap_offset: u64) -> bool {
        self.processes.get(&pid).is_some_and(|process| {
            process
                .devices
                .iter()
                .flat_map(|device| device.bos.iter())
                .any(|(_, bo)| bo.object.gpu == gpu && bo.object.mmap_offset == mmap_offset)
        })
    }
}

/// One call on behalf of a KFD process.
#[derive(Debug)]
struct Io<'a, 'b> {
    host: &'a SimHost,
    call: &'a mut Call<'b>,
    /// Whose process object it is about: the caller's, or of who is traced by the caller.
    pid: u32,
}

impl Io<'_, '_> {
    fn release(&self) -> KernelRelease {
        self.host.shared.machine.kernel
    }
}

pub(super) fn open(host: &SimHost, pid: u32) -> nix::Result<(FileId, OwnedFd)> {
    let mut state = host.state();
    let opened = state.open("kfd", FileKind::Kfd(pid))?;
    let kfd = &mut state.kfd;
    let hidden = &kfd.hidden;
    let process = kfd.processes.entry(pid).or_insert_with(|| {
        let hides = |pid, gpu| hidden.contains(&(pid, gpu));
        let seen = |gpu| !hides(pid, gpu) && !hides(EVERYBODY, gpu);
        KfdProcess::new((0..).zip(host.gpu_ids()).filter(|&(gpu, _)| seen(gpu)))
    });
    process.opens += 1;
    Ok(opened)
}

pub(super) fn ioctl(host: &SimHost, call: &mut Call<'_>, argument: &mut [u8]) -> nix::Result<()> {
    let nr = request_nr(call.request);
    if nr == 0 || nr > last_nr(host.shared.machine.kernel) {
        return Err(Errno::ENOTTY);
    }
    let is_criu = nr == request_nr(CRIU_OP.number());
    let pid = owner(&host.state(), call, is_criu)?;
    if is_criu && !call.credentials.checkpoint {
        return Err(Errno::EACCES);
    }
    let io = &mut Io { host, call, pid };
    match nr {
        0x01 => with(argument, |args| settings::get_version(io, args)),
        0x02 => with(argument, |args| queue::create(io, args)),
        0x03 => with(argument, |args| queue::destroy(io, args)),
        0x04 => with(argument, |args| settings::set_memory_policy(io, args)),
        0x05 => with(argument, |args| settings::get_clock_counters(io, args)),
        0x06 => with(argument, |args| settings::get_process_apertures(io, args)),
        0x07 => with(argument, |args| queue::update(io, args)),
        0x08 => with(argument, |args| event::create(io, args)),
        0x09 => with(argument, |args| event::destroy(io, args)),
        0x0a => with(argument, |args| event::set(io, args)),
        0x0b => with(argument, |args| event::reset(io, args)),
        0x0c => with(argument, |args| event::wait(io, args)),
        // The old debugger interface, which answers this to everyone.
        0x0d..=0x10 => Err(Errno::EPERM),
        0x11 => with(argument, |args| settings::set_scratch_backing_va(io, args)),
        0x12 => with(argument, |args| settings::get_tile_config(io, args)),
        0x13 => with(argument, |args| settings::set_trap_handler(io, args)),
        0x14 => with(argument, |args| settings::get_process_apertures_new(io, args)),
        0x15 => with(argument, |args| memory::acquire_vm(io, args)),
        0x16 => with(argument, |args| memory::alloc(io, args)),
        0x17 => with(argument, |args| memory::free(io, args)),
        0x18 => with(argument, |args| memory::map_to_gpu(io, args)),
        0x19 => with(argument, |args| memory::unmap_from_gpu(io, args)),
        0x1a => with(argument, |args| special::set_cu_mask(io, args)),
        0x1b => with(argument, |args| special::get_queue_wave_state(io, args)),
        0x1c => with(argument, |args| dmabuf::info(io, args)),
        0x1d => with(argument, |args| dmabuf::import(io, args)),
        0x1e => with(argument, |args| special::alloc_queue_gws(io, args)),
        0x1f => with(argument, |args| special::smi_events(io, args)),
        0x20 => svm::ioctl(io, argument),
        0x21 => with(argument, |args| settings::set_xnack_mode(io, args)),
        0x22 => with(argument, |args| criu::ioctl(io, args)),
        0x23 => with(argument, |args| memory::available(io, args)),
        0x24 => with(argument, |args| dmabuf::export(io, args)),
        0x25 => with(argument, |args| settings::runtime_enable(io, args)),
        0x26 => with(argument, |args| special::dbg_trap(io, args)),
        // In the kernels' tables, but not simulated.
        _ => Err(Errno::ENOTTY),
    }
}

/// The last number in a kernel's table.
fn last_nr(release: KernelRelease) -> u32 {
    match release {
        KernelRelease::V6_1 => 0x23,
        KernelRelease::V6_12 => 0x26,
        KernelRelease::V7_2 => 0x27,
    }
}

/// The process that the file belongs to, if the caller is that process, or its ptracer in CRIU_OP.
fn owner(state: &State, call: &Call<'_>, is_criu: bool) -> nix::Result<u32> {
    let FileKind::Kfd(owner) = *state.file(call.file)? else { return Err(Errno::ENOTTY) };
    let traced = is_criu && state.tracers.get(&owner) == Some(&call.pid);
    if owner == call.pid || traced { Ok(owner) } else { Err(Errno::EBADF) }
}

/// The last reference to a file is gone, and with the last file the process.
pub(super) fn released(host: &SimHost, id: FileId, pid: u32) {
    let _ = id;
    let mut state = host.state();
    let Some(process) = state.kfd.processes.get_mut(&pid) else { return };
    process.opens = process.opens.saturating_sub(1);
    if process.opens > 0 {
        return;
    }
    let Some(mut process) = state.kfd.processes.remove(&pid) else { return };
    process.end();
    let mut files = Vec::new();
    for device in &mut process.devices {
        let Some(bound) = device.bound.take() else { continue };
        // Memory of KFD has no handle.
        bound.vm().remove_all_of(0);
        if let Ok(render) = state.render(bound.file) {
            render.kfd_pid = None;
        }
        if let Some(FileKind::Render(file)) = state.release(bound.file) {
            files.push((bound.file, file));
        }
    }
    drop(state);
    for (id, file) in files {
        drm::released(host, id, *file);
    }
}
