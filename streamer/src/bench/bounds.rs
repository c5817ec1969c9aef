//! What could be reached: the parts of a run, each alone.
//!
//! | part | what is run |
//! |---|---|
//! | copies out, copies in | GPU workers whose chunks go nowhere, or come from nowhere |
//! | checksums | zero scan, CRC-32 and what compression there is, on all cores, over the ring |
//! | sink | the destination, fed with chunks that are ready |
//! | source | the origin, read by somebody who keeps nothing |
//!
//! A run in which all parts are at work at the same time cannot be faster than the slowest of them
//! alone, nor use more CPU time than there are cores:
//!
//! ```text
//! bound = min(slowest part alone, cores / sum of the parts' CPU time for a byte)
//! ```
//!
//! Of parts that use all cores when alone, the second is `1/(1/a + 1/b)`. Where images land in files
//! before they are read, dump and restore are one after the other, and so are their bounds.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::Serialize;
use vramstream::{
    gpu::{self, Drain, DumpJob, Restore, RestoreJob, Watch, Write},
    ring::{Chunk, Ring},
    stage::{AutoCompress, Compression, Crc32, Lz4Table, is_zero, lz4_bound},
};

use crossbeam_channel::Sender;

use super::{
    float,
    lab::Lab,
    measure::process_cpu,
    median, places, replay,
    scenario::{Contents, Direction, Sink},
};
use crate::error::{Error, Result};

/// The least time that checksums are computed for.
const CHECKSUMS: Duration = Duration::from_millis(400);

pub(super) const COPIES_OUT: &str = "copies out";
pub(super) const COPIES_IN: &str = "copies in";
pub(super) const CHECKSUM: &str = "checksums";
pub(super) const SINK: &str = "sink";
pub(super) const SOURCE: &str = "source";

/// The parts alone, as often as they were measured.
#[derive(Debug, Clone, Default)]
pub struct Bounds {
    parts: BTreeMap<&'static str, Vec<Alone>>,
}

/// A part alone.
#[derive(Debug, Clone, Copy)]
struct Alone {
    rate: f64,
    cpu_per_byte: f64,
}

/// A part, as it counts in a run.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// Bytes of contents in a second.
    pub rate: f64,
    /// CPU-seconds for each 10^9 bytes of contents.
    pub cpu_per_gb: f64,
}

/// What could be reached.
#[derive(Debug, Clone, Serialize)]
pub struct Bound {
    /// Bytes of contents in a second.
    pub rate: f64,
    /// What it is that cannot be faster.
    pub by: &'static str,
    /// The parts.
    pub parts: Vec<Part>,
}

impl Bounds {
    /// Measures all parts of a scenario once.
    pub(super) fn measure(&mut self, lab: &Lab<'_>) -> Result<()> {
        let direction = lab.scenario.direction;
        if direction != Direction::Restore {
            self.add(COPIES_OUT, || copies_out(lab))?;
        }
        if direction != Direction::Dump {
            self.copies_in(lab)?;
        }
        self.add(CHECKSUM, || checksums(lab))?;
        let keeps = lab.scenario.sink != Sink::Null || lab.scenario.sink_rate.is_some();
        // What is not sent cannot be measured.
        let sends = lab.scenario.contents != Contents::Zeros;
        if keeps && sends && direction != Direction::Restore {
            self.add(SINK, || sink(lab))?;
        }
        if sends && lab.stored()?.is_some() {
            self.add(SOURCE, || source(lab))?;
        }
        Ok(())
    }

    /// With what else was measured.
    pub(super) fn extend(&mut self, more: Bounds) {
        for (part, alone) in more.parts {
            self.parts.entry(part).or_default().extend(alone);
        }
    }

    /// The middle rate of a part.
    pub(super) fn rate(&self, part: &str) -> Option<f64> {
        median(self.parts.get(part)?.iter().map(|alone| alone.rate))
    }

    /// Of a run in which `stored` of each raw byte were stored.
    pub(super) fn bound(&self, direction: Direction, stored: f64, in_turns: bool) -> Bound {
        let parts: Vec<Part> = self
            .parts
            .keys()
            .filter_map(|name| self.part(name, direction, stored, in_turns))
            .collect();
        let of = |names: &[&str]| {
            let those: Vec<_> = parts.iter().filter(|part| names.contains(&part.name)).collect();
            lowest(&those)
        };
        let (rate, by) = if in_turns {
            let (out, into) =
                (of(&[COPIES_OUT, CHECKSUM, SINK]).0, of(&[COPIES_IN, CHECKSUM, SOURCE]).0);
            (1.0 / (1.0 / out + 1.0 / into), "dump and restore in turns")
        } else {
            of(&[COPIES_OUT, COPIES_IN, CHECKSUM, SINK, SOURCE])
        };
        Bound { rate, by, parts }
    }

    fn part(
        &self,
        name: &'static str,
        direction: Direction,
        stored: f64,
        in_turns: bool,
    ) -> Option<Part> {
        let alone = self.parts.get(name)?;
        let mut rate = median(alone.iter().map(|alone| alone.rate))?;
        let mut cpu = median(alone.iter().map(|alone| alone.cpu_per_byte))?;
        match name {
            SINK | SOURCE if stored > 0.0 => (rate, cpu) = (rate / stored, cpu * stored),
            // Once on each side, at the same time.
            CHECKSUM if direction == Direction::Both && !in_turns => {
                (rate, cpu) = (rate / 2.0, cpu * 2.0);
            }
            _ => {}
        }
        Some(Part { name, rate, cpu_per_gb: cpu * 1e9 })
    }

    fn add(&mut self, part: &'static str, work: impl FnOnce() -> Result<(u64, f64)>) -> Result<()> {
        let cpu = process_cpu();
        let (bytes, seconds) = work()?;
        let cpu = process_cpu().saturating_sub(cpu).as_secs_f64();
        self.note(part, bytes, seconds, cpu);
        Ok(())
    }

    fn note(&mut self, part: &'static str, bytes: u64, seconds: f64, cpu: f64) {
        let bytes = float(bytes.max(1));
        let alone = Alone { rate: bytes / seconds.max(1e-9), cpu_per_byte: cpu / bytes };
        self.parts.entry(part).or_default().push(alone);
    }

    /// Making the target is no part of it.
    fn copies_in(&mut self, lab: &Lab<'_>) -> Result<()> {
        let (target, contents) = lab.stopped(|state, _| lab.target(state))?;
        self.add(COPIES_IN, || {
            let began = Instant::now();
            let sizes: Vec<u64> =
                contents.iter().map(|contents| contents.bytes().unwrap_or(0)).collect();
            let jobs = contents.into_iter().map(|contents| RestoreJob { contents }).collect();
            let (restore, senders) = Restore::<Error>::start(
                &target.driver(),
                &lab.ring,
                jobs,
                gpu::Options::default(),
            )?;
            let feeds = senders.into_iter().zip(&sizes).map(|(sender, &bytes)| {
                let (ring, watch) = (lab.ring.clone(), restore.watch());
                places::spawn(move || send_chunks(&ring, &watch, &sender, bytes))
            });
            let feeds = feeds.collect::<Result<Vec<_>>>()?;
            restore.finish(&mut || lab.check()())?;
            // They are done, or nobody would be.
            drop(feeds);
            Ok((sizes.iter().sum(), began.elapsed().as_secs_f64()))
        })
    }
}

/// The rate of parts that work at the same time, and what sets it.
fn lowest(parts: &[&Part]) -> (f64, &'static str) {
    let cores = f64::from(u32::try_from(cores()).unwrap_or(1));
    let cpu: f64 = parts.iter().map(|part| part.cpu_per_gb / 1e9).sum();
    let by_cpu = if cpu > 0.0 { cores / cpu } else { f64::INFINITY };
    let slowest = parts.iter().min_by(|one, other| one.rate.total_cmp(&other.rate));
    match slowest {
        Some(part) if part.rate <= by_cpu => (part.rate, part.name),
        _ => (by_cpu, "CPU time of all parts"),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Takes chunks and drops them.
struct Nowhere;

impl Drain for Nowhere {
    type Error = Error;

    fn chunk(&mut self, _: u64, _: Chunk, _: usize) -> Result<()> {
        Ok(())
    }

    fn end(&mut self, _: u64) -> Result<()> {
        Ok(())
    }
}

fn copies_out(lab: &Lab<'_>) -> Result<(u64, f64)> {
    lab.dumped(|contents| {
        let jobs = contents.into_iter().map(|contents| DumpJob { contents, drain: Nowhere });
        let jobs = jobs.collect();
        let began = Instant::now();
        let (driver, options) = (lab.source().driver(), gpu::Options::default());
        let stats = gpu::dump(&driver, &lab.ring, jobs, options, &mut || lab.check()())?;
        let bytes = stats.iter().map(|gpu| gpu.bytes).sum();
        Ok((bytes, began.elapsed().as_secs_f64()))
    })
}

fn send_chunks(ring: &Ring, watch: &Watch, sender: &Sender<Write>, bytes: u64) {
    let mut offset = 0;
    while offset < bytes {
        let Some(chunk) = watch.take(ring) else { return };
        let len = usize::try_from(bytes - offset).unwrap_or(usize::MAX).min(chunk.len());
        let write = Write::Bytes { offset, chunk, range: 0..len };
        offset += len as u64;
        if watch.send(sender, write).is_none() {
            return;
        }
    }
}

/// What the stages do with a chunk, on all cores.
fn checksums(lab: &Lab<'_>) -> Result<(u64, f64)> {
    let mut chunks: Vec<Chunk> = std::iter::from_fn(|| lab.ring.try_take()).collect();
    for (chunk, number) in chunks.iter_mut().zip(0..) {
        lab.scenario.contents.fill(number).write(0, chunk);
    }
    let share = chunks.len().div_ceil(cores()).max(1);
    let mode = lab.scenario.compression;
    let began = Instant::now();
    let bytes = std::thread::scope(|scope| {
        let threads: Vec<_> = chunks
            .chunks(share)
            .map(|chunks| scope.spawn(move || look_at(chunks, mode, began + CHECKSUMS)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
    });
    Ok((bytes, began.elapsed().as_secs_f64()))
}

fn look_at(chunks: &[Chunk], mode: Compression, until: Instant) -> u64 {
    let (state, mut table) = (AutoCompress::default(), Lz4Table::default());
    let room = chunks.first().map_or(0, |chunk| lz4_bound(chunk.len()));
    let mut out = vec![0; if mode == Compression::None { 0 } else { room }];
    let mut bytes = 0;
    for chunk in chunks.iter().cycle() {
        if Instant::now() >= until {
            break;
        }
        if !is_zero(chunk) {
            std::hint::black_box(Crc32::of(chunk));
            if state.wants_try(mode) {
                std::hint::black_box(state.compress(mode, chunk, &mut out, &mut table));
            }
        }
        bytes += chunk.len() as u64;
    }
    bytes
}

fn sink(lab: &Lab<'_>) -> Result<(u64, f64)> {
    let bytes = u64::from(lab.scenario.gpus) * lab.scenario.vram;
    let scratch = places::scratch(&lab.scenario.sink)?;
    let (destination, far) =
        places::one_way(lab.scenario, scratch.as_ref().map(tempfile::TempDir::path))?;
    let seconds = replay::feed(destination, &lab.ring, bytes)?;
    far.join()?;
    Ok((bytes, seconds))
}

fn source(lab: &Lab<'_>) -> Result<(u64, f64)> {
    let (origin, far) = lab.origin()?;
    let began = Instant::now();
    let read = places::discard_all(origin)?.join()?;
    far.join()?;
    Ok((read, began.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(parts: &[(&'static str, f64, f64)]) -> Bounds {
        let mut bounds = Bounds::default();
        for &(part, seconds, cpu) in parts {
            bounds.note(part, 1_000_000_000, seconds, cpu);
        }
        bounds
    }

    fn near(value: f64, wanted: f64) -> bool {
        (value - wanted).abs() < wanted / 1e6
    }

    #[test]
    fn parts_that_use_all_cores_share_them() {
        let cores = f64::from(u32::try_from(cores()).unwrap());
        let bounds = bounds(&[(COPIES_OUT, 0.25, 0.25 * cores), (CHECKSUM, 0.125, 0.125 * cores)]);
        let bound = bounds.bound(Direction::Dump, 1.0, false);
        assert!(near(bound.rate, 1e9 / 0.375), "{bound:?}");
        assert_eq!(bound.by, "CPU time of all parts");
    }

    #[test]
    fn a_part_that_waits_is_the_bound_when_it_is_the_slowest() {
        let bounds = bounds(&[(COPIES_OUT, 1.0, 0.1), (CHECKSUM, 0.1, 0.1), (SINK, 2.0, 0.0)]);
        let bound = bounds.bound(Direction::Dump, 1.0, false);
        assert_eq!(bound.by, SINK);
        assert!(near(bound.rate, 0.5e9), "{bound:?}");
        // Half of the bytes are not stored.
        let bound = bounds.bound(Direction::Dump, 0.25, false);
        assert_eq!(bound.by, COPIES_OUT);
        assert!(near(bound.rate, 1e9), "{bound:?}");
    }

    #[test]
    fn what_is_in_turns_takes_the_sum_of_the_times() {
        let parts = [(COPIES_OUT, 1.0, 0.0), (COPIES_IN, 2.0, 0.0), (SINK, 0.5, 0.0)];
        let bound = bounds(&parts).bound(Direction::Both, 1.0, true);
        assert!(near(bound.rate, 1e9 / 3.0), "{bound:?}");
    }

    #[test]
    fn the_middle_of_all_measurements_counts() {
        let bounds = bounds(&[(SINK, 1.0, 0.0), (SINK, 9.0, 0.0), (SINK, 2.0, 0.0)]);
        assert!(near(bounds.rate(SINK).unwrap(), 0.5e9));
        assert_eq!(bounds.rate(SOURCE), None);
    }
}
