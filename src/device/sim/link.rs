//! The link of a GPU, which its engines share: how fast bytes go through it.
//!
//! Time is reserved, not measured: each piece of a copy gets the next free stretch of the link, and
//! its engine sleeps until that is over. That a sleep lasts a little too long costs nothing: the
//! next piece begins where the stretch ended, not when the engine woke up.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::machine::Speed;

/// How far an engine may be behind its reservations, and catch up: no further, where this machine
/// is slower than the link that it simulates.
const MOST_BEHIND: Duration = Duration::from_millis(20);

/// A link.
#[derive(Debug)]
pub(super) struct Link {
    speed: Speed,
    next_free: Mutex<Instant>,
}

impl Link {
    pub(super) fn new(speed: Speed) -> Self {
        Link { speed, next_free: Mutex::new(Instant::now()) }
    }

    /// From a submission to its first byte.
    pub(super) fn latency(&self) -> Duration {
        self.speed.latency
    }

    /// Whether it is as fast as this machine can.
    pub(super) fn is_unlimited(&self) -> bool {
        self.speed.bytes_per_second.is_none()
    }

    /// When `bytes` that could go from `ready` on will have gone through.
    pub(super) fn reserve(&self, ready: Instant, bytes: u64) -> Instant {
        let now = Instant::now();
        let ready = ready.max(now.checked_sub(MOST_BEHIND).unwrap_or(now));
        let Some(rate) = self.speed.bytes_per_second.filter(|&rate| rate > 0) else {
            return ready;
        };
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let stretch = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let mut next_free = self.next_free.lock().unwrap_or_else(PoisonError::into_inner);
        *next_free = ready.max(*next_free).checked_add(stretch).unwrap_or(ready);
        *next_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_one_another_without_a_gap() {
        let link = Link::new(Speed { bytes_per_second: Some(1_000_000), latency: Duration::ZERO });
        let start = Instant::now() + Duration::from_secs(5);
        let first = link.reserve(start, 1000);
        assert_eq!(first, start + Duration::from_millis(1));
        // Another engine that was ready at the same time has to wait for its turn.
        assert_eq!(link.reserve(start, 2000), start + Duration::from_millis(3));
        // A piece that comes later than the link is free begins then.
        let later = start + Duration::from_millis(10);
        assert_eq!(link.reserve(later, 1000), later + Duration::from_millis(1));
    }
}
