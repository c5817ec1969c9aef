//! What a simulated machine consists of.

use std::{path::PathBuf, time::Duration};

use super::profile::Profile;

/// The id of the first XGMI hive of a machine.
const FIRST_HIVE: u64 = 0xaefe_0112_0000_0001;

/// Whose rules the machine follows, where kernels differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum KernelRelease {
    /// Linux 6.1: KFD 1.11, private data for 16 GPUs, no EXPORT_DMABUF.
    V6_1,
    /// Linux 6.12: KFD 1.17.
    #[default]
    V6_12,
    /// Linux 7.2: KFD 1.23, GEM_LIST_HANDLES.
    V7_2,
}

/// How fast a GPU copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Speed {
    /// Bytes per second that all engines of a GPU share, as they share its link to the host;
    /// `None` is as fast as this machine can.
    pub bytes_per_second: Option<u64>,
    /// From a submission to its first byte.
    pub latency: Duration,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSpec {
    /// Which model it is.
    pub profile: Profile,
    /// Size of its VRAM in bytes.
    pub vram_bytes: u64,
    /// The number of its render node.
    pub render_minor: u32,
    /// Bus, device and function: what tells two GPUs of a machine apart.
    pub location_id: u32,
    /// The PCI domain.
    pub domain: u32,
    /// The XGMI hive it is in, or 0.
    pub hive_id: u64,
    /// The CPU node it is connected to.
    pub numa_node: u32,
    /// How fast it copies.
    pub speed: Speed,
}

impl GpuSpec {
    /// Its render node.
    pub fn render_node(&self) -> PathBuf {
        format!("/dev/dri/renderD{}", self.render_minor).into()
    }
}

/// A machine to simulate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The kernel's version.
    pub kernel: KernelRelease,
    /// CPU nodes.
    pub cpu_nodes: u32,
    /// The GPUs, in the order of the topology.
    pub gpus: Vec<GpuSpec>,
}

impl Machine {
    /// `count` GPUs of one model in one hive, on one CPU node, on render nodes from 128.
    pub fn new(profile: &Profile, count: u32) -> Self {
        let gpu = |number: u32| GpuSpec {
            profile: profile.clone(),
            vram_bytes: profile.vram_bytes,
            render_minor: 128 + number,
            location_id: 0x0300 + (number << 8),
            domain: 0,
            hive_id: if count > 1 { FIRST_HIVE } else { 0 },
            numa_node: 0,
            speed: Speed::default(),
        };
        Machine {
            kernel: KernelRelease::default(),
            cpu_nodes: 1,
            gpus: (0..count).map(gpu).collect(),
        }
    }

    /// What the topology calls each GPU, in its order.
    pub fn gpu_ids(&self) -> Vec<u32> {
        super::profile::gpu_ids(self)
    }

    /// The same with another kernel.
    pub fn kernel(mut self, kernel: KernelRelease) -> Self {
        self.kernel = kernel;
        self
    }

    /// The same with so many CPU nodes, each with its share of the GPUs.
    pub fn cpu_nodes(mut self, count: u32) -> Self {
        self.cpu_nodes = count.max(1);
        let gpus = u32::try_from(self.gpus.len()).unwrap_or(u32::MAX).max(1);
        for (gpu, number) in self.gpus.iter_mut().zip(0..) {
            gpu.numa_node = number * self.cpu_nodes / gpus;
        }
        self
    }

    /// The same with the GPUs in XGMI hives of so many each; hives of one are none.
    pub fn hives_of(mut self, count: u32) -> Self {
        for (gpu, number) in self.gpus.iter_mut().zip(0..) {
            let hive = FIRST_HIVE + u64::from(number / count.max(1));
            gpu.hive_id = if count > 1 { hive } else { 0 };
        }
        self
    }

    /// The same with another amount of VRAM on each GPU.
    pub fn vram_bytes(mut self, bytes: u64) -> Self {
        self.gpus.iter_mut().for_each(|gpu| gpu.vram_bytes = bytes);
        self
    }

    /// The same with another speed of each GPU.
    pub fn speed(mut self, speed: Speed) -> Self {
        self.gpus.iter_mut().for_each(|gpu| gpu.speed = speed);
        self
    }

    /// The same with the GPUs in other slots: their render nodes begin at `first_minor`, and their
    /// ids are different.
    pub fn moved(mut self, first_minor: u32, first_bus: u32) -> Self {
        for (gpu, number) in self.gpus.iter_mut().zip(0..) {
            gpu.render_minor = first_minor + number;
            gpu.location_id = (first_bus + number) << 8;
        }
        self
    }
}
