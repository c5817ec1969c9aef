//! What a queue needs of its process and of its GPU: buffers, a doorbell, an SDMA queue.

use std::collections::BTreeSet;

use nix::errno::Errno;

use super::{
    super::{Profile, host::State},
    process::KfdProcess,
    queue::{Properties, QUEUES_END},
};
use crate::abi::kfd::queue_type;

const PAGE: u64 = 4096;
/// The first doorbells of the SDMA engines.
const SDMA_DOORBELLS: u32 = 0xe0;

/// The BOs that a queue needs, each mapped as exactly what the queue says; EINVAL otherwise.
pub(super) fn acquire_buffers(
    process: &KfdProcess,
    place: usize,
    queue: &Properties,
    profile: &Profile,
) -> nix::Result<Vec<u64>> {
    let vm = process.devices[place].bound(Errno::ESRCH)?.vm();
    let exactly = |address: u64, size: u64| {
        let start = address / PAGE * PAGE;
        let mapped = vm.at(start).filter(|mapped| mapped.len == size);
        mapped.map(|_| start).ok_or(Errno::EINVAL)
    };
    let mut buffers = vec![
        exactly(queue.write_pointer, PAGE)?,
        exactly(queue.read_pointer, PAGE)?,
        exactly(queue.ring_address, queue.ring_size)?,
    ];
    if queue.is_sdma() {
        return Ok(buffers);
    }
    if queue.eop_address != 0 {
        if u64::from(queue.eop_size) < EOP_SIZE {
            return Err(Errno::EINVAL);
        }
        buffers.push(exactly(queue.eop_address, queue.eop_size.into())?);
    }
    if u64::from(queue.control_stack_size) != profile.ctl_stack_size()
        || u64::from(queue.save_size) < profile.cwsr_size()
    {
        return Err(Errno::EINVAL);
    }
    let area = save_area(profile, queue.save_size);
    match exactly(queue.save_address, area) {
        Ok(start) => buffers.push(start),
        Err(_) if process.ranges.covers(queue.save_address, area) => {}
        Err(errno) => return Err(errno),
    }
    Ok(buffers)
}

/// The end-of-pipe buffer of a compute queue.
pub(in super::super) const EOP_SIZE: u64 = 4096;

/// The memory that holds the waves of a queue while it does not run, for all parts of the GPU.
pub(in super::super) fn save_area(profile: &Profile, save_size: u32) -> u64 {
    let one = u64::from(save_size) + profile.debug_memory_size();
    (one * profile.num_xcc()).next_multiple_of(PAGE)
}

/// The SDMA queue (of those of the GPU) and the doorbell (of those of the process) of a new queue:
/// the first that are free, or those that it had elsewhere.
pub(super) fn places(
    state: &State,
    profile: &Profile,
    pid: u32,
    place: usize,
    properties: &Properties,
    wanted: Option<(u32, u32)>,
) -> nix::Result<(Option<u32>, u32)> {
    let process = state.kfd.processes.get(&pid).ok_or(Errno::EBADF)?;
    let gpu = process.devices[place].gpu;
    let taken: BTreeSet<u32> = process
        .queues
        .iter()
        .filter(|(_, queue)| queue.device == place)
        .map(|(_, queue)| queue.doorbell)
        .collect();
    if !properties.is_sdma() {
        let doorbell = match wanted {
            Some((_, doorbell)) if doorbell >= QUEUES_END => return Err(Errno::EINVAL),
            Some((_, doorbell)) => doorbell,
            None => {
                let all = (0..SDMA_DOORBELLS).chain(SDMA_DOORBELLS + 0x20..QUEUES_END);
                all.into_iter().find(|id| !taken.contains(id)).ok_or(Errno::EBUSY)?
            }
        };
        return if taken.contains(&doorbell) { Err(Errno::EINVAL) } else { Ok((None, doorbell)) };
    }
    let xgmi = properties.kind == queue_type::SDMA_XGMI;
    let (engines, queues) = (profile.sdma_engines, profile.sdma_queues_per_engine());
    let engines = if xgmi { profile.sdma_xgmi_engines() } else { engines };
    let used: BTreeSet<u32> = state
        .kfd
        .processes
        .values()
        .flat_map(|process| process.queues.iter().map(move |(_, queue)| (process, queue)))
        .filter(|(process, queue)| process.devices[queue.device].gpu == gpu)
        .filter(|(_, queue)| (queue.properties.kind == queue_type::SDMA_XGMI) == xgmi)
        .filter_map(|(_, queue)| queue.sdma_id)
        .collect();
    let sdma_id = match wanted {
        Some((id, _)) if id >= engines * queues || used.contains(&id) => return Err(Errno::EBUSY),
        Some((id, _)) => id,
        None => (0..engines * queues).find(|id| !used.contains(id)).ok_or(Errno::ENOMEM)?,
    };
    // Eight doorbells for each engine; the other kind of engines has the mirrored ones.
    let (engine, index) = (sdma_id % engines.max(1), sdma_id / engines.max(1));
    let doorbell = SDMA_DOORBELLS + engine % 4 * 8 + index % 8 + if xgmi { 0x200 } else { 0 };
    match wanted {
        Some((_, wanted)) if wanted != doorbell => Err(Errno::EINVAL),
        _ => Ok((Some(sdma_id), doorbell)),
    }
}
