//! What a scenario's runs have shown, for programs and for people.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;
use vramstream::ring::{ByteSize, Ring};

use super::{
    Bounds, Direction, Sample, Scenario, Sink, bounds::Bound, float, measure::ENGINES, median,
};

/// See the [module](self).
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was run, in a line.
    pub scenario: String,
    /// GPUs.
    pub gpus: u32,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Bytes of contents of all GPUs.
    pub bytes: u64,
    /// Bytes of contents in a second, the middle of all runs.
    pub rate: f64,
    /// The same for each GPU.
    pub rate_per_gpu: f64,
    /// CPU-seconds for each 10^9 bytes.
    pub cpu_per_gb: f64,
    /// The same without the threads that play SDMA engines.
    pub own_cpu_per_gb: f64,
    /// The most anonymous memory of any run.
    pub peak_bytes: u64,
    /// What could be reached.
    pub bound: Bound,
    /// How much of that was.
    pub share: f64,
    /// Every run.
    pub runs: Vec<Sample>,
}

impl Report {
    pub(super) fn new(
        scenario: &Scenario,
        ring: &Ring,
        runs: Vec<Sample>,
        bounds: &Bounds,
    ) -> Self {
        let both = scenario.direction == Direction::Both;
        // The bytes of both sides were counted.
        let sides = if both { 2 } else { 1 };
        let runs: Vec<Sample> =
            runs.into_iter().map(|run| Sample { bytes: run.bytes / sides, ..run }).collect();
        let middle = |of: fn(&Sample) -> f64| median(runs.iter().map(of)).unwrap_or(0.0);
        let stored = middle(|run| float(run.stored_bytes) / float(run.bytes.max(1)));
        let in_turns = both && matches!(scenario.sink, Sink::Files(_));
        let bound = bounds.bound(scenario.direction, stored, in_turns);
        let rate = middle(Sample::rate);
        let chunk_bytes = ring.chunk_bytes() as u64;
        Report {
            scenario: scenario.describe(),
            gpus: scenario.gpus,
            ring_bytes: chunk_bytes * ring.chunks() as u64,
            chunk_bytes,
            bytes: runs.first().map_or(0, |run| run.bytes),
            rate,
            rate_per_gpu: rate / f64::from(scenario.gpus.max(1)),
            cpu_per_gb: middle(Sample::cpu_per_gb),
            own_cpu_per_gb: middle(Sample::own_cpu_per_gb),
            peak_bytes: runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0),
            share: rate / bound.rate.max(1.0),
            bound,
            runs,
        }
    }

    /// CPU-seconds for each 10^9 bytes, by what threads do: the middle of all runs.
    fn threads(&self) -> BTreeMap<&'static str, f64> {
        let names = self.runs.iter().flat_map(|run| run.threads.keys().copied());
        let names: std::collections::BTreeSet<_> = names.collect();
        let of = |name| {
            let values = self.runs.iter().map(|run| {
                let seconds = run.threads.get(name).copied().unwrap_or(0.0);
                seconds / (float(run.bytes.max(1)) / 1e9)
            });
            (name, median(values).unwrap_or(0.0))
        };
        names.into_iter().map(of).collect()
    }

    /// What share of its time a GPU's worker waited, on average.
    fn waited(&self, of: fn(&super::measure::GpuTimes) -> f64) -> f64 {
        let gpus = || self.runs.iter().flat_map(|run| &run.gpus);
        gpus().map(of).sum::<f64>() / gpus().map(|gpu| gpu.seconds).sum::<f64>().max(1e-9)
    }
}

/// Bytes in a second as people write them.
pub(super) fn gb(rate: f64) -> String {
    format!("{:.2} GB/s", rate / 1e9)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.scenario)?;
        let (ring, chunk) = (ByteSize(self.ring_bytes), ByteSize(self.chunk_bytes));
        let line = |f: &mut fmt::Formatter<'_>, name: &str, value: String| {
            writeln!(f, "  {name:<20} {value}")
        };
        let (gb_bytes, runs) = (float(self.bytes) / 1e9, self.runs.len());
        line(f, "contents", format!("{gb_bytes:.2} GB, ring {ring} in chunks of {chunk}"))?;
        let of = format!("median of {runs} runs");
        line(f, "together", format!("{} ({of})", gb(self.rate)))?;
        line(f, "each GPU", gb(self.rate_per_gpu))?;
        let cpu = format!(
            "{:.2} for each GB, {:.2} without {ENGINES}",
            self.cpu_per_gb, self.own_cpu_per_gb
        );
        line(f, "CPU-seconds", cpu)?;
        let threads = self.threads();
        let threads = threads.iter().map(|(name, cpu)| format!("{name} {cpu:.2}"));
        line(f, "  by threads", threads.collect::<Vec<_>>().join(", "))?;
        let percent = |part: fn(&super::measure::GpuTimes) -> f64| 100.0 * self.waited(part);
        let waited = format!(
            "{:.0} % for chunks, {:.0} % for copies, {:.0} % to hand over",
            percent(|gpu| gpu.waiting_for_chunk),
            percent(|gpu| gpu.waiting_for_copy),
            percent(|gpu| gpu.handing_over)
        );
        line(f, "GPU workers wait", waited)?;
        let peak = format!("{} MiB of anonymous memory", self.peak_bytes >> 20);
        line(f, "peak memory", peak)?;
        for part in &self.bound.parts {
            let alone = format!("{}, {:.2} CPU-s for each GB", gb(part.rate), part.cpu_per_gb);
            line(f, &format!("alone: {}", part.name), alone)?;
        }
        let reached = format!("{:.0} % of it was reached", 100.0 * self.share);
        line(f, "bound", format!("{} ({}); {reached}", gb(self.bound.rate), self.bound.by))
    }
}
