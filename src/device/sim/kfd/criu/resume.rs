//! RESUME: the address space of a restored process is complete, so its queues may run.

use nix::errno::Errno;

use super::{super::Io, later};
use crate::abi::kfd::CriuArgs;

pub(super) fn resume(io: &mut Io<'_, '_>, args: &mut CriuArgs) -> nix::Result<()> {
    let among: Vec<u32> = io.host.state().kfd.processes.keys().copied().collect();
    let pid = io.call.memory.find_number(args.pid, &among).ok_or(Errno::ESRCH)?;
    let mut userptrs = Vec::new();
    {
        let state = &mut *io.host.state();
        let process = state.kfd.processes.get_mut(&pid).ok_or(Errno::ESRCH)?;
        if !process.blocked {
            return Err(Errno::EINVAL);
        }
        process.blocked = false;
        process.resuming = true;
        for (_, bo) in process.devices.iter_mut().flat_map(|device| device.bos.iter_mut()) {
            if let Some(late) = bo.late.take() {
                userptrs.push((late, bo.user_address, bo.object.size));
            }
        }
    }
    for (late, address, size) in userptrs {
        late.pin(address, size);
    }
    later(io.host, move |state| {
        let Ok(process) = state.kfd.process(pid) else { return };
        process.resuming = false;
        process.unevict();
        process.changed.tell();
    })
}
