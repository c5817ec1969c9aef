//! inventory.img: the last image that CRIU writes, and the only word it gives that a dump is whole.

/// Its name.
pub const INVENTORY: &str = "inventory.img";

/// CRIU's framing of this image: a magic number of 4 bytes, the length of the one protobuf object,
/// both little-endian, then the object. (Every other image has a second magic number in front; this
/// one is read to find out whether they do.)
const FRAMING_BYTES: usize = 8;
/// From CRIU's criu/include/magic.h.
const INVENTORY_MAGIC: u32 = 0x5831_3116;

/// Watches the bytes of an inventory go by.
#[derive(Debug, Default)]
pub struct InventoryCheck {
    head: Vec<u8>,
    len: u64,
}

impl InventoryCheck {
    /// The next bytes.
    pub fn see(&mut self, bytes: &[u8]) {
        let missing = FRAMING_BYTES - self.head.len();
        self.head.extend_from_slice(&bytes[..missing.min(bytes.len())]);
        self.len += bytes.len() as u64;
    }

    /// Whether what went by is one whole inventory: CRIU was not killed in the middle of it.
    pub fn is_whole(&self) -> bool {
        let word = |at: usize| {
            let bytes = self.head.get(at..at + 4)?;
            Some(bytes.iter().rev().fold(0u32, |n, &b| n << 8 | u32::from(b)))
        };
        word(0) == Some(INVENTORY_MAGIC)
            && word(4).is_some_and(|len| self.len == FRAMING_BYTES as u64 + u64::from(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_of_it_is_whole() {
        let mut image = Vec::new();
        for word in [INVENTORY_MAGIC, 3] {
            image.extend_from_slice(&word.to_le_bytes());
        }
        image.extend_from_slice(b"abc");
        for cut in 0..=image.len() {
            for piece in [1, 5, 100] {
                let mut check = InventoryCheck::default();
                image[..cut].chunks(piece).for_each(|bytes| check.see(bytes));
                assert_eq!(check.is_whole(), cut == image.len(), "{cut} bytes by {piece}");
            }
        }
        let mut check = InventoryCheck::default();
        check.see(&image);
        check.see(b"x");
        assert!(!check.is_whole());
        let mut check = InventoryCheck::default();
        image[1] ^= 1;
        check.see(&image);
        assert!(!check.is_whole());
    }
}
