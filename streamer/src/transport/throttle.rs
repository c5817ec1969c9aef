//! A destination with a limit on how many bytes go to it in a second, all shards together: a link
//! that is to be shared, or one to be measured as if it were slower.
//!
//! Bytes pass when the time has come at which a link of that rate would have taken them, and their
//! places in that time are reserved in the order of asking. So the shards share the rate, and how
//! long a thread slept is made up for: over time the rate is met exactly.

use std::{
    num::NonZeroU64,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{Destination, ShardWriter};
use crate::{
    error::{Error, Result},
    format::ImageId,
    payload::Payload,
};

/// How far behind the link may fall and catch up again: threads wake late, and writing takes time.
const LAG: Duration = Duration::from_millis(20);
/// The longest sleep: a time further away than this cannot be told from one that never comes.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A rate. Clones share it.
#[derive(Debug, Clone)]
pub struct Rate(Arc<Mutex<Link>>);

/// The link that is imitated: it has been busy since a time, with so many bytes.
#[derive(Debug)]
struct Link {
    bytes_per_second: NonZeroU64,
    busy_since: Option<Instant>,
    bytes: u64,
}

impl Rate {
    /// So many bytes in a second.
    pub fn new(bytes_per_second: NonZeroU64) -> Self {
        Rate(Arc::new(Mutex::new(Link { bytes_per_second, busy_since: None, bytes: 0 })))
    }

    /// Waits until so many bytes have had their time.
    pub fn pass(&self, bytes: u64) {
        let now = Instant::now();
        let mut link = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = link.reserve(now, bytes);
        drop(link);
        std::thread::sleep(free.saturating_duration_since(now));
    }
}

impl Link {
    /// Puts bytes on the link: when it has taken them.
    fn reserve(&mut self, now: Instant, bytes: u64) -> Instant {
        let free = self.busy_since.map(|since| self.free(since, now));
        let since = match self.busy_since {
            Some(since) if free.is_some_and(|free| free + LAG >= now) => since,
            // It has had nothing to do.
            _ => {
                self.bytes = 0;
                now
            }
        };
        self.busy_since = Some(since);
        self.bytes = self.bytes.saturating_add(bytes);
        self.free(since, now)
    }

    /// When it has taken all bytes. Counted from the beginning, so that rounding does not add up.
    fn free(&self, since: Instant, now: Instant) -> Instant {
        let rate = self.bytes_per_second.get();
        let rest = u128::from(self.bytes % rate) * 1_000_000_000 / u128::from(rate);
        let taken = Duration::from_secs(self.bytes / rate)
            + Duration::from_nanos(u64::try_from(rest).unwrap_or(0));
        since.checked_add(taken).unwrap_or(now + DAY)
    }
}

/// Another destination behind a [`Rate`].
pub struct ThrottledDestination {
    inner: Box<dyn Destination>,
    rate: Rate,
}

impl ThrottledDestination {
    /// `inner`, to which bytes go no faster than at this rate.
    pub fn new(inner: Box<dyn Destination>, rate: Rate) -> Self {
        ThrottledDestination { inner, rate }
    }
}

impl Destination for ThrottledDestination {
    fn shards(&self) -> u32 {
        self.inner.shards()
    }

    fn open(&mut self, image: ImageId) -> Result<Vec<Box<dyn ShardWriter>>> {
        let throttled = |inner| Box::new(ThrottledWriter { inner, rate: self.rate.clone() }) as _;
        Ok(self.inner.open(image)?.into_iter().map(throttled).collect())
    }

    fn chunk_bytes(&self) -> usize {
        self.inner.chunk_bytes()
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn health(&mut self) -> Result<()> {
        self.inner.health()
    }

    fn commit(&mut self, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.inner.commit(check)
    }

    fn abort(&mut self, reason: &str) {
        self.inner.abort(reason);
    }

    fn explain(&mut self, error: Error) -> Error {
        self.inner.explain(error)
    }
}

struct ThrottledWriter {
    inner: Box<dyn ShardWriter>,
    rate: Rate,
}

impl ShardWriter for ThrottledWriter {
    fn describe(&self) -> &str {
        self.inner.describe()
    }

    fn payload_alignment(&self) -> Option<u32> {
        self.inner.payload_alignment()
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.rate.pass(bytes.len() as u64);
        self.inner.write(bytes)
    }

    fn write_chunk(&mut self, head: &[u8], payload: Payload) -> Result<()> {
        self.rate.pass((head.len() + payload.len) as u64);
        self.inner.write_chunk(head, payload)
    }

    fn finish(&mut self) -> Result<()> {
        self.inner.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::transport::null::NullDestination;

    fn link(bytes_per_second: u64) -> Link {
        let bytes_per_second = NonZeroU64::new(bytes_per_second).unwrap();
        Link { bytes_per_second, busy_since: None, bytes: 0 }
    }

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn places_are_taken_one_after_the_other() {
        let mut link = link(1000);
        let start = Instant::now();
        // Three shards ask at once, and one a little later.
        assert_eq!(link.reserve(start, 100), start + 100 * MILLI);
        assert_eq!(link.reserve(start, 50), start + 150 * MILLI);
        assert_eq!(link.reserve(start, 1), start + 151 * MILLI);
        assert_eq!(link.reserve(start + 120 * MILLI, 9), start + 160 * MILLI);
        assert_eq!(link.reserve(start + 120 * MILLI, 0), start + 160 * MILLI);
    }

    #[test]
    fn who_wakes_late_loses_nothing_and_who_was_idle_gains_nothing() {
        let mut link = link(1000);
        let start = Instant::now();
        assert_eq!(link.reserve(start, 100), start + 100 * MILLI);
        // It slept 15 ms too long.
        assert_eq!(link.reserve(start + 115 * MILLI, 100), start + 200 * MILLI);
        // It did something else for 10 s.
        let later = start + Duration::from_secs(10);
        assert_eq!(link.reserve(later, 100), later + 100 * MILLI);
    }

    #[test]
    fn a_time_that_never_comes_is_no_panic() {
        let start = Instant::now();
        let mut link = link(1);
        assert_eq!(link.reserve(start, u64::MAX), start + DAY);
        assert_eq!(link.reserve(start, u64::MAX), start + DAY);
        assert!(self::link(u64::MAX).reserve(start, u64::MAX) <= start + DAY);
    }

    #[test]
    fn every_byte_of_every_shard_counts() {
        let rate = Rate::new(NonZeroU64::new(40_000).unwrap());
        let mut destination = ThrottledDestination::new(Box::new(NullDestination::new(2)), rate);
        let mut shards = destination.open(ImageId::random().unwrap()).unwrap();
        let ring = vramstream::ring::Ring::new(vramstream::ring::page_bytes(), 1).unwrap();
        let payload = Payload { chunk: ring.try_take().unwrap(), len: 1000 };
        let start = Instant::now();
        let [first, second] = &mut shards[..] else { panic!("two shards") };
        std::thread::scope(|scope| {
            scope.spawn(|| first.write(&[1; 2000]).unwrap());
            second.write_chunk(&[2; 1000], payload).unwrap();
        });
        // However busy the machine is, it never takes less.
        assert!(start.elapsed() >= 100 * MILLI);
    }

    proptest! {
        /// However late a writer comes back, within the lag: over time it gets the rate, exactly.
        #[test]
        fn the_rate_is_met(
            rate in 1u64..1 << 40,
            writes in prop::collection::vec((0u64..1 << 22, 0u64..20_000_000), 1..100),
        ) {
            let mut link = link(rate);
            let start = Instant::now();
            let (mut now, mut total) = (start, 0);
            for (bytes, late) in writes {
                now = link.reserve(now, bytes);
                total += bytes;
                let exact = Duration::from_nanos(
                    u64::try_from(u128::from(total) * 1_000_000_000 / u128::from(rate)).unwrap(),
                );
                prop_assert_eq!(now, start + exact);
                now += Duration::from_nanos(late);
            }
        }
    }
}
