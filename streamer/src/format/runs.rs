//! Which bytes of a file have come, and their checksum, when they come in any order.

use std::collections::BTreeMap;

use vramstream::stage::Crc32;

/// Runs of bytes by where they start. Runs that touch are merged, so a file whose pieces come in
/// order is one run, and one whose pieces come from several shards is a few.
#[derive(Debug, Default)]
pub struct Runs(BTreeMap<u64, Crc32>);

/// Bytes that came twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// First byte of the piece that came second.
    pub from: u64,
    /// First byte after it.
    pub to: u64,
}

impl Runs {
    /// Adds a piece that starts at `offset`. A piece of no bytes adds nothing.
    pub fn add(&mut self, offset: u64, mut run: Crc32) -> Result<(), Overlap> {
        if run.len == 0 {
            return Ok(());
        }
        let (mut start, end) = (offset, offset + run.len);
        let before = self.0.range(..offset).next_back().map(|(&at, &run)| (at, run));
        let after = self.0.range(offset..).next().map(|(&at, &run)| (at, run));
        if before.is_some_and(|(at, run)| at + run.len > offset)
            || after.is_some_and(|(at, _)| at < end)
        {
            return Err(Overlap { from: offset, to: end });
        }
        if let Some((at, previous)) = before.filter(|(at, run)| at + run.len == offset) {
            run = previous.followed_by(run);
            start = at;
        }
        if let Some((at, next)) = after.filter(|(at, _)| *at == end) {
            self.0.remove(&at);
            run = run.followed_by(next);
        }
        self.0.insert(start, run);
        Ok(())
    }

    /// The one run from byte 0 that there is if nothing is missing in the middle; otherwise how many
    /// bytes there are before the first gap.
    pub fn whole(&self) -> Result<Crc32, u64> {
        let mut runs = self.0.iter();
        match (runs.next(), runs.next()) {
            (None, _) => Ok(Crc32::default()),
            (Some((0, &run)), None) => Ok(run),
            (Some((0, run)), Some(_)) => Err(run.len),
            (Some(_), _) => Err(0),
        }
    }

    /// How many bytes have come, gaps or not.
    pub fn bytes(&self) -> u64 {
        self.0.values().map(|run| run.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Pieces in any order give the checksum of the whole; any piece twice is noticed.
        #[test]
        fn any_order(
            bytes in prop::collection::vec(any::<u8>(), 1..500),
            piece in 1usize..40,
            keys in prop::collection::vec(any::<u32>(), 500),
        ) {
            let mut pieces: Vec<(usize, &[u8])> =
                bytes.chunks(piece).enumerate().map(|(i, b)| (i * piece, b)).collect();
            pieces.sort_by_key(|(at, _)| keys[*at]);
            let mut runs = Runs::default();
            for (at, bytes) in &pieces {
                runs.add(*at as u64, Crc32::of(bytes)).unwrap();
            }
            prop_assert_eq!(runs.whole(), Ok(Crc32::of(&bytes)));
            prop_assert_eq!(runs.bytes(), bytes.len() as u64);
            for (at, bytes) in &pieces {
                prop_assert!(runs.add(*at as u64, Crc32::of(bytes)).is_err());
            }
        }
    }

    #[test]
    fn gaps_are_not_whole() {
        let mut runs = Runs::default();
        assert_eq!(runs.whole(), Ok(Crc32::default()));
        runs.add(4, Crc32::of(b"efgh")).unwrap();
        assert_eq!(runs.whole(), Err(0));
        runs.add(0, Crc32::of(b"abc")).unwrap();
        assert_eq!(runs.whole(), Err(3));
        runs.add(3, Crc32::of(b"d")).unwrap();
        assert_eq!(runs.whole(), Ok(Crc32::of(b"abcdefgh")));
    }
}
