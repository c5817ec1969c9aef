//! SDMA packets, as the engine reads them from an indirect buffer (IB): 32-bit words.
//!
//! Sources: Linux `sdma_v4_0.c`, `sdma_v4_4_2.c` (`emit_copy_buffer`, `emit_fill_buffer`) and
//! `vega10_sdma_pkt_open.h`. The count field holds bytes less one from [`FAMILY_AI`] on, bytes
//! before it.

use super::amdgpu::FAMILY_AI;

/// Does nothing. One word.
pub const OP_NOP: u32 = 0;
/// Copies. With sub-operation 0, linear: [`COPY_WORDS`].
pub const OP_COPY: u32 = 1;
/// Writes 32-bit words that follow in the packet.
pub const OP_WRITE: u32 = 2;
/// Writes a value to memory.
pub const OP_FENCE: u32 = 5;
/// Ends the work of an IB with an interrupt.
pub const OP_TRAP: u32 = 6;
/// Waits until a word in memory compares with a value. Six words.
pub const OP_POLL_REGMEM: u32 = 8;
/// Changes a number in memory at once. Eight words.
pub const OP_ATOMIC: u32 = 10;
/// Writes the time. With sub-operation 2, that of all GPUs: three words.
pub const OP_TIMESTAMP: u32 = 13;
/// Fills with a 32-bit value: [`FILL_WORDS`].
pub const OP_CONST_FILL: u32 = 11;

/// The unit of a fill is a 32-bit word: bits 30 and 31 of the first word.
pub const FILL_DWORD: u32 = 2 << 30;

/// What [`OP_POLL_REGMEM`] reads is memory and not a register.
pub const POLL_MEMORY: u32 = 1 << 31;
/// How [`OP_POLL_REGMEM`] compares: bits 28 to 30 of its first word.
pub const POLL_COMPARE_SHIFT: u32 = 28;
/// What [`OP_ATOMIC`] does: bits 25 to 31 of its first word.
pub const ATOMIC_SHIFT: u32 = 25;
/// Adds to 32 bits.
pub const ATOMIC_ADD_32: u32 = 15;
/// Adds to 64 bits.
pub const ATOMIC_ADD_64: u32 = 47;
/// The sub-operation of [`OP_TIMESTAMP`] that writes the time of all GPUs.
pub const TIMESTAMP_GLOBAL: u32 = 2;

/// Words in a linear copy.
pub const COPY_WORDS: usize = 7;
/// Words in a fill.
pub const FILL_WORDS: usize = 5;
/// The length of an IB is a multiple of so many words.
pub const IB_ALIGN_WORDS: usize = 8;

/// The most bytes of one packet for each version of the engine, newest first (Linux
/// `sdma_v*.c`, `copy_max_bytes`).
const PACKET_BYTES: [((u32, u32), u64); 4] =
    [((5, 2), 1 << 30), ((5, 0), 1 << 22), ((4, 4), 1 << 30), ((4, 0), 1 << 22)];

/// The most bytes that one packet copies or fills, for an engine of this version.
pub fn packet_bytes(major: u32, minor: u32) -> u64 {
    let table = PACKET_BYTES.iter().find(|(version, _)| (major, minor) >= *version);
    // What every engine takes, less one for those that count bytes.
    table.map_or(0x1f_f000, |(_, bytes)| *bytes)
}

/// The most bytes of one fill, which every engine takes: their count field is 22 bits wide.
pub const FILL_BYTES: u64 = 1 << 21;

/// The words of a linear copy.
pub fn copy(family: u32, from: u64, to: u64, bytes: u32) -> [u32; COPY_WORDS] {
    let (from, to) = (words(from), words(to));
    [OP_COPY, count(family, bytes), 0, from[0], from[1], to[0], to[1]]
}

/// The words of a fill with zeros; `to` and `bytes` are multiples of 4.
pub fn fill_zero(family: u32, to: u64, bytes: u32) -> [u32; FILL_WORDS] {
    let to = words(to);
    [OP_CONST_FILL | FILL_DWORD, to[0], to[1], 0, count(family, bytes)]
}

fn count(family: u32, bytes: u32) -> u32 {
    if family >= FAMILY_AI { bytes.wrapping_sub(1) } else { bytes }
}

#[allow(clippy::cast_possible_truncation)] // that is what low and high words are
fn words(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_word_by_word() {
        let words = copy(FAMILY_AI, 0x1_2345_6789, 0xffff_8000_0000_1000, 4096);
        assert_eq!(words, [1, 4095, 0, 0x2345_6789, 1, 0x1000, 0xffff_8000]);
        assert_eq!(copy(130, 0, 0, 4096)[1], 4096);
    }

    #[test]
    fn a_fill_word_by_word() {
        assert_eq!(fill_zero(FAMILY_AI, 0x2_0000_0000, 8), [0x8000_000b, 0, 2, 0, 7]);
    }

    #[test]
    fn the_longest_packet_of_each_engine() {
        for (version, bytes) in
            [((4, 0), 1 << 22), ((4, 2), 1 << 22), ((4, 4), 1 << 30), ((3, 1), 0x1f_f000)]
        {
            assert_eq!(packet_bytes(version.0, version.1), bytes, "{version:?}");
        }
    }
}
