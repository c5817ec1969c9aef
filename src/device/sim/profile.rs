//! Models of GPUs, in the values that real machines show in sysfs.

/// A model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Its name: gfx90a.
    pub name: String,
    /// The family that amdgpu reports: 141 for GFX9.
    pub family: u32,
    /// The version of its SDMA engines.
    pub sdma_version: (u32, u32),
    /// Size of its VRAM in bytes.
    pub vram_bytes: u64,
    /// How many SDMA engines it has.
    pub sdma_engines: u32,
    /// PCI device id.
    pub device_id: u32,
}

impl Profile {
    /// MI210, as in a public dump of eight of them.
    pub fn gfx90a() -> Self {
        Profile {
            name: "gfx90a".into(),
            family: 141,
            sdma_version: (4, 4),
            vram_bytes: 68_702_699_520,
            sdma_engines: 2,
            device_id: 29711,
        }
    }
}

/// What the kernel calls each GPU of a machine.
pub(super) fn gpu_ids(machine: &super::machine::Machine) -> Vec<u32> {
    (1..).zip(&machine.gpus).map(|(id, _)| id).collect()
}
