//! Models of GPUs, in the values that real machines show in sysfs.

mod file;
mod gpu_id;
mod models;

pub use file::ProfileError;
pub(super) use gpu_id::gpu_ids;

/// A model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its name: gfx90a.
    pub name: String,
    /// What the kernel calls it in the topology: aldebaran.
    pub kernel_name: String,
    /// The family that amdgpu reports: 141 for GFX9.
    pub family: u32,
    /// The version of its SDMA engines.
    pub sdma_version: (u32, u32),
    /// Size of its VRAM in bytes.
    pub vram_bytes: u64,
    /// Whether the CPU can reach all of its VRAM.
    pub large_bar: bool,
    /// Width of its memory in bits.
    pub memory_width: u32,
    /// Clock of its memory in MHz.
    pub memory_clock: u32,
    /// MB/s between it and its CPU.
    pub pcie_bandwidth: u32,
    /// MB/s between it and another GPU of its hive.
    pub xgmi_bandwidth: u32,
    /// How many SDMA engines it has.
    pub sdma_engines: u32,
    /// PCI device id.
    pub device_id: u32,
    /// The lines of its node's `properties` that the model decides, in the order of the file.
    pub properties: Vec<(String, u64)>,
}

impl Profile {
    /// MI25.
    pub fn gfx900() -> Self {
        models::model(0)
    }

    /// MI50 or MI60.
    pub fn gfx906() -> Self {
        models::model(1)
    }

    /// MI100.
    pub fn gfx908() -> Self {
        models::model(2)
    }

    /// MI210, as in a public dump of eight of them.
    pub fn gfx90a() -> Self {
        models::model(3)
    }

    /// MI300X in SPX mode, as in public dumps of eight of them.
    pub fn gfx942() -> Self {
        models::model(4)
    }

    /// A model that is built in.
    pub fn named(name: &str) -> Option<Self> {
        models::NAMES.iter().position(|&known| known == name).map(models::model)
    }

    /// A value of its node's `properties`, or 0.
    pub fn property(&self, key: &str) -> u64 {
        let found = self.properties.iter().find(|(name, _)| name == key);
        found.map_or(0, |&(_, value)| value)
    }

    fn small(&self, key: &str) -> u32 {
        u32::try_from(self.property(key)).unwrap_or(u32::MAX)
    }

    /// Takes what is also a field from the properties.
    fn take_over(&mut self) {
        self.sdma_engines = self.small("num_sdma_engines");
        self.device_id = self.small("device_id");
    }

    /// 90010 for gfx90a.
    pub fn gfx_target_version(&self) -> u64 {
        self.property("gfx_target_version")
    }

    /// How many compute dies work as this one GPU.
    pub fn num_xcc(&self) -> u64 {
        self.property("num_xcc").max(1)
    }

    /// The register that says how addresses are spread over the memory.
    pub fn gb_addr_config(&self) -> u32 {
        match self.property("gfx_target_version") {
            90010 => 0x2201_4042,
            _ => 0x2a11_4042,
        }
    }

    /// SDMA engines that are for XGMI only.
    pub fn sdma_xgmi_engines(&self) -> u32 {
        self.small("num_sdma_xgmi_engines")
    }

    /// User queues on each SDMA engine.
    pub fn sdma_queues_per_engine(&self) -> u32 {
        self.small("num_sdma_queues_per_engine")
    }

    /// Compute units of one die.
    fn compute_units(&self) -> u64 {
        self.property("simd_count") / self.property("simd_per_cu").max(1) / self.num_xcc()
    }

    /// Waves that one die can hold, as far as they must be saved.
    fn waves(&self) -> u64 {
        let engines = self.property("array_count") / self.property("simd_arrays_per_engine").max(1);
        (self.compute_units() * 40).min(engines * 512)
    }

    /// The control stack of a queue that is saved, in bytes: what the kernel demands of CREATE_QUEUE
    /// from 6.12 on.
    pub fn ctl_stack_size(&self) -> u64 {
        match self.property("ctl_stack_size") {
            0 => (40 + 8 + self.waves() * 8).next_multiple_of(4096),
            given => given,
        }
    }

    /// The area of one die in which a queue is saved, with the control stack.
    pub fn cwsr_size(&self) -> u64 {
        const SCALARS: u64 = 0x4000;
        const LDS: u64 = 0x1_0000;
        const REGISTERS: u64 = 0x1000;
        // From Arcturus on each SIMD has 512 vector registers and not 256.
        let vectors = match self.gfx_target_version() {
            90008 | 90010 | 90402 | 90500 => 0x8_0000,
            _ => 0x4_0000,
        };
        let groups = self.compute_units() * (vectors + SCALARS + LDS + REGISTERS);
        match self.property("cwsr_size") {
            0 => self.ctl_stack_size() + groups.next_multiple_of(4096),
            given => given,
        }
    }

    /// What debuggers need behind that area.
    pub fn debug_memory_size(&self) -> u64 {
        (self.waves() * 32).next_multiple_of(64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_save_area_is_what_a_real_machine_shows() {
        let mi300x = Profile::gfx942();
        assert_eq!((mi300x.cwsr_size(), mi300x.ctl_stack_size()), (23_203_840, 12288));
    }

    #[test]
    fn every_model_has_a_name() {
        for name in models::NAMES {
            let profile = Profile::named(name).unwrap();
            assert_eq!(profile.name, name);
            assert!(profile.sdma_engines == 2 && profile.device_id > 0 && profile.large_bar);
        }
        assert_eq!(Profile::named("gfx1100"), None);
        assert_eq!(Profile::named("gfx90a"), Some(Profile::gfx90a()));
    }
}
