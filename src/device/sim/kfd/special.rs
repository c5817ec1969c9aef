//! What debuggers and profilers ask for, and what few queues have.
//!
//! # Limits
//!
//! Nothing is debugged here: nobody may attach, as if another debugger had. The descriptor of
//! SMI_EVENTS never has an event.

use nix::{
    errno::Errno,
    sys::eventfd::{EfdFlags, EventFd},
};

use super::{super::caller::Slot, Io, memory::read_array};
use crate::abi::kfd::{AllocQueueGws, DbgTrap, GetQueueWaveState, SetCuMask, SmiEvents};

/// The most bits of a mask that are looked at.
const MOST_CUS: u32 = 1024;
/// Begins to debug a process.
const DBG_ENABLE: u32 = 0;
/// One more than the last operation of DBG_TRAP.
const DBG_OPERATIONS: u32 = 16;

pub(super) fn set_cu_mask(io: &mut Io<'_, '_>, args: &mut SetCuMask) -> nix::Result<()> {
    if args.num_cu_mask == 0 || !args.num_cu_mask.is_multiple_of(32) || args.cu_mask_ptr == 0 {
        return Err(Errno::EINVAL);
    }
    let words = args.num_cu_mask.min(MOST_CUS) / 32;
    let _mask: Vec<u32> = read_array(io, args.cu_mask_ptr, words)?;
    io.host.state().kfd.process(io.pid)?.queues.get(args.queue_id).ok_or(Errno::EFAULT)?;
    Ok(())
}

/// Of a compute queue that does not run; there are no waves.
pub(super) fn get_queue_wave_state(
    io: &mut Io<'_, '_>,
    args: &mut GetQueueWaveState,
) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let queue = state.kfd.process(io.pid)?.queues.get(args.queue_id).ok_or(Errno::EFAULT)?;
    if queue.properties.is_sdma() || queue.is_active() {
        return Err(Errno::EINVAL);
    }
    (args.ctl_stack_used_size, args.save_area_used_size) = (0, 0);
    Ok(())
}

/// Global wave sync: one queue of a process on a GPU can have it.
pub(super) fn alloc_queue_gws(io: &mut Io<'_, '_>, args: &mut AllocQueueGws) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    let queue = process.queues.get(args.queue_id).ok_or(Errno::EINVAL)?;
    let device = queue.device;
    let gpu = process.devices[device].gpu;
    if io.host.shared.machine.gpus[gpu].profile.property("num_gws") == 0 {
        return Err(Errno::ENODEV);
    }
    let wants_it = args.num_gws != 0;
    let taken = process.queues.iter().any(|(_, other)| other.device == device && other.gws);
    match (wants_it, taken) {
        (true, true) => return Err(Errno::EBUSY),
        (false, false) => return Err(Errno::EINVAL),
        _ => {}
    }
    if let Some(queue) = process.queues.get_mut(args.queue_id) {
        queue.gws = wants_it;
    }
    args.first_gws = 0;
    Ok(())
}

pub(super) fn smi_events(io: &mut Io<'_, '_>, args: &mut SmiEvents) -> nix::Result<()> {
    io.host.state().kfd.process(io.pid)?.device(args.gpuid)?;
    let events = EventFd::from_flags(EfdFlags::EFD_NONBLOCK)?;
    let at = std::mem::offset_of!(SmiEvents, anon_fd);
    io.call.descriptors.push((Slot::Argument(at), events.into()));
    Ok(())
}

pub(super) fn dbg_trap(io: &mut Io<'_, '_>, args: &mut DbgTrap) -> nix::Result<()> {
    let among: Vec<u32> = io.host.state().kfd.processes.keys().copied().collect();
    let target = io.call.memory.find_number(args.pid, &among).ok_or(Errno::ESRCH)?;
    if args.op >= DBG_OPERATIONS {
        return Err(Errno::EINVAL);
    }
    let traced = target == io.pid || io.host.state().tracers.get(&target) == Some(&io.call.pid);
    match args.op {
        _ if !traced => Err(Errno::EPERM),
        DBG_ENABLE => Err(Errno::EALREADY),
        // Of a process that is not debugged.
        _ => Err(Errno::EINVAL),
    }
}
