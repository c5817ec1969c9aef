//! GEM_VA: objects into the address space of a file, and out of it.

use nix::errno::Errno;

use crate::{
    abi::amdgpu::{GemVa, va_flag, va_op},
    device::sim::{
        caller::Call,
        host::SimHost,
        machine::KernelRelease,
        vm::{HOLE, Mapped, RESERVED_TOP, VA_START, check_range},
    },
};

const FLAGS: u32 = va_flag::DELAY_UPDATE
    | va_flag::READABLE
    | va_flag::WRITEABLE
    | va_flag::EXECUTABLE
    | va_flag::MTYPE_MASK
    | va_flag::NOALLOC;

pub(super) fn gem_va(host: &SimHost, call: &mut Call<'_>, va: &mut GemVa) -> nix::Result<()> {
    let (start, len) = (va.va_address, va.map_size);
    let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
    // (UNMAP, too, wants its range to be one.)
    if start < VA_START || end > HOLE.start - RESERVED_TOP || va.flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    // Newer kernels signal and wait for sync objects, of which there are none.
    let syncs = va.vm_timeline_syncobj_out != 0 || va.num_syncobj_handles != 0;
    if host.machine().kernel >= KernelRelease::V7_2 && syncs {
        return Err(Errno::ENOENT);
    }
    let mut state = host.state();
    let file = state.render(call.file)?;
    if va.operation == va_op::CLEAR {
        check_range(start, len)?;
        file.vm().clear(start, len);
        return Ok(());
    }
    if !(va_op::MAP..=va_op::REPLACE).contains(&va.operation) {
        return Err(Errno::EINVAL);
    }
    let object = file.handles.get(va.handle).ok_or(Errno::ENOENT)?.object.clone();
    if va.operation == va_op::UNMAP {
        let mut vm = file.vm();
        if vm.at(start).is_none_or(|mapped| mapped.handle != va.handle) {
            return Err(Errno::ENOENT);
        }
        let busy = host.shared.in_flight.using(&object);
        vm.unmap(start)?;
        // A job may be using it at another address.
        let elsewhere = vm.has_any_of(va.handle);
        drop(vm);
        let sure = !elsewhere && !host.shared.faults.may_hang(file.gpu);
        if let Some(job) = busy.first().filter(|_| sure) {
            let handle = va.handle;
            let what = format!("handle {handle} was unmapped from {start:#x} while {job} uses it");
            host.shared.log.complain(call.pid, what);
        }
        return Ok(());
    }
    check_range(start, len)?;
    let mapped =
        Mapped { object, offset: va.offset_in_bo, len, flags: va.flags.into(), handle: va.handle };
    let mut vm = file.vm();
    if va.operation == va_op::REPLACE {
        mapped.check()?;
        vm.clear(start, len);
    }
    vm.map(start, mapped)
}
