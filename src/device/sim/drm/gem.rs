//! Objects: made, wrapped around memory of a process, closed, asked about.

use std::sync::Arc;

use nix::errno::Errno;

use super::{context::answer, handles::User};
use crate::{
    abi::{
        Plain,
        amdgpu::{
            GemCreateIn, GemListHandles, GemListHandlesEntry, GemMmapIn, GemOp, GemUserptr,
            GemVmEntry, create as flag, domain, gem_op, list_flag, userptr as user_flag,
        },
        drm::{GemChangeHandle, GemClose},
    },
    device::sim::{
        caller::Call,
        host::{NewStore, SimHost},
        machine::KernelRelease,
        object::Store,
    },
};

const PAGE: u64 = 4096;
/// Where addresses of processes end.
const USER_END: u64 = 0x7fff_ffff_f000;
const DOMAINS: u64 = 0x7f;
const MEMORY: u64 = domain::CPU | domain::GTT | domain::VRAM;
/// The flags that a caller may set.
const FLAGS: u64 = flag::CPU_ACCESS_REQUIRED
    | flag::NO_CPU_ACCESS
    | flag::CPU_GTT_USWC
    | flag::VRAM_CLEARED
    | flag::VM_ALWAYS_VALID
    | flag::EXPLICIT_SYNC
    | flag::DISCARDABLE;
/// What newer kernels let a caller set as well.
const NEWER_FLAGS: u64 = FLAGS
    | flag::VRAM_CONTIGUOUS
    | flag::VRAM_WIPE_ON_RELEASE
    | flag::COHERENT
    | flag::UNCACHED
    | flag::EXT_COHERENT;

pub(super) fn create(
    host: &SimHost,
    call: &mut Call<'_>,
    create: &mut GemCreateIn,
) -> nix::Result<()> {
    let newer = host.machine().kernel >= KernelRelease::V7_2;
    let flags = if newer { NEWER_FLAGS } else { FLAGS };
    let special = create.domains & !MEMORY != 0;
    // (There are no GDS, GWS and OA, and doorbells are not made this way.)
    if create.domain_flags & !flags != 0 || create.domains & !DOMAINS != 0 || special {
        return Err(Errno::EINVAL);
    }
    let size = create.bo_size.checked_next_multiple_of(PAGE).filter(|&size| size > 0);
    let mut made = *create;
    made.bo_size = size.ok_or(Errno::EINVAL)?;
    made.domain_flags |= flag::VRAM_CLEARED;
    let mut state = host.state();
    let gpu = state.render(call.file)?.gpu;
    let mut store = NewStore::Gtt;
    if create.domains & domain::VRAM != 0 {
        store = NewStore::Vram;
    }
    let is_vram = matches!(store, NewStore::Vram);
    let object = match host.new_object(&mut state, gpu, made, store) {
        // What does not fit into VRAM goes to memory of the host.
        Err(Errno::ENOMEM) if is_vram => {
            made.domains |= domain::GTT;
            host.new_object(&mut state, gpu, made, NewStore::Gtt)
        }
        object => object,
    }?;
    let handle = state.render(call.file)?.handles.enter(object, User::Checked);
    answer(create, &[handle, 0]);
    Ok(())
}

pub(super) fn mmap(host: &SimHost, call: &mut Call<'_>, mmap: &mut GemMmapIn) -> nix::Result<()> {
    let mut state = host.state();
    let handle = state.render(call.file)?.handles.get(mmap.handle).ok_or(Errno::ENOENT)?;
    let hidden = handle.object.create.domain_flags & flag::NO_CPU_ACCESS != 0;
    if handle.object.is_user() || hidden {
        return Err(Errno::EPERM);
    }
    let offset = handle.object.mmap_offset;
    mmap.as_bytes_mut().copy_from_slice(&offset.to_le_bytes());
    Ok(())
}

pub(super) fn userptr(
    host: &SimHost,
    call: &mut Call<'_>,
    user: &mut GemUserptr,
) -> nix::Result<()> {
    if !user.addr.is_multiple_of(PAGE) || !user.size.is_multiple_of(PAGE) {
        let what = format!("userptr of {} bytes at {:#x}, not whole pages", user.size, user.addr);
        host.shared.log.complain(call.pid, what);
        return Err(Errno::EINVAL);
    }
    let known =
        user_flag::READONLY | user_flag::ANONONLY | user_flag::VALIDATE | user_flag::REGISTER;
    if user.flags & !known != 0 || user.size == 0 {
        return Err(Errno::EINVAL);
    }
    // Who lets a device write must hear of changes to the address space.
    if user.flags & (user_flag::READONLY | user_flag::REGISTER) == 0 {
        return Err(Errno::EACCES);
    }
    if user.addr.checked_add(user.size).is_none_or(|end| end > USER_END) {
        return Err(Errno::EFAULT);
    }
    let anonymous = user.flags & user_flag::ANONONLY != 0;
    let (memory, checked) = if user.flags & user_flag::VALIDATE != 0 {
        (call.memory.user_memory(user.addr, user.size, anonymous)?, User::Checked)
    } else {
        (call.memory.promised_memory(), User::Promised { anonymous })
    };
    // It prefers to be where the GPU reaches it.
    let create =
        GemCreateIn { bo_size: user.size, alignment: 0, domains: domain::GTT, domain_flags: 0 };
    let store = Store::User { memory, address: user.addr, pid: call.pid };
    let mut state = host.state();
    let gpu = state.render(call.file)?.gpu;
    let object = host.new_object(&mut state, gpu, create, NewStore::Ready(store))?;
    user.handle = state.render(call.file)?.handles.enter(object, checked);
    Ok(())
}

pub(super) fn close(host: &SimHost, call: &mut Call<'_>, close: &mut GemClose) -> nix::Result<()> {
    let mut state = host.state();
    let file = state.render(call.file)?;
    let handle = file.handles.remove(close.handle).ok_or(Errno::EINVAL)?;
    file.vm().remove_all_of(close.handle);
    let busy = host.shared.in_flight.using(&handle.object);
    if let Some(job) = busy.iter().find(|job| job.file == call.file)
        && !host.shared.faults.may_hang(file.gpu)
    {
        let what = format!("handle {} was closed while {job} uses it", close.handle);
        host.shared.log.complain(call.pid, what);
    }
    Ok(())
}

/// In newer kernels it exists and always fails; older ones do not know it.
pub(super) fn change_handle(
    _: &SimHost,
    _: &mut Call<'_>,
    _: &mut GemChangeHandle,
) -> nix::Result<()> {
    Err(Errno::EINVAL)
}

pub(super) fn op(host: &SimHost, call: &mut Call<'_>, op: &mut GemOp) -> nix::Result<()> {
    let newer = host.machine().kernel >= KernelRelease::V7_2;
    if newer && op.pad != 0 {
        return Err(Errno::EINVAL);
    }
    let mut state = host.state();
    let file = state.render(call.file)?;
    let object = file.handles.get(op.handle).ok_or(Errno::ENOENT)?.object.clone();
    match op.op {
        gem_op::GET_GEM_CREATE_INFO => {
            drop(state);
            call.memory.write(op.value, object.create.as_bytes())
        }
        // Where it is to be is remembered by nobody here: objects do not move.
        gem_op::SET_PLACEMENT if object.is_user() => Err(Errno::EPERM),
        gem_op::SET_PLACEMENT if op.value & !MEMORY != 0 => Err(Errno::EINVAL),
        gem_op::SET_PLACEMENT => Ok(()),
        gem_op::GET_MAPPING_INFO if newer => {
            let vm = file.vm();
            // Of the object, whoever mapped it: KFD perhaps.
            let mine = vm.iter().filter(|(_, mapped)| Arc::ptr_eq(&mapped.object, &object));
            let entries: Vec<_> = mine
                .map(|(addr, mapped)| GemVmEntry {
                    addr,
                    size: mapped.len,
                    offset: mapped.offset,
                    flags: mapped.flags,
                })
                .collect();
            drop(vm);
            drop(state);
            op.num_entries = write_entries(call, op.value, op.num_entries, &entries)?;
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn list_handles(
    host: &SimHost,
    call: &mut Call<'_>,
    list: &mut GemListHandles,
) -> nix::Result<()> {
    if host.machine().kernel < KernelRelease::V7_2 || list.pad != 0 {
        return Err(Errno::EINVAL);
    }
    let mut state = host.state();
    let file = state.render(call.file)?;
    let entry = |(gem_handle, handle): (u32, &super::handles::Handle)| {
        let object = &handle.object;
        GemListHandlesEntry {
            gem_handle,
            flags: if object.gpu == file.gpu { 0 } else { list_flag::IS_IMPORT },
            size: object.size,
            preferred_domains: object.create.domains,
            alloc_flags: object.create.domain_flags & !flag::VRAM_WIPE_ON_RELEASE,
            // In pages, unlike everywhere else.
            alignment: object.create.alignment / PAGE,
        }
    };
    let entries: Vec<_> = file.handles.iter().map(entry).collect();
    drop(state);
    list.num_entries = write_entries(call, list.entries, list.num_entries, &entries)?;
    Ok(())
}

/// Writes entries where there is room for all of them; how many there are.
fn write_entries<T: Plain>(
    call: &Call<'_>,
    address: u64,
    room: u32,
    entries: &[T],
) -> nix::Result<u32> {
    let count = u32::try_from(entries.len()).map_err(|_| Errno::EINVAL)?;
    if count <= room && count > 0 {
        let bytes: Vec<u8> = entries.iter().flat_map(T::as_bytes).copied().collect();
        call.memory.write(address, &bytes)?;
    }
    Ok(count)
}
