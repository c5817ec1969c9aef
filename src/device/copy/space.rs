//! Addresses of a GPU's address space in which nobody else maps anything.
//!
//! They are handed out upwards and not taken back: 47 bits are enough for the VRAM of a GPU a
//! hundred times over, and an address that was used once is not used again by mistake.

use std::ops::Range;

/// The first address: what is below may be needed by blocks that have 32-bit addresses.
const FIRST: u64 = 4 << 30;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Space {
    left: Range<u64>,
}

impl Space {
    /// Of a GPU that can map these addresses.
    pub(super) fn new(addresses: Range<u64>) -> Self {
        let start = addresses.start.max(FIRST);
        Space { left: start.min(addresses.end)..addresses.end }
    }

    /// So many bytes, rounded up to whole pages, aligned to a power of two.
    pub(super) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let start = self.left.start.checked_next_multiple_of(align)?;
        let end = start.checked_add(bytes.checked_next_multiple_of(4096)?)?;
        if end > self.left.end {
            return None;
        }
        self.left.start = end;
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_apart_and_aligned_and_end() {
        let mut space = Space::new(0x10000..(4 << 30) + (6 << 20));
        let first = space.take(1, 4096).unwrap();
        assert_eq!(first, 4 << 30);
        assert_eq!(space.take(2 << 20, 2 << 20), Some((4 << 30) + (2 << 20)));
        assert_eq!(space.take(2 << 20, 2 << 20), Some((4 << 30) + (4 << 20)));
        assert_eq!(space.take(1, 4096), None);
        assert_eq!(space.take(u64::MAX, 4096), None);
        assert_eq!(Space::new(0..4096).take(1, 4096), None);
    }
}
