//! What tests ask of the processes of a machine, and do to their memory, past all ioctls.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nix::errno::Errno;

use super::{
    super::{Complaint, SimHost, SimProcess, interrupt::Interrupt, object::Object},
    fill::{Fill, put},
    process::handle,
    ring::QueueProgress,
};

/// A queue of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueInfo {
    /// Its number in the process.
    pub id: u32,
    /// The process's name for its GPU.
    pub gpu_id: u32,
    /// What it is, as in [`queue_type`](crate::abi::kfd::queue_type).
    pub kind: u32,
    /// Whether it runs.
    pub state: QueueState,
    /// How often it was stopped.
    pub evictions: u32,
    /// Which of the process's doorbells on the GPU it has.
    pub doorbell: u32,
    /// Address and size of its ring.
    pub ring: (u64, u64),
    /// What the hardware knows of it and of its waves: opaque, and part of a checkpoint.
    pub saved: (Vec<u8>, Vec<u8>),
    /// How far it is.
    pub progress: QueueProgress,
}

/// Whether a queue runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    /// It runs.
    Active,
    /// It does not run, because it was stopped.
    Evicted,
    /// It would not run anyway: no ring, or no share of the GPU.
    Idle,
}

/// An event of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventInfo {
    /// Its number in the process.
    pub id: u32,
    /// What it is, as in [`event_type`](crate::abi::kfd::event_type).
    pub kind: u32,
    /// Whether who waits resets it.
    pub auto_reset: bool,
    /// Whether it is set.
    pub signaled: bool,
}

/// A BO of a process. Two are equal when they are the same to the process: in which node's mmap space
/// they are, and where there, is the machine's business.
#[derive(Debug, Clone, Eq)]
pub struct BoInfo {
    /// The process's name for its GPU.
    pub gpu_id: u32,
    /// Its handle.
    pub handle: u64,
    /// Where it is in the GPU's address space.
    pub va: u64,
    /// In bytes, whole pages.
    pub size: u64,
    /// What it was made with, as in [`flags`](crate::abi::kfd::flags).
    pub flags: u32,
    /// Where a userptr is in the process.
    pub user_address: u64,
    /// The process's names for the GPUs on which it is mapped.
    pub mapped: Vec<u32>,
    /// The render node of its GPU.
    pub minor: u32,
    /// Where it is in the mmap space of that.
    pub offset: u64,
}

impl PartialEq for BoInfo {
    fn eq(&self, other: &BoInfo) -> bool {
        let BoInfo { gpu_id, handle, va, size, flags, user_address, mapped, .. } = self;
        (gpu_id, handle, va, size) == (&other.gpu_id, &other.handle, &other.va, &other.size)
            && (flags, user_address, mapped) == (&other.flags, &other.user_address, &other.mapped)
    }
}

/// What tests ask.
impl SimHost {
    /// The queues of a process, by number.
    pub fn queues(&self, pid: u32) -> Vec<QueueInfo> {
        let mut state = self.state();
        let Ok(process) = state.kfd.process(pid) else { return Vec::new() };
        let info = |(id, queue): (u32, &super::queue::Queue)| QueueInfo {
            id,
            gpu_id: process.devices[queue.device].user_id,
            kind: queue.properties.kind,
            state: match (queue.is_active(), queue.evicted) {
                (true, _) => QueueState::Active,
                (false, true) => QueueState::Evicted,
                (false, false) => QueueState::Idle,
            },
            evictions: queue.evictions,
            doorbell: queue.doorbell,
            ring: (queue.properties.ring_address, queue.properties.ring_size),
            saved: (queue.saved_mqd(), queue.control_stack.clone()),
            progress: queue.cursor.progress(),
        };
        process.queues.iter().map(info).collect()
    }

    /// The events of a process, by number.
    pub fn events(&self, pid: u32) -> Vec<EventInfo> {
        let mut state = self.state();
        let Ok(process) = state.kfd.process(pid) else { return Vec::new() };
        let info = |(id, event): (u32, &super::event::Event)| EventInfo {
            id,
            kind: event.kind,
            auto_reset: event.auto_reset,
            signaled: event.signaled,
        };
        process.events.iter().map(info).collect()
    }

    /// The BOs of a process, GPU by GPU, by handle.
    pub fn bos(&self, pid: u32) -> Vec<BoInfo> {
        let mut state = self.state();
        let Ok(process) = state.kfd.process(pid) else { return Vec::new() };
        let name = |&place: &usize| process.devices[place].user_id;
        let of_device = |device: &'_ super::process::Device| -> Vec<BoInfo> {
            let info = |(number, bo): (u32, &super::process::Bo)| BoInfo {
                gpu_id: device.user_id,
                handle: handle(device.user_id, number),
                va: bo.va,
                size: bo.object.size,
                flags: bo.flags,
                user_address: bo.user_address,
                mapped: bo.mapped.iter().map(name).collect(),
                minor: self.shared.machine.gpus[device.gpu].render_minor,
                offset: bo.object.mmap_offset,
            };
            device.bos.iter().map(info).collect()
        };
        process.devices.iter().flat_map(of_device).collect()
    }

    /// Whether a process is between PROCESS_INFO and UNPAUSE.
    pub fn is_paused(&self, pid: u32) -> bool {
        self.state().kfd.process(pid).is_ok_and(|process| process.paused)
    }

    /// Processes whose queues somebody has stopped and not started again: a forgotten UNPAUSE, or
    /// one too few, or a RESTORE without RESUME.
    pub fn left_stopped(&self) -> Vec<Complaint> {
        let state = self.state();
        let complaint = |(&pid, process): (&u32, &super::KfdProcess)| {
            let stops = process.devices.iter().map(|device| device.evictions).max().unwrap_or(0);
            let what = match (process.paused, process.blocked) {
                _ if process.resuming => return None,
                (true, _) => "still paused: UNPAUSE was forgotten".into(),
                (_, true) => "restored, but RESUME was forgotten".into(),
                _ if stops > 0 => format!("not paused, but its queues are stopped {stops} times"),
                _ => return None,
            };
            Some(Complaint { pid, what })
        };
        state.kfd.processes.iter().filter_map(complaint).collect()
    }

    /// Waits until the work that RESUME has begun is done; false if that takes too long.
    pub fn wait_resumed(&self, pid: u32, patience: Duration) -> bool {
        let deadline = Some(Instant::now() + patience);
        loop {
            let (times, changed) = {
                let mut state = self.state();
                let Ok(process) = state.kfd.process(pid) else { return false };
                if !process.resuming {
                    return !process.blocked;
                }
                (process.changed.times(), Arc::clone(&process.changed))
            };
            if changed.wait(times, deadline, &Interrupt::default()) != Ok(true) {
                return false;
            }
        }
    }

    /// Reads what is in a BO.
    pub fn read_bo(&self, pid: u32, va: u64, offset: u64, bytes: &mut [u8]) -> nix::Result<()> {
        let (object, inside) = self.object_at(pid, va)?;
        // SAFETY: a slice has room for its own length.
        unsafe { object.read(inside + offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// The CRC-32 of what is in a BO.
    pub fn checksum_bo(&self, pid: u32, va: u64) -> nix::Result<u32> {
        let (object, _) = self.object_at(pid, va)?;
        let mut crc = crc32fast::Hasher::new();
        let mut piece = vec![0; 1 << 20];
        let mut at = 0;
        while at < object.size {
            let len = usize::try_from(object.size - at).unwrap_or(usize::MAX).min(piece.len());
            // SAFETY: `len` is at most the length of the vector.
            unsafe { object.read(at, piece.as_mut_ptr(), len) }?;
            crc.update(&piece[..len]);
            at += len as u64;
        }
        Ok(crc.finalize())
    }

    /// The BO of a process at an address, and how far into it the address is.
    pub(super) fn object_at(&self, pid: u32, va: u64) -> nix::Result<(Arc<Object>, u64)> {
        let mut state = self.state();
        let process = state.kfd.process(pid)?;
        // Where a BO begins, and is mapped, its GPU knows at once.
        for bound in process.devices.iter().filter_map(|device| device.bound.as_ref()) {
            if let Some(mapped) = bound.vm().at(va).filter(|mapped| mapped.handle == 0) {
                return Ok((Arc::clone(&mapped.object), 0));
            }
        }
        let bos = process.devices.iter().flat_map(|device| device.bos.iter());
        let mut found = bos.filter(|(_, bo)| va >= bo.va && va - bo.va < bo.object.size);
        let (_, bo) = found.next().ok_or(Errno::ENOENT)?;
        Ok((Arc::clone(&bo.object), va - bo.va))
    }
}

/// What tests do.
impl SimHost {
    /// Writes to a BO.
    pub fn write_bo(&self, pid: u32, va: u64, offset: u64, bytes: &[u8]) -> nix::Result<()> {
        let (object, inside) = self.object_at(pid, va)?;
        put(&object, inside + offset, bytes)
    }

    /// Fills a BO.
    pub fn fill_bo(&self, pid: u32, va: u64, fill: Fill) -> nix::Result<()> {
        let (object, inside) = self.object_at(pid, va)?;
        fill.object(&object, inside, object.size - inside)
    }

    /// Fills a part of a BO, from a multiple of 8.
    pub fn fill_bo_range(
        &self,
        pid: u32,
        va: u64,
        range: std::ops::Range<u64>,
        fill: Fill,
    ) -> nix::Result<()> {
        let (object, inside) = self.object_at(pid, va)?;
        let len = range.end.checked_sub(range.start).ok_or(Errno::EINVAL)?;
        fill.object(&object, inside + range.start, len)
    }

    /// Keeps a GPU from a process, as a device cgroup does: KFD has no device for it, if the
    /// process has not opened `/dev/kfd` yet.
    pub fn hide_gpu(&self, process: &SimProcess, gpu: usize) {
        self.hide_gpu_from(process.pid(), gpu);
    }

    /// The same by the number of the process; 0 is for all processes.
    pub fn hide_gpu_from(&self, pid: u32, gpu: usize) {
        self.state().kfd.hidden.insert((pid, gpu));
    }

    /// The same of just these GPUs, and no others.
    pub(in super::super) fn hide_gpus_from(&self, pid: u32, gpus: impl Iterator<Item = usize>) {
        let mut state = self.state();
        state.kfd.hidden.retain(|&(other, _)| other != pid);
        state.kfd.hidden.extend(gpus.map(|gpu| (pid, gpu)));
    }
}
