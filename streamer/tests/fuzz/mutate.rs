//! Makes cases: picks an input that is known to be good, and alters it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A xorshift generator: any case can be made again from its number.
pub(crate) struct Numbers(u64);

impl Numbers {
    fn of(seed: u64, case: u64) -> Self {
        let mut numbers = Numbers((seed ^ case.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1);
        (0..4).for_each(|_| _ = numbers.next());
        numbers
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`, or 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 8) as usize % limit.max(1)
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a number")),
        Err(_) => otherwise,
    }
}

/// Runs the cases of a target: `seal` makes lengths and checksums right again, `run` must not panic.
pub(crate) fn fuzz(
    corpus: &[Vec<u8>],
    seal: impl Fn(&mut Vec<u8>),
    mut run: impl FnMut(&[u8], &mut Numbers),
) {
    let cases = setting("VRAMSTREAM_FUZZ_CASES", 3000);
    let seed = setting("VRAMSTREAM_FUZZ_SEED", 1);
    for case in 0..cases {
        let mut numbers = Numbers::of(seed, case);
        let mut bytes = corpus[numbers.below(corpus.len())].clone();
        for _ in 0..=numbers.below(4) {
            alter(&mut bytes, corpus, &mut numbers);
        }
        if numbers.below(4) > 0 {
            seal(&mut bytes);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&bytes, &mut numbers)));
        if let Err(panic) = outcome {
            eprintln!("VRAMSTREAM_FUZZ_SEED={seed}, case {case}: {bytes:02x?}");
            resume_unwind(panic);
        }
    }
}

/// Numbers around which things go wrong.
const EDGES: [u64; 16] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x3fff,
    0x4000,
    0xffff,
    10 << 10,
    1 << 18,
    1 << 24,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 48,
    u64::MAX,
];

fn alter(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], numbers: &mut Numbers) {
    let at = numbers.below(bytes.len());
    let end = (at + 1 + numbers.below(40)).min(bytes.len());
    let put = |bytes: &mut Vec<u8>, with: &[u8]| {
        for (byte, with) in bytes.iter_mut().skip(at).zip(with) {
            *byte = *with;
        }
    };
    match numbers.below(9) {
        0 | 1 => {
            let bit = 1 << numbers.below(8);
            bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= bit);
        }
        2 => put(bytes, &numbers.next().to_le_bytes()[..1]),
        3 => put(bytes, &EDGES[numbers.below(16)].to_le_bytes()[..4]),
        4 => put(bytes, &EDGES[numbers.below(16)].to_le_bytes()),
        5 => bytes.truncate(at),
        6 => _ = bytes.drain(at..end),
        7 => {
            let again = bytes[at..end].to_vec();
            let to = numbers.below(bytes.len());
            bytes.splice(to..to, again);
        }
        // The rest of another one.
        _ => {
            let other = &corpus[numbers.below(corpus.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[numbers.below(other.len())..]);
        }
    }
}
