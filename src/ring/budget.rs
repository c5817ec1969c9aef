//! What `KFD_MAX_BUFFER_SIZE` means: how much memory the chunks of a process may have.
//!
//! There is one ring for all GPUs of a process, so one cap is enough and nobody has to divide it.
//! Without a cap a ring has 64 MiB for each GPU in chunks of 4 MiB, and never more. A smaller cap
//! makes the chunks smaller, down to one page, so that each GPU can have two copies under way while
//! two others are on their way out. A cap that has not even four pages for each GPU makes the GPUs
//! take turns at what there is.

use std::{env, ffi::OsStr};

use super::{ByteSize, ByteSizeError, Ring, RingError, page_bytes};

/// The environment variable, which CRIU's own plugin has too.
pub const VARIABLE: &str = "KFD_MAX_BUFFER_SIZE";

/// Bytes that a ring has for each GPU where nothing caps it.
const BYTES_FOR_A_GPU: usize = 64 << 20;
/// Bytes of a chunk where there is room.
const CHUNK_BYTES: usize = 4 << 20;
/// Two that a GPU is copying, and two that are being sent.
const CHUNKS_FOR_A_GPU: usize = 4;
/// With one chunk nothing could overlap.
const FEWEST_CHUNKS: usize = 2;

/// How much memory the chunks of a process may have, for all its GPUs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Budget {
    cap: Option<usize>,
}

/// Why a budget was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{VARIABLE}={value:?}: {reason}. It caps the memory of all GPUs' chunks together: a size from {} (two pages), for example 64M or 2G, or 0 for 64M for each GPU",
    ByteSize(least() as u64)
)]
pub struct BudgetError {
    /// What was given.
    pub value: String,
    /// What is wrong with it.
    pub reason: BudgetReason,
}

/// What is wrong with a budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetReason {
    /// It is no size.
    #[error(transparent)]
    Size(#[from] ByteSizeError),
    /// It is not even text.
    #[error("not a size, nor valid Unicode")]
    NotText,
    /// Less than two pages.
    #[error("too little")]
    TooSmall,
}

impl Budget {
    /// Understands a value of the variable.
    pub fn parse(text: &str) -> Result<Budget, BudgetError> {
        let wrong = |reason| BudgetError { value: text.to_owned(), reason };
        let ByteSize(bytes) = text.parse().map_err(|error| wrong(BudgetReason::Size(error)))?;
        if bytes == 0 {
            return Ok(Budget::default());
        }
        // More than can be addressed is no cap at all, but it is a size.
        let cap = usize::try_from(bytes).unwrap_or(usize::MAX);
        if cap < least() {
            return Err(wrong(BudgetReason::TooSmall));
        }
        Ok(Budget { cap: Some(cap) })
    }

    /// The budget that the environment of this process asks for.
    pub fn from_env() -> Result<Budget, BudgetError> {
        Budget::from_value(env::var_os(VARIABLE).as_deref())
    }

    /// The budget that a value of the variable asks for.
    pub fn from_value(value: Option<&OsStr>) -> Result<Budget, BudgetError> {
        let Some(value) = value else {
            return Ok(Budget::default());
        };
        let text = value.to_str().ok_or_else(|| BudgetError {
            value: value.to_string_lossy().into_owned(),
            reason: BudgetReason::NotText,
        })?;
        Budget::parse(text)
    }

    /// The cap in bytes, if there is one.
    pub fn cap(&self) -> Option<usize> {
        self.cap
    }

    /// Bytes of a chunk and number of chunks for so many GPUs (none counts as one).
    pub fn shape(&self, gpus: usize) -> (usize, usize) {
        let gpus = gpus.max(1);
        let default = BYTES_FOR_A_GPU.saturating_mul(gpus);
        let bytes = self.cap.map_or(default, |cap| cap.min(default));
        let wanted = CHUNKS_FOR_A_GPU.saturating_mul(gpus);
        let mut chunk_bytes = CHUNK_BYTES;
        while chunk_bytes > page_bytes() && bytes / chunk_bytes < wanted {
            chunk_bytes /= 2;
        }
        (chunk_bytes, bytes / chunk_bytes)
    }

    /// Makes the ring that so many GPUs share.
    pub fn ring(&self, gpus: usize) -> Result<Ring, RingError> {
        let (chunk_bytes, chunks) = self.shape(gpus);
        Ring::new(chunk_bytes, chunks)
    }

    /// The same for so many bytes altogether: no larger than they need, since fresh memory costs as
    /// much time as copies do. That is an eighth of them, or what GPUs need to overlap, or as many
    /// chunks as there are altogether, with one more for each GPU, whose last one is not full.
    pub fn ring_for(&self, gpus: usize, bytes: u64) -> Result<Ring, RingError> {
        let (chunk_bytes, chunks) = self.shape(gpus);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let power = bytes.checked_next_power_of_two().unwrap_or(usize::MAX);
        let chunk_bytes = chunk_bytes.min(power.max(page_bytes()));
        let overlap = CHUNKS_FOR_A_GPU.saturating_mul(gpus);
        let enough = (bytes / 8 / chunk_bytes).max(overlap);
        let all = (bytes / chunk_bytes).saturating_add(gpus);
        Ring::new(chunk_bytes, chunks.min(enough).min(all).max(FEWEST_CHUNKS))
    }
}

fn least() -> usize {
    FEWEST_CHUNKS * page_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    const PAGE: usize = 4096;

    #[test]
    fn no_value_and_zero_are_the_default_ring() {
        let default = Budget::default();
        assert_eq!(Budget::from_value(None), Ok(default));
        for zero in ["0", "0K", "00"] {
            assert_eq!(Budget::parse(zero), Ok(default));
        }
        for gpus in [1, 2, 8, 64] {
            assert_eq!(default.shape(gpus), (4 << 20, 16 * gpus));
        }
        assert_eq!(default.shape(0), default.shape(1));
    }

    #[test]
    fn a_large_cap_is_no_reason_to_take_more() {
        for large in ["64M", "2G", "17179869183G"] {
            assert_eq!(Budget::parse(large).unwrap().shape(1), (4 << 20, 16), "{large}");
        }
    }

    #[test]
    fn a_small_cap_makes_small_chunks_and_then_gpus_take_turns() {
        let shape = |text, gpus| Budget::parse(text).unwrap().shape(gpus);
        assert_eq!(shape("64M", 8), (2 << 20, 32));
        assert_eq!(shape("5M", 1), (1 << 20, 5));
        assert_eq!(shape("1M", 8), (32 << 10, 32));
        assert_eq!(shape("128K", 8), (PAGE, 32));
        assert_eq!(shape("20K", 8), (PAGE, 5));
        assert_eq!(shape("8K", 64), (PAGE, 2));
        assert_eq!(shape("12287", 1), (PAGE, 2));
    }

    #[test]
    fn a_value_that_is_wrong_is_named_with_what_is_allowed() {
        for wrong in ["", "much", "-1", "64 M", "0x1000", "99999999999G", "1", "4K", "8191"] {
            let message = Budget::parse(wrong).unwrap_err().to_string();
            assert!(message.starts_with(&format!("KFD_MAX_BUFFER_SIZE={wrong:?}: ")), "{message}");
            assert!(message.contains("from 8K (two pages)"), "{message}");
        }
        let error = Budget::from_value(Some(OsStr::from_bytes(b"64\xff"))).unwrap_err();
        assert_eq!(error.reason, BudgetReason::NotText);
        assert_eq!(Budget::from_value(Some(OsStr::new("64M"))), Budget::parse("64M"));
    }

    fn check(cap: usize, gpus: usize) {
        let (chunk_bytes, chunks) = Budget::parse(&cap.to_string()).unwrap().shape(gpus);
        let bytes = chunk_bytes * chunks;
        let case = format!("cap {cap}, {gpus} GPUs: {chunks} chunks of {chunk_bytes}");
        assert!(bytes <= cap && bytes <= (64 << 20) * gpus, "{case}");
        assert!(chunk_bytes.is_power_of_two(), "{case}");
        assert!((PAGE..=4 << 20).contains(&chunk_bytes), "{case}");
        assert!(chunks >= 2, "{case}");
        // Four for each GPU wherever a smaller chunk could give them.
        assert!(chunks >= 4 * gpus || chunk_bytes == PAGE, "{case}");
        // Chunks are no smaller than that takes, and nothing is left that would make another one.
        assert!(chunk_bytes == 4 << 20 || cap / (2 * chunk_bytes) < 4 * gpus, "{case}");
        assert!(cap.min((64 << 20) * gpus) - bytes < chunk_bytes, "{case}");
    }

    #[test]
    fn every_cap_around_a_power_of_two_and_every_number_of_gpus() {
        for shift in 13..=31 {
            for cap in [(1 << shift) - 1, 1 << shift, (1 << shift) + 1, 3 << (shift - 1)] {
                (1..=64).filter(|_| cap >= 2 * PAGE).for_each(|gpus| check(cap, gpus));
            }
        }
    }

    proptest! {
        #[test]
        fn any_cap_and_any_number_of_gpus(shift in 13..31, part in 0..1usize << 31, gpus in 1..=64usize) {
            let low = 1usize << shift;
            check(low + part % low, gpus);
        }
    }

    #[test]
    fn little_to_copy_takes_a_small_ring() {
        let shape = |gpus, bytes| {
            let ring = Budget::default().ring_for(gpus, bytes).unwrap();
            (ring.chunk_bytes(), ring.chunks())
        };
        assert_eq!([shape(8, 0), shape(1, 0), shape(0, 0)], [(PAGE, 8), (PAGE, 2), (PAGE, 2)]);
        assert_eq!([shape(1, 60 << 10), shape(8, 1 << 20)], [(64 << 10, 2), (1 << 20, 9)]);
        assert_eq!([shape(1, 9 << 20), shape(8, (33 << 20) + 1)], [(4 << 20, 3), (4 << 20, 16)]);
        assert_eq!([shape(1, 64 << 20), shape(8, 2 << 30)], [(4 << 20, 4), (4 << 20, 64)]);
        assert_eq!([shape(1, 1 << 40), shape(2, u64::MAX)], [(4 << 20, 16), (4 << 20, 32)]);
        let small = Budget::parse("8K").unwrap().ring_for(64, 1 << 40).unwrap();
        assert_eq!((small.chunk_bytes(), small.chunks()), (PAGE, 2));
    }

    #[test]
    fn the_ring_has_the_shape() {
        let ring = Budget::parse("100K").unwrap().ring(2).unwrap();
        assert_eq!((ring.chunk_bytes(), ring.chunks()), (8 << 10, 12));
    }
}
