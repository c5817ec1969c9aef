//! What is known about a node: numbers, under the names that the kernel's files and the images of
//! CRIU's amdgpu plugin give them.

macro_rules! properties {
    ($($variant:ident $name:literal,)*) => {
        /// A number that a node has.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)] // the kernel's names say what they are
        pub enum Property {
            $($variant,)*
        }

        impl Property {
            /// All of them, in the order of an image's fields.
            pub const ALL: [Property; [$($name),*].len()] = [$(Property::$variant),*];

            /// Its name, in `properties` and in images.
            pub fn name(self) -> &'static str {
                match self {
                    $(Property::$variant => $name,)*
                }
            }
        }
    };
}

properties! {
    CpuCoresCount "cpu_cores_count",
    SimdCount "simd_count",
    MemBanksCount "mem_banks_count",
    CachesCount "caches_count",
    IoLinksCount "io_links_count",
    MaxWavesPerSimd "max_waves_per_simd",
    LdsSizeInKb "lds_size_in_kb",
    NumGws "num_gws",
    WaveFrontSize "wave_front_size",
    ArrayCount "array_count",
    SimdArraysPerEngine "simd_arrays_per_engine",
    CuPerSimdArray "cu_per_simd_array",
    SimdPerCu "simd_per_cu",
    MaxSlotsScratchCu "max_slots_scratch_cu",
    VendorId "vendor_id",
    DeviceId "device_id",
    Domain "domain",
    DrmRenderMinor "drm_render_minor",
    HiveId "hive_id",
    NumSdmaEngines "num_sdma_engines",
    NumSdmaXgmiEngines "num_sdma_xgmi_engines",
    NumSdmaQueuesPerEngine "num_sdma_queues_per_engine",
    NumCpQueues "num_cp_queues",
    FwVersion "fw_version",
    Capability "capability",
    SdmaFwVersion "sdma_fw_version",
    VramPublic "vram_public",
    VramSize "vram_size",
}

impl Property {
    /// The property that a line of `properties` names. The last two come from elsewhere: the
    /// kernel has the memory in files of its own.
    pub(super) fn from_line(name: &str) -> Option<Self> {
        let of_memory = |p: &Property| matches!(p, Property::VramPublic | Property::VramSize);
        Self::ALL.into_iter().find(|p| p.name() == name && !of_memory(p))
    }

    /// The largest value.
    pub fn most(self) -> u64 {
        match self {
            Property::HiveId | Property::VramSize => u64::MAX,
            _ => u32::MAX.into(),
        }
    }
}

/// All numbers of a node; what was not said is 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Properties([u64; Property::ALL.len()]);

impl Properties {
    /// A value.
    pub fn get(&self, property: Property) -> u64 {
        self.0[property as usize]
    }

    /// A value of 32 bits.
    pub fn get_u32(&self, property: Property) -> u32 {
        u32::try_from(self.get(property)).unwrap_or(u32::MAX)
    }

    /// Sets a value; what is larger than the property can be becomes that.
    pub fn set(&mut self, property: Property, value: u64) {
        self.0[property as usize] = value.min(property.most());
    }

    /// The same with one value changed.
    #[must_use]
    pub fn with(mut self, property: Property, value: u64) -> Self {
        self.set(property, value);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_property_has_a_name_and_a_place_of_its_own() {
        for (at, property) in Property::ALL.into_iter().enumerate() {
            assert_eq!(property as usize, at);
            let of_memory = property >= Property::VramPublic;
            assert_eq!(Property::from_line(property.name()), (!of_memory).then_some(property));
        }
        assert_eq!(Property::from_line("simd_id_base"), None);
    }

    #[test]
    fn values_stay_within_their_size() {
        let values = Properties::default()
            .with(Property::HiveId, u64::MAX)
            .with(Property::Domain, u64::MAX)
            .with(Property::NumGws, 64);
        assert_eq!(values.get(Property::HiveId), u64::MAX);
        assert_eq!(values.get_u32(Property::Domain), u32::MAX);
        assert_eq!((values.get(Property::NumGws), values.get(Property::VramSize)), (64, 0));
    }
}
