//! Memory of a process: address spaces, allocation, and on which GPUs it is mapped.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nix::errno::Errno;

use super::{
    super::{
        KernelRelease,
        caller::UserMemory,
        host::{FileId, NewStore, SimHost, State},
        object::{Object, Store},
        vm::{Mapped, Vm},
    },
    Io,
    process::{Bo, Bound, KfdProcess, gpu_of, handle},
};
use crate::abi::{
    Plain,
    amdgpu::{GemCreateIn, create, domain, va_flag},
    kfd::{
        AcquireVm, AllocMemoryOfGpu, AvailableMemory, FreeMemoryOfGpu, MapMemoryToGpu,
        UnmapMemoryFromGpu, flags, mmap,
    },
};

const PAGE: u64 = 4096;
/// How many doorbells of 8 bytes a process has on a GPU, in bytes.
pub(super) const DOORBELL_SLICE: u64 = 8192;
/// A number of a BO is positive as a C int.
pub(super) const HANDLE_END: u32 = 1 << 31;
/// The most GPUs that an array in an argument can name.
const GPUS_END: u32 = 1024;

pub(super) fn acquire_vm(io: &mut Io<'_, '_>, args: &mut AcquireVm) -> nix::Result<()> {
    // (A descriptor that is none is EINVAL here, not EBADF.)
    let inode = io.call.memory.inode(args.drm_fd.cast_signed()).map_err(|_| Errno::EINVAL)?;
    let state = &mut *io.host.state();
    let file = state.by_inode(inode).map_err(|_| Errno::EINVAL)?;
    let device = state.kfd.process(io.pid)?.device(args.gpu_id)?;
    if let Some(bound) = &device.bound {
        return if bound.file == file { Ok(()) } else { Err(Errno::EBUSY) };
    }
    let place = state.kfd.process(io.pid)?.device_index(args.gpu_id).ok_or(Errno::EINVAL)?;
    bind(state, io.pid, place, file)
}

/// Makes a render node's address space the compute address space of a process.
pub(super) fn bind(state: &mut State, pid: u32, place: usize, file: FileId) -> nix::Result<()> {
    let gpu = state.kfd.process(pid)?.devices[place].gpu;
    let render = state.render(file).map_err(|_| Errno::EINVAL)?;
    if render.gpu != gpu || render.kfd_pid.is_some() {
        return Err(Errno::EINVAL);
    }
    render.bind(pid);
    let vm = Arc::clone(&render.vm);
    // The kernel keeps the file, whatever becomes of the descriptor.
    state.hold(file);
    state.kfd.process(pid)?.devices[place].bound = Some(Bound { file, vm });
    Ok(())
}

pub(super) fn alloc(io: &mut Io<'_, '_>, args: &mut AllocMemoryOfGpu) -> nix::Result<()> {
    if args.size == 0 {
        return Err(Errno::EINVAL);
    }
    let user = args.flags & flags::USERPTR != 0;
    let memory = user.then(|| io.call.memory.user_memory(args.mmap_offset, args.size, false));
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    if process.ranges.overlaps(args.va_addr, args.size)
        || (user && process.ranges.overlaps(args.mmap_offset, args.size))
    {
        return Err(Errno::EADDRINUSE);
    }
    let place = process.device_index(args.gpu_id).ok_or(Errno::EINVAL)?;
    let device = &process.devices[place];
    let small_bar = !io.host.shared.machine.gpus[device.gpu].profile.large_bar;
    let public_vram = flags::VRAM | flags::PUBLIC;
    if args.flags & public_vram == public_vram && small_bar {
        return Err(Errno::EINVAL);
    }
    device.bound(Errno::ENODEV)?;
    if args.flags & flags::DOORBELL != 0 && args.size != DOORBELL_SLICE
        || args.flags & flags::MMIO_REMAP != 0 && args.size != PAGE
    {
        return Err(Errno::EINVAL);
    }
    let memory = memory.filter(|_| kind(args.flags) == Some(flags::USERPTR));
    let user_memory = if let Some(memory) = memory {
        if args.mmap_offset == 0 {
            return Err(Errno::EINVAL);
        }
        if !args.mmap_offset.is_multiple_of(PAGE) {
            state.complain(io.pid, format!("userptr at {:#x}, inside of a page", args.mmap_offset));
        }
        Some(memory?)
    } else {
        None
    };
    let request = NewBo {
        place,
        va: args.va_addr,
        size: args.size,
        flags: args.flags,
        user_address: if user { args.mmap_offset } else { 0 },
        late: false,
    };
    let bo = new_bo(io.host, state, io.pid, &request, user_memory)?;
    let offset = bo.object.mmap_offset;
    let device = &mut state.kfd.process(io.pid)?.devices[place];
    let number = device.bos.insert(0, HANDLE_END, bo).ok_or(Errno::ENOSPC)?;
    args.handle = handle(args.gpu_id, number);
    // With the name that the caller used, although mmap looks for the machine's own.
    args.mmap_offset = register_offset(args.flags, args.gpu_id).unwrap_or(offset);
    Ok(())
}

/// Where registers are in the mmap space of `/dev/kfd`; `None` for memory.
pub(super) fn register_offset(alloc_flags: u32, gpu_id: u32) -> Option<u64> {
    match kind(alloc_flags)? {
        flags::DOORBELL => Some(mmap::TYPE_DOORBELL | mmap::gpu_id(gpu_id)),
        flags::MMIO_REMAP => Some(mmap::TYPE_MMIO | mmap::gpu_id(gpu_id)),
        _ => None,
    }
}

/// What is to be allocated.
#[derive(Debug)]
pub(super) struct NewBo {
    /// The GPU, by its place in the process.
    pub place: usize,
    pub va: u64,
    pub size: u64,
    pub flags: u32,
    pub user_address: u64,
    pub late: bool,
}

/// The kind of memory that the flags ask for: the first of them counts.
fn kind(alloc_flags: u32) -> Option<u32> {
    [flags::VRAM, flags::GTT, flags::USERPTR, flags::DOORBELL, flags::MMIO_REMAP]
        .into_iter()
        .find(|kind| alloc_flags & kind != 0)
}

/// Makes a BO. A userptr that is `late` gets its memory with RESUME.
pub(super) fn new_bo(
    host: &SimHost,
    state: &mut State,
    pid: u32,
    request: &NewBo,
    user_memory: Option<Arc<dyn UserMemory>>,
) -> nix::Result<Bo> {
    let gpu = state.kfd.process(pid)?.devices[request.place].gpu;
    let kind = kind(request.flags).ok_or(Errno::EINVAL)?;
    let size =
        if request.flags & flags::AQL_QUEUE_MEM != 0 { request.size / 2 } else { request.size };
    let size = size.checked_next_multiple_of(PAGE).filter(|&size| size > 0).ok_or(Errno::EINVAL)?;
    let public = request.flags & flags::PUBLIC != 0;
    let (domains, domain_flags) = match kind {
        flags::VRAM if public => {
            (domain::VRAM, create::CPU_ACCESS_REQUIRED | create::VRAM_WIPE_ON_RELEASE)
        }
        // The CPU may map this as well (Linux 5.14 and later), where the BAR reaches it.
        flags::VRAM => (domain::VRAM, create::VRAM_WIPE_ON_RELEASE),
        flags::GTT => (domain::GTT, 0),
        _ => (domain::CPU, create::PREEMPTIBLE),
    };
    let mut late = None;
    let store = match kind {
        flags::VRAM => NewStore::Vram,
        flags::GTT => NewStore::Gtt,
        flags::USERPTR => {
            let mut memory = user_memory.ok_or(Errno::EINVAL)?;
            if request.late {
                let wrapped = Arc::new(LateUserMemory::new(memory));
                late = Some(Arc::clone(&wrapped));
                memory = wrapped;
            }
            NewStore::Ready(Store::User { memory, address: request.user_address, pid })
        }
        _ => NewStore::Registers,
    };
    let create = GemCreateIn { bo_size: size, alignment: PAGE, domains, domain_flags };
    Ok(Bo {
        object: host.new_object(state, gpu, create, store)?,
        va: request.va,
        flags: request.flags,
        user_address: request.user_address,
        late,
        mapped: Vec::new(),
    })
}

pub(super) fn free(io: &mut Io<'_, '_>, args: &mut FreeMemoryOfGpu) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    if process.events.page_handle() == Some(args.handle) {
        return Err(Errno::EPERM);
    }
    let (place, number) = process.locate(args.handle).ok_or(Errno::EINVAL)?;
    let bos = &mut process.devices[place].bos;
    let bo = bos.get(number).ok_or(Errno::EINVAL)?;
    if !bo.mapped.is_empty() {
        return Err(Errno::EBUSY);
    }
    bos.remove(number);
    Ok(())
}

pub(super) fn map_to_gpu(io: &mut Io<'_, '_>, args: &mut MapMemoryToGpu) -> nix::Result<()> {
    let ids = gpu_list(io, args.device_ids_array_ptr, args.n_devices, args.n_success)?;
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    let (place, number) = find_bo(process, args.handle)?;
    for &id in ids.iter().skip(args.n_success as usize) {
        let peer = process.device_index(id).ok_or(Errno::EINVAL)?;
        map_on(process, (place, number), peer)?;
        args.n_success += 1;
    }
    Ok(())
}

/// Maps a BO on a GPU of the process, unless it is mapped there already.
pub(super) fn map_on(
    process: &mut KfdProcess,
    (place, number): (usize, u32),
    peer: usize,
) -> nix::Result<()> {
    let KfdProcess { devices, .. } = process;
    let bo = devices[place].bos.get(number).ok_or(Errno::EINVAL)?;
    let bound = devices[peer].bound(Errno::ENODEV)?;
    if bo.mapped.contains(&peer) {
        return Ok(());
    }
    map_in(&mut bound.vm(), bo)?;
    if let Some(bo) = devices[place].bos.get_mut(number) {
        bo.mapped.push(peer);
    }
    Ok(())
}

fn map_in(vm: &mut Vm, bo: &Bo) -> nix::Result<()> {
    let mut access = va_flag::READABLE;
    if bo.flags & flags::WRITABLE != 0 {
        access |= va_flag::WRITEABLE;
    }
    if bo.flags & flags::EXECUTABLE != 0 {
        access |= va_flag::EXECUTABLE;
    }
    let mut done = Vec::new();
    for va in bo.addresses() {
        let object: Arc<Object> = Arc::clone(&bo.object);
        let len = object.size;
        let mapped = Mapped { object, offset: 0, len, flags: access.into(), handle: 0 };
        if let Err(errno) = vm.map(va, mapped) {
            for va in done {
                let _ = vm.unmap(va);
            }
            return Err(errno);
        }
        done.push(va);
    }
    Ok(())
}

pub(super) fn unmap_from_gpu(
    io: &mut Io<'_, '_>,
    args: &mut UnmapMemoryFromGpu,
) -> nix::Result<()> {
    let ids = gpu_list(io, args.device_ids_array_ptr, args.n_devices, args.n_success)?;
    let guards_buffers = io.release() >= KernelRelease::V6_12;
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    let (place, number) = find_bo(process, args.handle)?;
    for &id in ids.iter().skip(args.n_success as usize) {
        let peer = process.device_index(id).ok_or(Errno::EINVAL)?;
        let KfdProcess { devices, queues, .. } = process;
        let bo = devices[place].bos.get_mut(number).ok_or(Errno::ENOMEM)?;
        let uses_it =
            |queue: &super::queue::Queue| queue.device == peer && queue.buffers.contains(&bo.va);
        if guards_buffers && queues.iter().any(|(_, queue)| uses_it(queue)) {
            return Err(Errno::EBUSY);
        }
        if let Some(at) = bo.mapped.iter().position(|&mapped| mapped == peer) {
            bo.mapped.remove(at);
            let addresses = bo.addresses();
            let mut vm = devices[peer].bound(Errno::ENODEV)?.vm();
            for va in addresses {
                let _ = vm.unmap(va);
            }
        }
        args.n_success += 1;
    }
    Ok(())
}

fn find_bo(process: &KfdProcess, handle: u64) -> nix::Result<(usize, u32)> {
    let place = process.device_index(gpu_of(handle)).ok_or(Errno::EINVAL)?;
    process.bo(handle).ok_or(Errno::ENOMEM)?;
    Ok((place, super::process::number_of(handle)))
}

/// The GPUs that an argument names.
fn gpu_list(io: &Io<'_, '_>, address: u64, count: u32, done: u32) -> nix::Result<Vec<u32>> {
    if count == 0 || done > count {
        return Err(Errno::EINVAL);
    }
    if count > GPUS_END {
        return Err(Errno::ENOMEM);
    }
    read_array(io, address, count)
}

/// An array of the caller. The count has been checked.
pub(super) fn read_array<T: Plain>(
    io: &Io<'_, '_>,
    address: u64,
    count: u32,
) -> nix::Result<Vec<T>> {
    let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(size_of::<T>()));
    let mut bytes = vec![0; len.ok_or(Errno::ENOMEM)?];
    io.call.memory.read(address, &mut bytes)?;
    Ok(bytes.chunks_exact(size_of::<T>()).map(T::from_prefix).collect())
}

/// Writes an array to the caller.
pub(super) fn write_array<T: Plain>(io: &Io<'_, '_>, address: u64, all: &[T]) -> nix::Result<()> {
    let bytes: Vec<u8> = all.iter().flat_map(Plain::as_bytes).copied().collect();
    io.call.memory.write(address, &bytes)
}

pub(super) fn available(io: &mut Io<'_, '_>, args: &mut AvailableMemory) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let gpu = state.kfd.process(io.pid)?.device(args.gpu_id)?.gpu;
    let used = state.gpus[gpu].vram_used.load(Ordering::Acquire);
    args.available = io.host.shared.machine.gpus[gpu].vram_bytes.saturating_sub(used);
    Ok(())
}

/// Memory of a restored process, which need not be there before RESUME.
#[derive(Debug)]
pub(super) struct LateUserMemory {
    /// Of the process that was restored, whoever calls RESUME for it.
    memory: Arc<dyn UserMemory>,
    is_there: AtomicBool,
}

impl LateUserMemory {
    fn new(memory: Arc<dyn UserMemory>) -> Self {
        LateUserMemory { memory, is_there: AtomicBool::new(false) }
    }

    /// Looks whether the memory is there now. Where it is not, the GPU faults when it uses it.
    pub(super) fn pin(&self, address: u64, len: u64) {
        self.is_there.store(self.memory.check(address, len).is_ok(), Ordering::Release);
    }

    fn pinned(&self) -> nix::Result<&dyn UserMemory> {
        let is_there = self.is_there.load(Ordering::Acquire);
        is_there.then_some(self.memory.as_ref()).ok_or(Errno::EFAULT)
    }
}

impl UserMemory for LateUserMemory {
    unsafe fn read(&self, address: u64, to: *mut u8, len: usize) -> nix::Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.pinned()?.read(address, to, len) }
    }

    unsafe fn write(&self, address: u64, from: *const u8, len: usize) -> nix::Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.pinned()?.write(address, from, len) }
    }

    fn check(&self, address: u64, len: u64) -> nix::Result<()> {
        self.pinned()?.check(address, len)
    }
}
