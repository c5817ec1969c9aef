//! A process on `/dev/kfd`.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
};

use nix::errno::Errno;

use super::{Dump, contents, kfd_name, memory};
use crate::{
    abi::{
        criu::Level,
        kfd::{CriuBoBucket, CriuDeviceBucket, flags},
    },
    device::{Checkpoint, DeviceError, KFD_NODE, Kfd},
    gpu::{Contents, Paused},
    handoff::{Direction, Job},
    image::{KfdBo, KfdImage, Sums, sums_name},
    plugin::{
        context::Context,
        error::{Error, Result},
        gpus::{opened, render_path, streamer},
    },
    stage::Crc32,
    topology::Topology,
};

/// The image has a number for each BO that others may be of. Handles of render nodes are lower.
const FIRST_NAME: u32 = 1 << 31;
/// So many there are.
const MOST_NAMES: u32 = (1 << 31) - 1;

/// What is known of a process whose state was dumped.
#[derive(Debug)]
pub(super) struct Process {
    /// CRIU's id of its file.
    pub kfd_id: u32,
    /// Where it is among those that are stopped.
    pub paused: usize,
    /// What the first of its BOs is called in this dump, and so on.
    pub first_handle: u32,
    /// For each GPU, as the process calls it: BOs that have a place in the mmap space of its render
    /// node, by their number, and that place.
    pub places: HashMap<u32, Vec<(u32, u64)>>,
    /// The render node of each GPU, as the process calls it.
    minors: HashMap<u32, u32>,
    /// For each GPU: what the process calls it, and what it is here.
    gpus: Vec<CriuDeviceBucket>,
}

impl Process {
    /// What the process calls a GPU of this machine.
    pub(super) fn name_of(&self, gpu_id: u32) -> Option<u32> {
        let gpu = self.gpus.iter().find(|gpu| gpu.actual_gpu_id == gpu_id)?;
        Some(gpu.user_gpu_id)
    }

    /// The number of a GPU's render node, by what the process calls the GPU.
    pub(super) fn minor_of(&self, gpu_id: u32) -> Option<u32> {
        self.minors.get(&gpu_id).copied()
    }
}

impl Dump {
    /// Dumps the process that has opened this `/dev/kfd`.
    pub(super) fn kfd(&mut self, cx: Context<'_>, fd: BorrowedFd<'_>, id: u32) -> Result<()> {
        let driver = &**cx.system.driver();
        // CRIU's descriptor is CRIU's: it is closed, and its number used again, before the end.
        let ours =
            fd.try_clone_to_owned().map_err(Error::file(KFD_NODE, "keep a descriptor of"))?;
        let kfd = Kfd::adopt(driver, ours)?;
        if !self.version_known {
            Kfd::open(driver)?.version()?;
            self.version_known = true;
        }
        if self.is_paused(&kfd)? {
            let what = "another descriptor of a process that was dumped already";
            return self.empty(cx, id, what);
        }
        self.guardian.watch(cx, kfd.as_fd());
        let paused = match Paused::pause(kfd) {
            Ok(paused) => paused,
            Err(DeviceError::Call { errno: Errno::ENODEV, .. }) => {
                return self.empty(cx, id, "the process sees no GPU");
            }
            Err(error) => return Err(error.into()),
        };
        // From here on `exit` starts the queues again, whatever happens.
        self.paused.push(paused);
        let Some(paused) = self.paused.last() else { return Err(Error::GivenUp) };
        let checkpoint = paused.checkpoint()?;
        self.state(cx, id, checkpoint)?;
        self.settle(cx)
    }

    /// Whether a file is of a process that is stopped already: stopping it twice would leave its
    /// queues stopped on some kernels. A stopped process answers a checkpoint of the right size, and
    /// one that is not stopped does not.
    fn is_paused(&self, kfd: &Kfd) -> Result<bool> {
        for paused in &self.paused {
            match kfd.checkpoint(paused.info()) {
                Ok(_) => return Ok(true),
                Err(DeviceError::Call { errno: Errno::EINVAL | Errno::ENODEV, .. }) => {}
                // Nobody knows then.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// Writes the image of an open `/dev/kfd` without a GPU.
    fn empty(&mut self, cx: Context<'_>, id: u32, why: &str) -> Result<()> {
        let name = kfd_name(id);
        cx.say(Level::Info, &format!("{name}: {why}"));
        let image = KfdImage {
            pid: 0,
            topology: Topology::default(),
            bos: Vec::new(),
            objects: 0,
            shared_memory: None,
            priv_data: Default::default(),
        };
        let mut bytes = Vec::new();
        image.write(&name, &mut bytes)?;
        cx.images().write(&name, &bytes)?;
        self.sums(cx, id, &sums_of(&bytes))
    }

    fn sums(&self, cx: Context<'_>, id: u32, sums: &Sums) -> Result<()> {
        let name = sums_name(id);
        let mut bytes = Vec::new();
        sums.write(&name, &mut bytes)?;
        cx.images().write(&name, &bytes)
    }

    fn state(&mut self, cx: Context<'_>, id: u32, checkpoint: Checkpoint) -> Result<()> {
        let Checkpoint { info, devices, bos, private } = checkpoint;
        let name = kfd_name(id);
        let topology = self.machine_of(cx, &devices)?;
        let buckets: Vec<_> = bos.iter().map(|bo| bo.bucket).collect();
        let first_handle = self.first_handle(buckets.len())?;
        let image = KfdImage {
            pid: info.pid,
            topology,
            bos: (first_handle..).zip(&buckets).map(|(handle, bo)| kfd_bo(handle, bo)).collect(),
            objects: info.objects,
            shared_memory: memory::find(cx.system)?,
            priv_data: private.into(),
        };
        let mut bytes = Vec::new();
        image.write(&name, &mut bytes)?;
        cx.images().write(&name, &bytes)?;
        let mut sums = sums_of(&bytes);
        let count = (devices.len(), buckets.len());
        let minors = self.minors(cx, &devices)?;
        let nodes = minors.iter().map(|&(gpu_id, minor)| (gpu_id, render_path(minor))).collect();
        let contents = Contents::by_gpu(nodes, bos.into_iter().map(|bo| (bo.bucket, bo.dma_buf)))?;
        self.processes.push(Process {
            kfd_id: id,
            paused: self.paused.len() - 1,
            first_handle,
            places: places(&buckets),
            minors: minors.into_iter().collect(),
            gpus: devices,
        });
        self.may_own_earlier_renders(cx, id)?;
        let total: u64 = contents.iter().filter_map(Contents::bytes).sum();
        let told = format!("{name}: {} GPUs, {} BOs, {total} bytes of contents", count.0, count.1);
        cx.say(Level::Info, &told);
        if let Some(streamer) = streamer(cx)? {
            let job = Job {
                direction: Direction::Dump,
                kfd_id: id,
                cap_bytes: cx.settings.budget.cap().map(|bytes| bytes as u64),
                gpus: opened(&**cx.system.driver(), contents)?,
            };
            let pending = streamer.hand_over(job)?;
            return self.handed_over(cx, name, pending);
        }
        let (driver, budget) = (cx.system.driver(), cx.settings.budget);
        sums.gpus = contents::dump(cx.images(), driver, budget, id, contents)?;
        self.sums(cx, id, &sums)
    }

    /// The machine as the process knows it: with its GPUs alone, by its names.
    fn machine_of(&mut self, cx: Context<'_>, devices: &[CriuDeviceBucket]) -> Result<Topology> {
        let topology = self.topology(cx)?;
        for device in devices {
            gpu_of(topology, device.actual_gpu_id)?;
        }
        let seen: Vec<_> = devices.iter().map(|device| device.actual_gpu_id).collect();
        let names: HashMap<_, _> =
            devices.iter().map(|device| (device.actual_gpu_id, device.user_gpu_id)).collect();
        Ok(topology.only(&seen).renamed(|gpu_id| names.get(&gpu_id).copied())?)
    }

    /// For each GPU of the process its name, and the number of its render node.
    fn minors(&mut self, cx: Context<'_>, devices: &[CriuDeviceBucket]) -> Result<Vec<(u32, u32)>> {
        let topology = self.topology(cx)?;
        let minors = devices.iter().map(|device| {
            let gpu = gpu_of(topology, device.actual_gpu_id)?;
            Ok((device.user_gpu_id, gpu.render_minor()))
        });
        minors.collect()
    }

    /// What the first of so many BOs is called in this dump.
    fn first_handle(&mut self, bos: usize) -> Result<u32> {
        let bos = u32::try_from(bos).ok();
        let end = bos.and_then(|bos| self.handles.checked_add(bos)).filter(|&end| end < MOST_NAMES);
        let end = end.ok_or_else(|| Error::Unsupported(format!("more than {MOST_NAMES} BOs")))?;
        Ok(FIRST_NAME + std::mem::replace(&mut self.handles, end))
    }
}

fn gpu_of(topology: &Topology, gpu_id: u32) -> Result<&crate::topology::Node> {
    let why = || {
        let hidden = topology.hidden().iter().find(|hidden| hidden.gpu_id == Some(gpu_id));
        hidden.map_or_else(String::new, |hidden| format!(": {}", hidden.why))
    };
    topology.gpu(gpu_id).ok_or_else(|| Error::UnknownGpu { gpu_id, why: why() })
}

/// Where BOs are in the mmap spaces of render nodes.
fn places(buckets: &[CriuBoBucket]) -> HashMap<u32, Vec<(u32, u64)>> {
    let mut places: HashMap<_, Vec<_>> = HashMap::new();
    for (number, bo) in (0..).zip(buckets) {
        if bo.alloc_flags & (flags::VRAM | flags::GTT) != 0 {
            places.entry(bo.gpu_id).or_default().push((number, bo.offset));
        }
    }
    places
}

fn sums_of(image: &[u8]) -> Sums {
    Sums { kfd: (image.len() as u64, Crc32::of(image).value), gpus: Vec::new() }
}

fn kfd_bo(handle: u32, bucket: &CriuBoBucket) -> KfdBo {
    KfdBo {
        addr: bucket.addr,
        size: bucket.size,
        offset: bucket.offset,
        alloc_flags: bucket.alloc_flags,
        gpu_id: bucket.gpu_id,
        // Only what can be shared has a name.
        handle: (bucket.alloc_flags & (flags::VRAM | flags::GTT) != 0).then_some(handle),
    }
}
