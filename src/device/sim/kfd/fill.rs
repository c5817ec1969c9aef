//! Contents for BOs, as fast as memory can take them.
//!
//! Every word is a function of where it is and of a seed, so a part can be made, and compared,
//! without the rest.

use std::sync::LazyLock;

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    sys::uio::pwrite,
};

use super::super::object::Object;

/// What to fill memory with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Random words, from this seed.
    Random(u64),
    /// Weights of a model as bfloat16: normally distributed, standard deviation 0.02.
    Bf16(u64),
    /// Zeros.
    Zeros,
    /// Blocks of 64 KiB: random ones and zeros take turns.
    HalfZeros(u64),
    /// Each word of 8 bytes is its own offset in the BO.
    Offsets,
}

const BLOCK: u64 = 64 << 10;
/// So much is made at a time: it stays in the cache until it is written.
const PIECE: usize = 256 << 10;
/// Less than this is not worth another thread.
const SHARE: u64 = 32 << 20;

impl Fill {
    /// Makes the bytes from `offset`, which is a multiple of 8.
    pub fn write(self, offset: u64, bytes: &mut [u8]) {
        match self {
            Fill::Random(seed) => words(offset, bytes, |n| random(seed, n)),
            Fill::Bf16(seed) => {
                let table = normal();
                words(offset, bytes, |n| {
                    let bits = random(seed, n);
                    let one = |shift: u32| {
                        #[allow(clippy::cast_possible_truncation)] // only these bits are wanted
                        let index = (bits >> shift) as usize & TABLE_MASK;
                        u64::from(table[index]) << shift
                    };
                    one(0) | one(16) | one(32) | one(48)
                });
            }
            Fill::Zeros => bytes.fill(0),
            Fill::HalfZeros(seed) => {
                let word = |n: u64| if n * 8 / BLOCK % 2 == 1 { 0 } else { random(seed, n) };
                words(offset, bytes, word);
            }
            Fill::Offsets => words(offset, bytes, |n| n * 8),
        }
    }

    /// Fills a range of an object.
    pub(super) fn object(self, object: &Object, offset: u64, len: u64) -> nix::Result<()> {
        let end = offset.checked_add(len).filter(|&end| end <= object.size).ok_or(Errno::EINVAL)?;
        if !offset.is_multiple_of(8) {
            return Err(Errno::EINVAL);
        }
        if self == Fill::Zeros && punched(object, offset, len)? {
            return Ok(());
        }
        let most = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
        let shares = (len / SHARE).clamp(1, most);
        if shares == 1 {
            return self.part(object, offset, end);
        }
        let share = len.div_ceil(shares).next_multiple_of(PIECE as u64);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..shares)
                .map(|n| {
                    let from = (offset + n * share).min(end);
                    let to = (from + share).min(end);
                    scope.spawn(move || self.part(object, from, to))
                })
                .collect();
            let mut answers = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
            answers.try_for_each(|answer| answer.unwrap_or(Err(Errno::EIO)))
        })
    }

    fn part(self, object: &Object, mut from: u64, to: u64) -> nix::Result<()> {
        let mut piece = vec![0; PIECE.min(usize::try_from(to - from).unwrap_or(PIECE))];
        while from < to {
            let len = (to - from).min(PIECE as u64);
            let piece = &mut piece[..usize::try_from(len).map_err(|_| Errno::EINVAL)?];
            self.write(from, piece);
            put(object, from, piece)?;
            from += len;
        }
        Ok(())
    }
}

/// Gives a range back to the machine, so that it is zeros that take no room; false where it cannot
/// be.
fn punched(object: &Object, offset: u64, len: u64) -> nix::Result<bool> {
    let Some(piece) = object.piece() else { return Ok(false) };
    let (file, start) = piece.file();
    let signed = |n: u64| i64::try_from(n).map_err(|_| Errno::EINVAL);
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, hole, signed(start + offset)?, signed(len)?)?;
    Ok(true)
}

/// Writes to an object, through its file where it has one: that is faster than to fault its pages
/// in.
pub(super) fn put(object: &Object, offset: u64, mut bytes: &[u8]) -> nix::Result<()> {
    let Some(piece) = object.piece() else {
        // SAFETY: a slice has that many bytes.
        return unsafe { object.write(offset, bytes.as_ptr(), bytes.len()) };
    };
    let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::EINVAL)?;
    if end > object.size {
        return Err(Errno::EINVAL);
    }
    let (file, start) = piece.file();
    let mut at = i64::try_from(start + offset).map_err(|_| Errno::EINVAL)?;
    while !bytes.is_empty() {
        let done = pwrite(file, bytes, at)?;
        if done == 0 {
            return Err(Errno::EIO);
        }
        bytes = &bytes[done..];
        at += done.cast_signed() as i64;
    }
    Ok(())
}

fn words(offset: u64, bytes: &mut [u8], word: impl Fn(u64) -> u64) {
    let first = offset / 8;
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    for (n, chunk) in (first..).zip(whole.iter_mut()) {
        *chunk = word(n).to_le_bytes();
    }
    let last = word(first + whole.len() as u64).to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

/// The `n`-th word of a random sequence (splitmix64).
pub(super) fn random(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

const TABLE_SIZE: u16 = 1 << 13;
const TABLE_MASK: usize = TABLE_SIZE as usize - 1;

/// Values of a normal distribution as bfloat16, each as probable as the others.
fn normal() -> &'static [u16; TABLE_SIZE as usize] {
    static TABLE: LazyLock<[u16; TABLE_SIZE as usize]> = LazyLock::new(|| {
        let mut table = [0; TABLE_SIZE as usize];
        for (n, entry) in (0..TABLE_SIZE).zip(&mut table) {
            let value = quantile((f64::from(n) + 0.5) / f64::from(TABLE_SIZE)) * 0.02;
            #[allow(clippy::cast_possible_truncation)] // fewer digits are the point
            let bits = (value as f32).to_bits() >> 16;
            *entry = u16::try_from(bits).unwrap_or(0);
        }
        table
    });
    &TABLE
}

/// Where a share `p` of a standard normal distribution is below, to three digits (Abramowitz and
/// Stegun, 26.2.23).
fn quantile(p: f64) -> f64 {
    let tail = p.min(1.0 - p);
    let t = (-2.0 * tail.ln()).sqrt();
    let above = t
        - (2.515_517 + t * (0.802_853 + t * 0.010_328))
            / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)));
    if p < 0.5 { -above } else { above }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(fill: Fill, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xaa; len];
        fill.write(offset, &mut bytes);
        bytes
    }

    #[test]
    fn a_part_is_what_it_is_in_the_whole() {
        for fill in [Fill::Random(1), Fill::Bf16(2), Fill::HalfZeros(3), Fill::Offsets, Fill::Zeros]
        {
            let whole = made(fill, 0, 200_000);
            assert_eq!(made(fill, 65_528, 70_001), whole[65_528..][..70_001], "{fill:?}");
        }
        assert_ne!(made(Fill::Random(1), 0, 64), made(Fill::Random(2), 0, 64));
        assert_eq!(made(Fill::Offsets, 4096, 8), 4096_u64.to_le_bytes());
    }

    #[test]
    fn halves_are_zero() {
        let bytes = made(Fill::HalfZeros(7), 0, 4 << 16);
        for (n, block) in bytes.chunks(1 << 16).enumerate() {
            assert_eq!(block.iter().all(|&byte| byte == 0), n % 2 == 1, "block {n}");
        }
    }

    #[test]
    fn weights_are_weights_and_do_not_compress() {
        let bytes = made(Fill::Bf16(9), 0, 1 << 20);
        let values: Vec<f64> = bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&half| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16)))
            .collect();
        let count = f64::from(u32::try_from(values.len()).unwrap());
        let mean = values.iter().sum::<f64>() / count;
        let deviation = (values.iter().map(|v| v * v).sum::<f64>() / count).sqrt();
        assert!(mean.abs() < 1e-3 && (0.019..0.021).contains(&deviation), "{mean} {deviation}");
        let packed = lz4_flex::block::compress(&bytes);
        assert!(packed.len() * 100 > bytes.len() * 98, "{} of {}", packed.len(), bytes.len());
    }
}
