//! What the kernel calls each GPU of a machine.

use std::collections::BTreeSet;

use crate::device::sim::machine::{GpuSpec, Machine};

/// The ids of all GPUs, in their order: a hash of what and where a GPU is, never 0, and one more
/// where another has it already.
pub(in crate::device::sim) fn gpu_ids(machine: &Machine) -> Vec<u32> {
    let mut taken = BTreeSet::from([0]);
    let mut unique = |gpu: &GpuSpec| {
        let mut id = hash(gpu);
        while taken.contains(&id) && taken.len() <= usize::from(u16::MAX) {
            id = id.wrapping_add(1);
        }
        taken.insert(id);
        u32::from(id)
    };
    machine.gpus.iter().map(&mut unique).collect()
}

fn hash(gpu: &GpuSpec) -> u16 {
    let [low, high] = [gpu.vram_bytes & 0xffff_ffff, gpu.vram_bytes >> 32];
    let small = |word: u64| u32::try_from(word).unwrap_or(0);
    let profile = &gpu.profile;
    let words = [
        gpu.location_id & 0xff,
        small(profile.property("vendor_id")) | (profile.device_id << 16),
        gpu.domain,
        profile.device_id,
        gpu.location_id >> 8,
        small(low),
        small(high),
        small(profile.num_xcc() << 16),
    ];
    crc16(words.iter().flat_map(|word| word.to_le_bytes()))
}

/// CRC-16 with the polynomial 0x8005, reflected, from 0.
fn crc16(bytes: impl Iterator<Item = u8>) -> u16 {
    bytes.fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(byte), |crc, _| {
            if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0xa001 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim::Profile;

    #[test]
    fn the_check_value_of_the_crc() {
        assert_eq!(crc16(b"123456789".iter().copied()), 0xbb3d);
    }

    #[test]
    fn ids_are_unique_small_and_change_with_the_slot() {
        let machine = Machine::new(&Profile::gfx90a(), 8);
        let here = gpu_ids(&machine);
        let moved = gpu_ids(&machine.clone().moved(128, 0x41));
        assert_eq!(here, gpu_ids(&machine));
        let all: BTreeSet<_> = here.iter().chain(&moved).collect();
        assert_eq!(all.len(), 16);
        assert!(all.iter().all(|&&id| id > 0 && id < 1 << 16));
    }

    #[test]
    fn gpus_with_the_same_hash_get_different_ids() {
        let mut machine = Machine::new(&Profile::gfx90a(), 3);
        machine.gpus[1] = machine.gpus[0].clone();
        machine.gpus[2] = machine.gpus[0].clone();
        let ids = gpu_ids(&machine);
        assert_eq!((ids[1], ids[2]), (ids[0] + 1, ids[0] + 2));
    }
}
