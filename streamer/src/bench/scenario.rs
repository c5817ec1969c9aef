//! What is moved where: from words on the command line to the memory of a simulated application.

use std::{fmt, num::NonZeroU64, path::PathBuf, str::FromStr, time::Duration};

use vramstream::{
    device::sim::{BoPlan, Fill, Machine, Profile, Speed},
    ring::{Budget, ByteSize, Ring, page_bytes},
    stage::Compression,
};

use crate::error::{Error, Result};

/// The most BOs of a GPU.
const MOST_BOS: u64 = 1 << 20;
/// The largest ring.
const MOST_RING_BYTES: u64 = 16 << 30;
/// What a runtime needs on each GPU besides the memory of the plan.
const SLACK: u64 = 256 << 20;
const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// GPUs of the process.
    pub gpus: u32,
    /// Memory on each of them.
    pub vram: u64,
    /// How it is divided into BOs.
    pub bos: BoSizes,
    /// What is in it.
    pub contents: Contents,
    /// Which GPUs.
    pub profile: Profile,
    /// How fast they copy.
    pub speed: Speed,
    /// Where the image goes, or comes from.
    pub sink: Sink,
    /// How many bytes in a second it takes.
    pub sink_rate: Option<NonZeroU64>,
    /// Shards of the image.
    pub shards: u32,
    /// Whether files are written past the page cache.
    pub direct: bool,
    /// Bytes of the ring; without it what [`Budget`] says.
    pub ring: Option<u64>,
    /// What is tried on chunks.
    pub compression: Compression,
    /// Which way.
    pub direction: Direction,
    /// Whether what was restored is compared with what was dumped.
    pub verify: bool,
    /// How often.
    pub runs: u32,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            gpus: 1,
            vram: 1 << 30,
            bos: BoSizes::Mixed,
            contents: Contents::Random,
            profile: Profile::gfx90a(),
            speed: Speed::default(),
            sink: Sink::Null,
            sink_rate: None,
            shards: 2,
            direct: true,
            ring: None,
            compression: Compression::None,
            direction: Direction::Dump,
            verify: true,
            runs: 3,
        }
    }
}

/// How large BOs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoSizes {
    /// All of one size, but the last.
    All(u64),
    /// As in a process that trains a model.
    Mixed,
}

impl FromStr for BoSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "mixed" {
            return Ok(BoSizes::Mixed);
        }
        match text.parse() {
            Ok(ByteSize(bytes @ 1..)) if bytes % PAGE == 0 => Ok(BoSizes::All(bytes)),
            Ok(_) => Err("a BO has a number of whole pages: give a multiple of 4K".into()),
            Err(_) => Err(format!("{text:?} is neither a size nor mixed")),
        }
    }
}

impl fmt::Display for BoSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoSizes::All(bytes) => ByteSize(*bytes).fmt(f),
            BoSizes::Mixed => f.write_str("mixed"),
        }
    }
}

/// What is in the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Bytes that nothing makes smaller.
    Random,
    /// Weights of a model.
    Bf16,
    /// Nothing.
    Zeros,
    /// Random bytes and zeros.
    HalfZeros,
}

impl Contents {
    pub(super) fn fill(self, bo: u64) -> Fill {
        match self {
            Contents::Random => Fill::Random(bo),
            Contents::Bf16 => Fill::Bf16(bo),
            Contents::Zeros => Fill::Zeros,
            Contents::HalfZeros => Fill::HalfZeros(bo),
        }
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Contents::Random => "random",
            Contents::Bf16 => "bf16",
            Contents::Zeros => "zeros",
            Contents::HalfZeros => "half-zeros",
        })
    }
}

/// Where an image goes, or comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sink {
    /// Nowhere; a restore reads from memory.
    Null,
    /// Files in a new directory in this one, which is removed afterwards.
    Files(PathBuf),
    /// Pipes.
    Pipe,
    /// TCP, on this machine.
    Tcp,
}

impl FromStr for Sink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("file:")) {
            (_, Some(dir)) if !dir.is_empty() => Ok(Sink::Files(dir.into())),
            ("null", _) => Ok(Sink::Null),
            ("pipe", _) => Ok(Sink::Pipe),
            ("tcp", _) => Ok(Sink::Tcp),
            _ => Err(format!("{text:?} is none of null, file:DIR, pipe and tcp")),
        }
    }
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sink::Null => f.write_str("null"),
            Sink::Files(dir) => write!(f, "file:{}", dir.display()),
            Sink::Pipe => f.write_str("pipe"),
            Sink::Tcp => f.write_str("tcp"),
        }
    }
}

/// Which way contents go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From GPUs to the sink.
    Dump,
    /// From the sink to GPUs.
    Restore,
    /// From GPUs through the sink to other GPUs.
    Both,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Dump => "dump",
            Direction::Restore => "restore",
            Direction::Both => "both",
        })
    }
}

impl Scenario {
    /// Refuses what makes no sense, in words for whoever wrote it.
    pub fn check(&self) -> Result<(), String> {
        if self.direction == Direction::Both && self.sink == Sink::Null {
            return Err("--sink null keeps nothing that could be restored: \
                        choose another for --direction both"
                .into());
        }
        if self.vram == 0 || !self.vram.is_multiple_of(PAGE) {
            return Err("--vram is a number of whole pages: give a multiple of 4K".into());
        }
        if let BoSizes::All(size) = self.bos
            && self.vram / size > MOST_BOS
        {
            return Err(format!("--bos {}: more than {MOST_BOS} BOs on a GPU", self.bos));
        }
        if let Some(ring) = self.ring {
            let least = 2 * page_bytes() as u64;
            if ring < least || ring > MOST_RING_BYTES {
                return Err(format!(
                    "--ring is from {} to {}",
                    ByteSize(least),
                    ByteSize(MOST_RING_BYTES)
                ));
            }
        }
        Ok(())
    }

    /// Whether this machine can hold the simulated memory.
    pub(super) fn check_memory(&self) -> Result<()> {
        let sides: u64 = if self.direction == Direction::Dump { 1 } else { 2 };
        let image = u64::from(self.direction == Direction::Restore && self.sink.is_in_memory());
        let bytes = match self.contents {
            Contents::Zeros => 0,
            _ => u64::from(self.gpus).saturating_mul(self.vram).saturating_mul(sides + image),
        };
        let have = crate::limits::available_bytes();
        if bytes > have {
            return Err(Error::Usage(format!(
                "the simulated GPUs need {} MiB of this machine's memory, and {} are available: \
                 choose less --vram or fewer --gpus",
                bytes >> 20,
                have >> 20
            )));
        }
        Ok(())
    }

    /// The machine.
    pub(super) fn machine(&self) -> Machine {
        let vram = self.vram.saturating_add(SLACK);
        Machine::new(&self.profile, self.gpus).vram_bytes(vram).speed(self.speed)
    }

    /// The application's memory, all of it, on every GPU.
    pub(super) fn plan(&self) -> Vec<BoPlan> {
        let gpus = usize::try_from(self.gpus).unwrap_or(1);
        let mut plan = Vec::new();
        for gpu in 0..gpus {
            let sizes = match self.bos {
                BoSizes::All(size) => uniform(self.vram, size),
                BoSizes::Mixed => mixed(self.vram, gpu as u64),
            };
            plan.extend(sizes.into_iter().map(|size| BoPlan::vram(gpu, size)));
        }
        plan
    }

    /// The memory that everything goes through.
    pub(super) fn make_ring(&self) -> Result<Ring> {
        let usage = |error: &dyn fmt::Display| Error::Usage(error.to_string());
        let gpus = usize::try_from(self.gpus).unwrap_or(1);
        let ring = match self.ring {
            None => Budget::from_env().map_err(|error| usage(&error))?.ring(gpus),
            Some(bytes) => {
                let budget = Budget::parse(&bytes.to_string()).map_err(|error| usage(&error))?;
                let chunk_bytes = budget.shape(gpus).0;
                // A budget stops where more makes nothing faster; this is to be seen here.
                let chunks = usize::try_from(bytes).unwrap_or(usize::MAX) / chunk_bytes;
                Ring::new(chunk_bytes, chunks)
            }
        };
        ring.map_err(|error| usage(&error))
    }

    /// One line for people.
    pub(super) fn describe(&self) -> String {
        let mut line = format!(
            "{}: {} x {} of {}, BOs {}, sink {}",
            self.direction,
            self.gpus,
            ByteSize(self.vram),
            self.contents,
            self.bos,
            self.sink
        );
        if let Some(rate) = self.sink_rate {
            line += &format!(" at {} MB/s", rate.get() / 1_000_000);
        }
        if let Some(rate) = self.speed.bytes_per_second {
            line += &format!(", SDMA at {} MB/s", rate / 1_000_000);
        }
        if self.speed.latency > Duration::ZERO {
            line += &format!(", latency {} us", self.speed.latency.as_micros());
        }
        if self.compression != Compression::None {
            line += &format!(", {:?}", self.compression).to_lowercase();
        }
        line
    }
}

impl Sink {
    fn is_in_memory(&self) -> bool {
        !matches!(self, Sink::Files(_))
    }
}

fn uniform(vram: u64, size: u64) -> Vec<u64> {
    let whole = vram / size;
    let rest = vram % size;
    (0..whole).map(|_| size).chain((rest > 0).then_some(rest)).collect()
}

/// What the allocator of PyTorch leaves: a twentieth in BOs of its runtime, small and many; a third
/// in segments of 2 to 20 MiB; the rest in a few that are as large as the tensors in them.
fn mixed(vram: u64, seed: u64) -> Vec<u64> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (seed << 32));
    let mut sizes = Vec::new();
    let mut left = vram;
    let mut add = |size: u64| {
        let size = size.clamp(PAGE, left.max(PAGE)).min(left) / PAGE * PAGE;
        left -= size;
        if size > 0 {
            sizes.push(size);
        }
        size
    };
    let mut share = vram / 20;
    while share > 0 {
        // 4 KiB to 512 KiB, each power of two as often as the others.
        let size = (PAGE << random.below(8)).min(share.next_multiple_of(PAGE));
        share = share.saturating_sub(add(size).max(PAGE));
    }
    share = vram / 3;
    while share > 0 {
        let size = (2 * MIB * (1 + random.below(10))).min(share.next_multiple_of(PAGE));
        share = share.saturating_sub(add(size).max(PAGE));
    }
    for part in [2, 2, 3, 2] {
        add(vram.saturating_sub(vram / 20 + vram / 3) / part / 2);
    }
    add(u64::MAX);
    // Large and small are allocated in turns, not one after the other.
    for at in (1..sizes.len()).rev() {
        let other = usize::try_from(random.below(at as u64 + 1)).unwrap_or(0);
        sizes.swap(at, other);
    }
    sizes
}

/// Xorshift: the same sizes every time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_bos_add_up_to_the_memory() {
        for vram in [4096, 8192, 10 << 20, (100 << 20) + 4096, 1 << 30] {
            for sizes in [uniform(vram, 12 << 10), mixed(vram, 0), mixed(vram, 3)] {
                assert_eq!(sizes.iter().sum::<u64>(), vram);
                assert!(sizes.iter().all(|size| *size > 0 && size % PAGE == 0), "{vram}");
            }
        }
        assert_eq!(uniform(10 << 20, 4 << 20), [4 << 20, 4 << 20, 2 << 20]);
    }

    #[test]
    fn mixed_is_many_small_some_middling_and_a_few_huge() {
        let sizes = mixed(1 << 30, 0);
        let of = |range: std::ops::Range<u64>| {
            let those = sizes.iter().filter(|size| range.contains(size));
            (those.clone().count(), those.sum::<u64>())
        };
        let (small, middling, huge) = (of(0..MIB), of(MIB..21 * MIB), of(21 * MIB..u64::MAX));
        assert!(small.0 > 300 && small.1 < 100 * MIB, "{small:?}");
        assert!(middling.0 > 15 && middling.1 > 250 * MIB, "{middling:?}");
        assert!((2..10).contains(&huge.0) && huge.1 > 500 * MIB, "{huge:?}");
        assert_eq!(mixed(1 << 30, 0), sizes);
        assert_ne!(mixed(1 << 30, 1), sizes);
    }

    #[test]
    fn words_are_understood_as_they_are_written() {
        for word in ["null", "pipe", "tcp", "file:/some/where"] {
            assert_eq!(word.parse::<Sink>().unwrap().to_string(), word);
        }
        for word in ["", "file:", "file", "tcp://x:1", "/tmp"] {
            assert!(word.parse::<Sink>().is_err(), "{word}");
        }
        for word in ["mixed", "4K", "2M", "12K"] {
            assert_eq!(word.parse::<BoSizes>().unwrap().to_string(), word);
        }
        for word in ["", "0", "1", "6000", "huge"] {
            assert!(word.parse::<BoSizes>().is_err(), "{word}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |change: fn(&mut Scenario)| {
            let mut scenario = Scenario::default();
            assert_eq!(scenario.check(), Ok(()));
            change(&mut scenario);
            scenario.check().unwrap_err()
        };
        assert!(refused(|s| s.direction = Direction::Both).contains("--sink null"));
        assert!(refused(|s| s.vram = 0).contains("--vram"));
        assert!(refused(|s| s.vram = 5000).contains("--vram"));
        assert!(refused(|s| s.ring = Some(4096)).contains("--ring"));
        let tiny = refused(|s| (s.vram, s.bos) = (8 << 30, BoSizes::All(4096)));
        assert!(tiny.contains("--bos"), "{tiny}");
    }

    #[test]
    fn a_ring_is_as_large_as_was_asked_for() {
        for (bytes, gpus) in [(64 << 10, 1), (8 << 20, 1), (256 << 20, 1), (64 << 20, 8)] {
            let scenario = Scenario { ring: Some(bytes), gpus, ..Scenario::default() };
            let ring = scenario.make_ring().unwrap();
            assert_eq!((ring.chunk_bytes() * ring.chunks()) as u64, bytes);
            assert!(ring.chunks() >= 4);
        }
    }
}
