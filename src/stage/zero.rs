//! Is this all zero?

/// Whether every byte is zero. Stops at the first piece of 256 bytes that is not: data that has
/// none costs next to nothing to look at, and zeros are scanned as fast as memory is read.
pub fn is_zero(bytes: &[u8]) -> bool {
    // OR-folding a fixed-size block is what the compiler turns into wide vector instructions.
    let (blocks, rest) = bytes.as_chunks::<256>();
    blocks.iter().all(|block| block.iter().fold(0, |acc, b| acc | b) == 0)
        && rest.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests {
    use super::is_zero;

    #[test]
    fn one_bit_anywhere_is_seen() {
        for len in [0, 1, 255, 256, 257, 1024, 4096 + 3] {
            let mut bytes = vec![0u8; len];
            assert!(is_zero(&bytes));
            for at in 0..len {
                bytes[at] = 0x80;
                assert!(!is_zero(&bytes), "byte {at} of {len}");
                bytes[at] = 0;
            }
        }
    }
}
