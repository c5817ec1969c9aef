//! User queues: state, and whether they run.

use std::sync::Arc;

use nix::errno::Errno;

use super::{
    super::{KernelRelease, Profile, SimHost, caller::UserMemory},
    ENOTSUPP, Io,
    gate::Gate,
    memory::DOORBELL_SLICE,
    needs::{acquire_buffers, places},
    process::KfdProcess,
    ring::{self, Cursor},
};
use crate::abi::kfd::{
    CreateQueue, DestroyQueue, MAX_QUEUE_PERCENTAGE, MAX_QUEUE_PRIORITY, MIN_QUEUE_RING_SIZE,
    UpdateQueue, mmap, queue_type,
};

/// The most queues of a process.
pub(super) const QUEUES_END: u32 = 1024;
/// Addresses of user space end here.
const USER_END: u64 = 0x7fff_ffff_f000;

/// A queue.
#[derive(Debug)]
pub(super) struct Queue {
    /// Its GPU, by the place in the process.
    pub device: usize,
    pub properties: Properties,
    /// Which of the process's doorbells on the GPU it has.
    pub doorbell: u32,
    /// Which of the GPU's SDMA queues it is.
    pub sdma_id: Option<u32>,
    /// Memory queue descriptor: what the hardware knows of it. Opaque.
    pub mqd: Vec<u8>,
    /// What of its waves is saved while it does not run. Opaque.
    pub control_stack: Vec<u8>,
    /// Addresses of the BOs that it cannot do without.
    pub buffers: Vec<u64>,
    pub evicted: bool,
    /// Whether its waves can wait for each other on the whole GPU.
    pub gws: bool,
    /// How often it was stopped so far.
    pub evictions: u32,
    pub gate: Arc<Gate>,
    pub cursor: Arc<Cursor>,
}

/// What a queue was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Properties {
    /// As in [`queue_type`].
    pub kind: u32,
    pub ring_address: u64,
    pub ring_size: u64,
    pub read_pointer: u64,
    pub write_pointer: u64,
    pub percentage: u32,
    pub priority: u32,
    pub eop_address: u64,
    pub eop_size: u32,
    pub save_address: u64,
    pub save_size: u32,
    pub control_stack_size: u32,
}

impl Properties {
    pub(super) fn is_sdma(&self) -> bool {
        !matches!(self.kind, queue_type::COMPUTE | queue_type::COMPUTE_AQL)
    }
}

impl Queue {
    /// Whether the hardware runs it.
    pub(super) fn is_active(&self) -> bool {
        let p = &self.properties;
        p.ring_size > 0 && p.ring_address != 0 && p.percentage > 0 && !self.evicted
    }

    pub(super) fn set_evicted(&mut self, evicted: bool) {
        self.evicted = evicted;
        self.update_gate();
    }

    fn update_gate(&self) {
        if self.is_active() { self.gate.open() } else { self.gate.close() }
    }

    /// What the hardware knows of it now.
    pub(super) fn saved_mqd(&self) -> Vec<u8> {
        let mut mqd = self.mqd.clone();
        if self.properties.is_sdma() {
            self.cursor.save(&mut mqd);
        }
        mqd
    }

    /// The queue is gone.
    pub(super) fn end(&mut self) {
        self.gate.end();
    }

    /// Where its doorbell is in the mmap space of `/dev/kfd`.
    pub(super) fn doorbell_offset(&self, gpu_id: u32) -> u64 {
        let inside = u64::from(self.doorbell) * 8 % DOORBELL_SLICE;
        mmap::TYPE_DOORBELL | mmap::gpu_id(gpu_id) | inside
    }
}

pub(super) fn create(io: &mut Io<'_, '_>, args: &mut CreateQueue) -> nix::Result<()> {
    let properties = properties(args, io.release())?;
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    let place = process.device_index(args.gpu_id).ok_or(Errno::EINVAL)?;
    let device = &process.devices[place];
    device.bound(Errno::ESRCH)?;
    let profile = &io.host.shared.machine.gpus[device.gpu].profile;
    let buffers = if io.release() >= KernelRelease::V6_12 {
        acquire_buffers(process, place, &properties, profile)?
    } else {
        Vec::new()
    };
    let (sdma_id, doorbell) = places(state, profile, io.pid, place, &properties, None)?;
    let queue = new_queue(place, properties, (sdma_id, doorbell), buffers, profile);
    let process = state.kfd.process(io.pid)?;
    let queue = add(process, queue);
    let id = process.queues.insert(0, QUEUES_END, queue).ok_or(Errno::ENOMEM)?;
    ring::start(io.host, io.pid, process, id, io.call.memory.promised_memory())?;
    args.queue_id = id;
    if let Some(queue) = process.queues.get(id) {
        args.doorbell_offset = queue.doorbell_offset(args.gpu_id);
    }
    Ok(())
}

/// A queue that begins in the state that its process is in.
fn add(process: &KfdProcess, mut queue: Queue) -> Queue {
    queue.set_evicted(process.devices[queue.device].evictions > 0);
    queue
}

/// A queue with the numbers and the state that it had elsewhere.
pub(super) fn restore(
    host: &SimHost,
    (pid, process): (u32, &mut KfdProcess),
    id: u32,
    mut queue: Queue,
    (mqd, control_stack): (Vec<u8>, Vec<u8>),
    memory: Arc<dyn UserMemory>,
) -> nix::Result<()> {
    if id >= QUEUES_END {
        return Err(Errno::EINVAL);
    }
    if queue.properties.is_sdma() {
        queue.cursor.load(&mqd);
    }
    queue.mqd = mqd;
    queue.control_stack = control_stack;
    let queue = add(process, queue);
    process.queues.insert_at(id, queue).map_err(|_| Errno::ENOSPC)?;
    ring::start(host, pid, process, id, memory)
}

pub(super) fn new_queue(
    device: usize,
    properties: Properties,
    (sdma_id, doorbell): (Option<u32>, u32),
    buffers: Vec<u64>,
    profile: &Profile,
) -> Queue {
    // Something that differs from queue to queue, so that a mix-up shows.
    let seed = properties.ring_address ^ (u64::from(doorbell) << 48);
    let stack = if properties.is_sdma() { 0 } else { properties.control_stack_size as usize };
    let mut mqd = opaque(seed, mqd_size(profile, properties.kind));
    let cursor = Cursor::new(&properties, &mut mqd);
    Queue {
        device,
        mqd,
        control_stack: opaque(!seed, stack),
        properties,
        doorbell,
        sdma_id,
        buffers,
        evicted: false,
        gws: false,
        evictions: 0,
        gate: Arc::default(),
        cursor,
    }
}

fn opaque(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..).map(|n: u64| super::fill::random(seed, n).to_le_bytes());
    words.flatten().take(len).collect()
}

/// How much the hardware of a generation knows of a queue.
pub(super) fn mqd_size(profile: &Profile, kind: u32) -> usize {
    let gfx9 = profile.gfx_target_version() / 10_000 == 9;
    match kind {
        queue_type::COMPUTE | queue_type::COMPUTE_AQL if gfx9 => 2048,
        queue_type::COMPUTE | queue_type::COMPUTE_AQL => 4096,
        _ if gfx9 => 512,
        _ => 1024,
    }
}

/// Checks what was asked for.
fn properties(args: &CreateQueue, release: KernelRelease) -> nix::Result<Properties> {
    // As of 6.12 the next byte names an XCC.
    let percentage = match release {
        KernelRelease::V6_1 => args.queue_percentage,
        _ => args.queue_percentage & 0xff,
    };
    let ring_size = check_ring(args.ring_base_address, args.ring_size, release)?;
    if percentage > MAX_QUEUE_PERCENTAGE || args.queue_priority > MAX_QUEUE_PRIORITY {
        return Err(Errno::EINVAL);
    }
    let pointers = [
        args.read_pointer_address,
        args.write_pointer_address,
        args.eop_buffer_address,
        args.ctx_save_restore_address,
    ];
    if pointers.iter().any(|&address| address >= USER_END) {
        return Err(Errno::EFAULT);
    }
    let last = match release {
        KernelRelease::V6_1 => queue_type::SDMA_XGMI,
        _ => queue_type::SDMA_BY_ENG_ID,
    };
    if args.queue_type > last {
        return Err(Errno::from_raw(ENOTSUPP));
    }
    Ok(Properties {
        kind: args.queue_type,
        ring_address: args.ring_base_address,
        ring_size: ring_size.into(),
        read_pointer: args.read_pointer_address,
        write_pointer: args.write_pointer_address,
        percentage,
        priority: args.queue_priority,
        eop_address: args.eop_buffer_address,
        eop_size: u32::try_from(args.eop_buffer_size).map_err(|_| Errno::EINVAL)?,
        save_address: args.ctx_save_restore_address,
        save_size: args.ctx_save_restore_size,
        control_stack_size: args.ctl_stack_size,
    })
}

fn check_ring(address: u64, size: u32, release: KernelRelease) -> nix::Result<u32> {
    if address >= USER_END {
        return Err(Errno::EFAULT);
    }
    if size != 0 && !size.is_power_of_two() {
        return Err(Errno::EINVAL);
    }
    // The newest makes small rings larger instead of failing later.
    let least = if release == KernelRelease::V7_2 { MIN_QUEUE_RING_SIZE } else { 0 };
    Ok(size.max(least))
}

pub(super) fn destroy(io: &mut Io<'_, '_>, args: &mut DestroyQueue) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let mut queue = state.kfd.process(io.pid)?.queues.remove(args.queue_id).ok_or(Errno::EINVAL)?;
    queue.end();
    Ok(())
}

pub(super) fn update(io: &mut Io<'_, '_>, args: &mut UpdateQueue) -> nix::Result<()> {
    let release = io.release();
    let percentage = match release {
        KernelRelease::V6_1 => args.queue_percentage,
        _ => args.queue_percentage & 0xff,
    };
    if percentage > MAX_QUEUE_PERCENTAGE || args.queue_priority > MAX_QUEUE_PRIORITY {
        return Err(Errno::EINVAL);
    }
    let ring_size = check_ring(args.ring_base_address, args.ring_size, release)?;
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    let KfdProcess { queues, devices, .. } = process;
    let queue = queues.get_mut(args.queue_id).ok_or(Errno::EFAULT)?;
    let properties = &mut queue.properties;
    let moved = properties.ring_address != args.ring_base_address
        || properties.ring_size != u64::from(ring_size);
    if release >= KernelRelease::V6_12 && moved && args.ring_base_address != 0 {
        let vm = devices[queue.device].bound(Errno::ESRCH)?.vm();
        let mapped = vm.at(args.ring_base_address);
        mapped.filter(|mapped| mapped.len == u64::from(ring_size)).ok_or(Errno::EINVAL)?;
        queue.buffers.retain(|&buffer| buffer != properties.ring_address);
        queue.buffers.push(args.ring_base_address);
    }
    properties.ring_address = args.ring_base_address;
    properties.ring_size = ring_size.into();
    properties.percentage = percentage;
    properties.priority = args.queue_priority;
    queue.cursor.set_ring(properties);
    queue.update_gate();
    Ok(())
}
