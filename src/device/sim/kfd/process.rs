//! What KFD knows of a process: its GPUs, and on each of them its memory.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use nix::errno::Errno;

use super::{
    super::{
        arena::Piece,
        host::FileId,
        interrupt::{Interrupt, Wake},
        object::Object,
        vm::Vm,
    },
    event::Events,
    memory::LateUserMemory,
    queue::Queue,
    slots::Slots,
    svm::Ranges,
};
use crate::abi::kfd::flags;

/// A process.
#[derive(Debug)]
pub(super) struct KfdProcess {
    /// How many files of `/dev/kfd` it has open.
    pub opens: u32,
    /// The GPUs that it sees, in the order of the topology.
    pub devices: Vec<Device>,
    pub queues: Slots<Queue>,
    pub events: Events,
    pub ranges: Ranges,
    pub xnack: bool,
    pub runtime_enabled: bool,
    /// Stopped by PROCESS_INFO, and UNPAUSE has not come yet.
    pub paused: bool,
    /// Between RESTORE and RESUME: the kernel does not look at changes of the address space.
    pub blocked: bool,
    /// RESUME has been called, and its work is not done yet.
    pub resuming: bool,
    pub changed: Arc<Changed>,
}

/// A GPU as a process sees it.
#[derive(Debug)]
pub(super) struct Device {
    /// Which one of the machine.
    pub gpu: usize,
    /// What this machine calls it.
    pub actual_id: u32,
    /// What the process calls it: another name where it was restored from another machine.
    pub user_id: u32,
    /// The render node whose address space is used.
    pub bound: Option<Bound>,
    pub bos: Slots<Bo>,
    /// How many stops have not been taken back: queues run at 0.
    pub evictions: u32,
    pub doorbells: Option<Arc<Piece>>,
    pub mmio: Option<Arc<Piece>>,
    pub trap_handler: (u64, u64),
}

/// The compute address space of a process on a GPU.
#[derive(Debug)]
pub(super) struct Bound {
    pub file: FileId,
    pub vm: Arc<Mutex<Vm>>,
}

impl Bound {
    pub(super) fn vm(&self) -> MutexGuard<'_, Vm> {
        self.vm.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of a process.
#[derive(Debug)]
pub(super) struct Bo {
    pub object: Arc<Object>,
    pub va: u64,
    pub flags: u32,
    /// Where a userptr is in the process.
    pub user_address: u64,
    /// A userptr that was restored: its memory comes with RESUME.
    pub late: Option<Arc<LateUserMemory>>,
    /// The devices (by their place in the process) that have it in their address space.
    pub mapped: Vec<usize>,
}

impl Bo {
    /// Whether its contents are part of a checkpoint.
    pub(super) fn has_contents(&self) -> bool {
        self.flags & (flags::VRAM | flags::GTT) != 0
    }

    /// The addresses at which it is mapped: twice, one after the other, for rings of old GPUs.
    pub(super) fn addresses(&self) -> impl Iterator<Item = u64> + use<> {
        let times = if self.flags & flags::AQL_QUEUE_MEM != 0 { 2 } else { 1 };
        let (va, size) = (self.va, self.object.size);
        (0..times).map(move |time| va.wrapping_add(time * size))
    }
}

impl KfdProcess {
    /// A process that sees these GPUs.
    pub(super) fn new<'a>(gpus: impl Iterator<Item = (usize, &'a u32)>) -> Self {
        KfdProcess {
            opens: 0,
            devices: gpus.map(|(gpu, &id)| Device::new(gpu, id)).collect(),
            queues: Slots::default(),
            events: Events::default(),
            ranges: Ranges::default(),
            xnack: false,
            runtime_enabled: false,
            paused: false,
            blocked: false,
            resuming: false,
            changed: Arc::default(),
        }
    }

    /// The place of a GPU by the name that the process has for it.
    pub(super) fn device_index(&self, id: u32) -> Option<usize> {
        self.devices.iter().position(|device| device.user_id == id)
    }

    /// EINVAL for a GPU that there is not.
    pub(super) fn device(&mut self, id: u32) -> nix::Result<&mut Device> {
        self.devices.iter_mut().find(|device| device.user_id == id).ok_or(Errno::EINVAL)
    }

    /// Where a handle's BO is: its device's place and its number there.
    pub(super) fn locate(&self, handle: u64) -> Option<(usize, u32)> {
        Some((self.device_index(gpu_of(handle))?, number_of(handle)))
    }

    /// The BO of a handle.
    pub(super) fn bo(&self, handle: u64) -> Option<&Bo> {
        let (device, number) = self.locate(handle)?;
        self.devices[device].bos.get(number)
    }

    /// Stops all queues, once more.
    pub(super) fn evict(&mut self) {
        for (place, device) in self.devices.iter_mut().enumerate() {
            device.evictions += 1;
            if device.evictions == 1 {
                self.queues.iter_mut().filter(|(_, q)| q.device == place).for_each(|(_, queue)| {
                    queue.evictions += 1;
                    queue.set_evicted(true);
                });
            }
        }
    }

    /// Takes one stop back.
    pub(super) fn unevict(&mut self) {
        for (place, device) in self.devices.iter_mut().enumerate() {
            let before = device.evictions;
            device.evictions = before.saturating_sub(1);
            if before == 1 {
                self.queues
                    .iter_mut()
                    .filter(|(_, queue)| queue.device == place)
                    .for_each(|(_, queue)| queue.set_evicted(false));
            }
        }
    }

    /// The process is gone: nothing of it runs or waits any more.
    pub(super) fn end(&mut self) {
        self.queues.iter_mut().for_each(|(_, queue)| queue.end());
        self.events.end();
        self.changed.tell();
    }
}

impl Device {
    fn new(gpu: usize, id: u32) -> Self {
        Device {
            gpu,
            actual_id: id,
            user_id: id,
            bound: None,
            bos: Slots::default(),
            evictions: 0,
            doorbells: None,
            mmio: None,
            trap_handler: (0, 0),
        }
    }

    /// The compute address space; `missing` if there is none yet.
    pub(super) fn bound(&self, missing: Errno) -> nix::Result<&Bound> {
        self.bound.as_ref().ok_or(missing)
    }
}

/// A handle of a BO.
pub(super) fn handle(gpu_id: u32, number: u32) -> u64 {
    (u64::from(gpu_id) << 32) | u64::from(number)
}

/// The GPU in a handle.
pub(super) fn gpu_of(handle: u64) -> u32 {
    u32::try_from(handle >> 32).unwrap_or(0)
}

/// The number in a handle.
pub(super) fn number_of(handle: u64) -> u32 {
    u32::try_from(handle & 0xffff_ffff).unwrap_or(0)
}

/// Tells those who wait that something of a process has changed.
#[derive(Debug, Default)]
pub(super) struct Changed {
    times: Mutex<u64>,
    condition: Condvar,
}

impl Changed {
    pub(super) fn times(&self) -> u64 {
        *self.lock()
    }

    pub(super) fn tell(&self) {
        *self.lock() += 1;
        self.condition.notify_all();
    }

    /// Waits until something has changed since `times`; false if the deadline came first. EINTR.
    pub(super) fn wait(
        self: &Arc<Self>,
        times: u64,
        deadline: Option<Instant>,
        interrupt: &Interrupt,
    ) -> nix::Result<bool> {
        let _sleeping = interrupt.wakes(Arc::<Changed>::clone(self));
        let mut now = self.lock();
        while *now == times {
            if interrupt.is_raised() {
                return Err(Errno::EINTR);
            }
            now = match deadline {
                None => self.condition.wait(now).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(false);
                    }
                    let answer = self.condition.wait_timeout(now, left);
                    answer.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Changed {
    fn wake(&self) {
        let _times = self.lock();
        self.condition.notify_all();
    }
}
