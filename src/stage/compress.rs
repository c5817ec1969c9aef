//! LZ4 blocks, and the decision whether a chunk is worth it.

use std::sync::atomic::{AtomicU32, Ordering};

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

/// What the user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Store every chunk as it is.
    None,
    /// Compress every chunk; store raw only what would not become smaller.
    Lz4,
    /// Compress what shrinks by at least 5 %, and stop trying for a while on a file that does not.
    Auto,
}

/// A chunk that shrinks by less than this share is stored raw under [`Compression::Auto`]: reading
/// it back costs a decompression that so little saved does not pay for.
const WORTH_PERCENT: usize = 5;

/// The most chunks of a file that are passed over after trying in vain. The number doubles at each
/// failure up to this, so data that never compresses costs one try in 129.
const MOST_PASSED_OVER: u32 = 128;

/// The state of one file under [`Compression::Auto`]: how many chunks to pass over before the next
/// try. Workers share it without a lock; a race costs a try more or less, never a byte.
#[derive(Debug, Default)]
pub struct AutoCompress {
    passed_over: AtomicU32,
    backoff: AtomicU32,
}

impl AutoCompress {
    /// Whether the next chunk is to be tried at all; asked once for each chunk, before
    /// [`compress`](Self::compress).
    pub fn wants_try(&self, mode: Compression) -> bool {
        match mode {
            Compression::None => false,
            Compression::Lz4 => true,
            Compression::Auto => !self.pass_over(),
        }
    }

    /// Compresses `raw` into `out` if it is worth it: the stored length, or `None` where the chunk
    /// is to be stored raw. `out` has at least [`lz4_bound`] bytes; a smaller one is never filled.
    pub fn compress(
        &self,
        mode: Compression,
        raw: &[u8],
        out: &mut [u8],
        table: &mut Lz4Table,
    ) -> Option<usize> {
        match mode {
            Compression::None => None,
            Compression::Lz4 => table.compress(raw, out).filter(|&len| len < raw.len()),
            Compression::Auto => {
                let limit = raw.len() - raw.len() * WORTH_PERCENT / 100;
                let stored =
                    table.compress(raw, out).filter(|&len| len <= limit && len < raw.len());
                self.learn(stored.is_some());
                stored
            }
        }
    }

    fn pass_over(&self) -> bool {
        self.passed_over
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok()
    }

    fn learn(&self, worth: bool) {
        if worth {
            self.backoff.store(0, Ordering::Relaxed);
        } else {
            let next = (self.backoff.load(Ordering::Relaxed) * 2).clamp(1, MOST_PASSED_OVER);
            self.backoff.store(next, Ordering::Relaxed);
            self.passed_over.store(next, Ordering::Relaxed);
        }
    }
}

/// What LZ4 notes while it compresses. Made once for each thread, so that a chunk costs no
/// allocation.
#[derive(Default)]
pub struct Lz4Table(CompressTable);

impl Lz4Table {
    fn compress(&mut self, raw: &[u8], out: &mut [u8]) -> Option<usize> {
        compress_into_with_table(raw, out, &mut self.0).ok()
    }
}

/// How much room LZ4 wants for the block of `raw_len` bytes: the worst case, though what is not
/// smaller than the raw bytes is thrown away. With less it refuses at once, whatever the data.
pub fn lz4_bound(raw_len: usize) -> usize {
    get_maximum_output_size(raw_len)
}

/// Decompresses one LZ4 block that must give exactly `out.len()` bytes. `false` where the block is
/// malformed or gives another length.
pub fn decompress_lz4(stored: &[u8], out: &mut [u8]) -> bool {
    lz4_flex::block::decompress_into(stored, out).is_ok_and(|len| len == out.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn random(len: usize) -> Vec<u8> {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x.to_le_bytes()[0]
            })
            .collect()
    }

    #[test]
    fn auto_stops_trying_and_tries_again() {
        let auto = AutoCompress::default();
        let noise = random(64 << 10);
        let text = b"all work and no play ".repeat(3000);
        let mut out = vec![0; 80 << 10];
        let tries = (0..330).filter(|_| auto.wants_try(Compression::Auto));
        let tries = tries
            .map(|_| auto.compress(Compression::Auto, &noise, &mut out, &mut Lz4Table::default()));
        assert!((7..12).contains(&tries.inspect(|stored| assert_eq!(*stored, None)).count()));
        // The next try is far away now, but it comes, and then all are tried again.
        let tries = (0..3 * MOST_PASSED_OVER).filter(|_| auto.wants_try(Compression::Auto));
        let worth = tries.map(|_| {
            auto.compress(Compression::Auto, &text, &mut out, &mut Lz4Table::default()).is_some()
        });
        assert!(worth.filter(|worth| *worth).count() > MOST_PASSED_OVER as usize);
    }

    #[test]
    fn noise_is_stored_raw_and_text_is_not() {
        let mut out = vec![0; 80 << 10];
        let noise = random(64 << 10);
        let text = b"all work and no play ".repeat(3000);
        for mode in [Compression::Lz4, Compression::Auto] {
            assert_eq!(
                AutoCompress::default().compress(mode, &noise, &mut out, &mut Lz4Table::default()),
                None
            );
            let len = AutoCompress::default()
                .compress(mode, &text, &mut out, &mut Lz4Table::default())
                .unwrap();
            let mut back = vec![0; text.len()];
            assert!(decompress_lz4(&out[..len], &mut back));
            assert_eq!(back, text);
            assert!(!decompress_lz4(&out[..len], &mut vec![0; text.len() + 1]));
            assert!(!decompress_lz4(&out[..len], &mut vec![0; text.len() - 1]));
        }
        assert_eq!(
            AutoCompress::default().compress(
                Compression::None,
                &text,
                &mut out,
                &mut Lz4Table::default()
            ),
            None
        );
    }

    #[test]
    fn the_bound_is_enough_and_less_is_not() {
        let text = b"all work and no play ".repeat(3000);
        let mut out = vec![0; lz4_bound(text.len())];
        let auto = AutoCompress::default();
        let table = &mut Lz4Table::default();
        assert!(auto.compress(Compression::Lz4, &text, &mut out, table).is_some());
        let short = &mut out[..text.len()];
        assert_eq!(auto.compress(Compression::Lz4, &text, short, table), None);
    }

    proptest! {
        #[test]
        fn round_trip(raw in prop::collection::vec(0u8..4, 0..5000)) {
            let mut out = vec![0; lz4_bound(raw.len())];
            if let Some(len) = AutoCompress::default().compress(Compression::Lz4, &raw, &mut out, &mut Lz4Table::default()) {
                let mut back = vec![0; raw.len()];
                prop_assert!(decompress_lz4(&out[..len], &mut back));
                prop_assert_eq!(back, raw);
            }
        }

        #[test]
        fn hostile_blocks_are_refused_not_believed(stored: Vec<u8>, len in 0usize..5000) {
            let mut out = vec![0; len];
            let _ = decompress_lz4(&stored, &mut out);
        }
    }
}
