//! The machine of a checkpoint: the device entries of a KFD image and the topology they stand for.

use super::{
    ImageError,
    error::File,
    proto::{DevIolink, KfdDeviceEntry},
};
use crate::topology::{Link, LinkKind, Node, Properties, Property, Topology};

/// A number in an entry.
enum Slot<'a> {
    Short(&'a mut Option<u32>),
    Long(&'a mut Option<u64>),
}

impl Slot<'_> {
    fn get(&self) -> Option<u64> {
        match self {
            Slot::Short(value) => value.map(u64::from),
            Slot::Long(value) => **value,
        }
    }

    fn set(self, to: u64) {
        match self {
            Slot::Short(value) => *value = Some(u32::try_from(to).unwrap_or(u32::MAX)),
            Slot::Long(value) => *value = Some(to),
        }
    }
}

/// Where each property is in an entry.
fn slots(entry: &mut KfdDeviceEntry) -> [(Property, Slot<'_>); Property::ALL.len()] {
    use Property as P;
    use Slot::{Long, Short};
    [
        (P::CpuCoresCount, Short(&mut entry.cpu_cores_count)),
        (P::SimdCount, Short(&mut entry.simd_count)),
        (P::MemBanksCount, Short(&mut entry.mem_banks_count)),
        (P::CachesCount, Short(&mut entry.caches_count)),
        (P::IoLinksCount, Short(&mut entry.io_links_count)),
        (P::MaxWavesPerSimd, Short(&mut entry.max_waves_per_simd)),
        (P::LdsSizeInKb, Short(&mut entry.lds_size_in_kb)),
        (P::NumGws, Short(&mut entry.num_gws)),
        (P::WaveFrontSize, Short(&mut entry.wave_front_size)),
        (P::ArrayCount, Short(&mut entry.array_count)),
        (P::SimdArraysPerEngine, Short(&mut entry.simd_arrays_per_engine)),
        (P::CuPerSimdArray, Short(&mut entry.cu_per_simd_array)),
        (P::SimdPerCu, Short(&mut entry.simd_per_cu)),
        (P::MaxSlotsScratchCu, Short(&mut entry.max_slots_scratch_cu)),
        (P::VendorId, Short(&mut entry.vendor_id)),
        (P::DeviceId, Short(&mut entry.device_id)),
        (P::Domain, Short(&mut entry.domain)),
        (P::DrmRenderMinor, Short(&mut entry.drm_render_minor)),
        (P::HiveId, Long(&mut entry.hive_id)),
        (P::NumSdmaEngines, Short(&mut entry.num_sdma_engines)),
        (P::NumSdmaXgmiEngines, Short(&mut entry.num_sdma_xgmi_engines)),
        (P::NumSdmaQueuesPerEngine, Short(&mut entry.num_sdma_queues_per_engine)),
        (P::NumCpQueues, Short(&mut entry.num_cp_queues)),
        (P::FwVersion, Short(&mut entry.fw_version)),
        (P::Capability, Short(&mut entry.capability)),
        (P::SdmaFwVersion, Short(&mut entry.sdma_fw_version)),
        (P::VramPublic, Short(&mut entry.vram_public)),
        (P::VramSize, Long(&mut entry.vram_size)),
    ]
}

/// The entries of a topology: all nodes that are known, and the links between them.
pub(super) fn entries(topology: &Topology) -> Vec<KfdDeviceEntry> {
    let entry = |node: &Node| {
        let link = |(link, _): (Link, &Node)| DevIolink {
            r#type: Some(link.kind.number()),
            node_to_id: Some(link.to),
        };
        let mut entry = KfdDeviceEntry {
            node_id: Some(node.id),
            gpu_id: Some(node.gpu_id),
            gds_size_in_kb: Some(0),
            iolinks: topology.valid_links(node).map(link).collect(),
            ..Default::default()
        };
        for (property, slot) in slots(&mut entry) {
            slot.set(node.get(property));
        }
        entry
    };
    topology.nodes().iter().map(entry).collect()
}

/// The topology of entries.
pub(super) fn topology(file: File, entries: Vec<KfdDeviceEntry>) -> Result<Topology, ImageError> {
    let node = |(at, entry)| node(file, at, entry);
    let nodes = entries.into_iter().enumerate().map(node).collect::<Result<_, _>>()?;
    Topology::new(nodes, Vec::new())
        .map_err(|source| ImageError::Topology { file: file.0.into(), source })
}

fn node(file: File, at: usize, mut entry: KfdDeviceEntry) -> Result<Node, ImageError> {
    let missing = |field: &str| file.missing(format!("device_entries[{at}].{field}"));
    let id = entry.node_id.ok_or_else(|| missing("node_id"))?;
    let gpu_id = entry.gpu_id.ok_or_else(|| missing("gpu_id"))?;
    entry.gds_size_in_kb.ok_or_else(|| missing("gds_size_in_kb"))?;
    let mut properties = Properties::default();
    for (property, slot) in slots(&mut entry) {
        let value = slot.get().ok_or_else(|| missing(property.name()))?;
        if gpu_id != 0 || property == Property::CpuCoresCount {
            properties.set(property, value);
        }
    }
    let mut links = Vec::new();
    for (link, DevIolink { r#type, node_to_id }) in entry.iolinks.into_iter().enumerate() {
        let kind = r#type.ok_or_else(|| missing(&format!("iolinks[{link}].type")))?;
        let to = node_to_id.ok_or_else(|| missing(&format!("iolinks[{link}].node_to_id")))?;
        links.extend(LinkKind::from_number(kind).map(|kind| Link { kind, to }));
    }
    Ok(Node { id, gpu_id, properties, links })
}
