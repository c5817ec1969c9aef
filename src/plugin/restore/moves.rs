//! Where BOs were in the mmap spaces of their devices, and where they are.

use std::ops::Range;

use crate::{
    abi::kfd::flags,
    image::{DrmBo, KfdBo},
};

/// Where the BOs of a process were, and where they are.
#[derive(Debug, Default)]
pub(super) struct Moves(Vec<Move>);

#[derive(Debug)]
struct Move {
    /// `None` for a place in the mmap space of `/dev/kfd`.
    gpu_id: Option<u32>,
    old: Range<u64>,
    new: u64,
}

impl Moves {
    /// A BO was at one place and is at another.
    pub(super) fn add(&mut self, bo: &KfdBo, new: u64) {
        if bo.alloc_flags & flags::USERPTR != 0 {
            // Its memory is the process's own.
            return;
        }
        let of_kfd = bo.alloc_flags & (flags::DOORBELL | flags::MMIO_REMAP) != 0;
        let old = bo.offset..bo.offset.saturating_add(bo.size);
        self.0.push(Move { gpu_id: (!of_kfd).then_some(bo.gpu_id), old, new });
    }

    /// A BO of a render node was at one place and is at another.
    pub(super) fn add_gem(&mut self, gpu_id: u32, bo: &DrmBo, new: u64, is_import: bool) {
        let old = bo.offset..bo.offset.saturating_add(bo.size);
        let moved = Move { gpu_id: Some(gpu_id), old, new };
        // Those of another device may have places of that device's.
        if is_import { self.0.push(moved) } else { self.0.insert(0, moved) }
    }

    /// Where a place of a GPU's render node, or of `/dev/kfd`, is now.
    pub(super) fn find(&self, gpu_id: Option<u32>, offset: u64) -> Option<u64> {
        let found =
            self.0.iter().find(|moved| moved.gpu_id == gpu_id && moved.old.contains(&offset))?;
        found.new.checked_add(offset - found.old.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_found_wherever_in_its_bo_it_begins() {
        let bo = |offset, alloc_flags| KfdBo {
            addr: 0,
            size: 8192,
            offset,
            alloc_flags,
            gpu_id: 7,
            handle: None,
        };
        let mut moves = Moves::default();
        moves.add(&bo(0x1_0000_0000, flags::VRAM), 0x2_0000_0000);
        moves.add(&bo(3 << 62, flags::DOORBELL), (3 << 62) | (5 << 46));
        moves.add(&bo(7 << 46, flags::MMIO_REMAP), 9 << 46);
        moves.add(&bo(0, flags::USERPTR), 0);
        let at = |gpu_id, offset| moves.find(gpu_id, offset);
        assert_eq!(at(Some(7), 0x1_0000_0000), Some(0x2_0000_0000));
        assert_eq!(at(Some(7), 0x1_0000_1000), Some(0x2_0000_1000));
        assert_eq!(at(Some(7), 0x1_0000_2000), None);
        assert_eq!(at(Some(8), 0x1_0000_0000), None);
        assert_eq!(at(None, 3 << 62), Some((3 << 62) | (5 << 46)));
        assert_eq!(at(None, 7 << 46), Some(9 << 46));
        assert_eq!((at(None, 0), at(Some(7), 0)), (None, None));
    }
}
