//! What a run costs: time, CPU time by what threads do, and memory.
//!
//! Threads come and go during a run, so somebody has to look at them while they live: a thread does,
//! every [`INTERVAL`]. What a thread used after it was last seen counts as CPU time of the process,
//! which the kernel accounts, but not as that of its group.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    time::{Duration, Instant},
};

use crossbeam_channel::{RecvTimeoutError, Sender};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use vramstream::gpu::GpuStats;

use super::float;
use crate::error::{Error, Result};

/// How often somebody looks.
const INTERVAL: Duration = Duration::from_millis(25);

/// The group of the threads that play SDMA engines.
pub(super) const ENGINES: &str = "simulated engines";

/// What threads do, by the beginnings of their names.
const GROUPS: [(&str, &str); 5] = [
    ("sdma", ENGINES),
    ("gpu-", "GPU workers"),
    ("stage-", "checksums"),
    ("shard-", "shards"),
    ("bench-", "far end"),
];

/// What a run was seen to do.
#[derive(Debug, Clone, Serialize)]
pub struct Sample {
    /// Bytes of contents.
    pub bytes: u64,
    /// Bytes of shards.
    pub stored_bytes: u64,
    /// From the first call to the last.
    pub seconds: f64,
    /// CPU time of this process.
    pub cpu_seconds: f64,
    /// Of that, of simulated engines.
    pub engine_cpu_seconds: f64,
    /// CPU time by what threads do.
    pub threads: BTreeMap<&'static str, f64>,
    /// The most anonymous memory.
    pub peak_bytes: u64,
    /// What each GPU's worker waited for, if any were at work.
    pub gpus: Vec<GpuTimes>,
}

/// What a GPU's worker did all the time.
#[derive(Debug, Clone, Serialize)]
pub struct GpuTimes {
    /// Which GPU.
    pub gpu_id: u32,
    /// Its bytes.
    pub bytes: u64,
    /// From its first call to its last.
    pub seconds: f64,
    /// Copies that were submitted.
    pub copies: u64,
    /// Waiting for a chunk: what follows (on restore: what is before) is slower.
    pub waiting_for_chunk: f64,
    /// Waiting for the device.
    pub waiting_for_copy: f64,
    /// Handing chunks over.
    pub handing_over: f64,
}

impl From<GpuStats> for GpuTimes {
    fn from(stats: GpuStats) -> Self {
        GpuTimes {
            gpu_id: stats.gpu_id,
            bytes: stats.bytes,
            seconds: stats.elapsed.as_secs_f64(),
            copies: stats.copies,
            waiting_for_chunk: stats.waiting_for_chunk.as_secs_f64(),
            waiting_for_copy: stats.waiting_for_copy.as_secs_f64(),
            handing_over: stats.handing_over.as_secs_f64(),
        }
    }
}

impl Sample {
    /// Bytes in a second.
    pub fn rate(&self) -> f64 {
        float(self.bytes) / self.seconds.max(1e-9)
    }

    /// CPU-seconds for each 10^9 bytes.
    pub fn cpu_per_gb(&self) -> f64 {
        self.cpu_seconds / (float(self.bytes.max(1)) / 1e9)
    }

    /// The same without simulated engines.
    pub fn own_cpu_per_gb(&self) -> f64 {
        (self.cpu_seconds - self.engine_cpu_seconds).max(0.0) / (float(self.bytes.max(1)) / 1e9)
    }
}

/// Watches this process.
pub(super) struct Meter {
    began: Instant,
    cpu: Duration,
    stop: Sender<()>,
    thread: std::thread::JoinHandle<Seen>,
}

#[derive(Default)]
struct Seen {
    threads: HashMap<u64, Thread>,
    peak_bytes: u64,
}

struct Thread {
    group: &'static str,
    before: u64,
    now: u64,
}

impl Meter {
    /// Begins to watch.
    pub(super) fn start() -> Result<Self> {
        let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
        let mut seen = Seen::default();
        seen.look(true);
        let watch = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(INTERVAL) {
                seen.look(false);
            }
            seen.look(false);
            seen
        };
        let thread = std::thread::Builder::new().name("meter".into()).spawn(watch);
        let thread = thread.map_err(Error::io(|| "start a thread that measures"))?;
        Ok(Meter { began: Instant::now(), cpu: process_cpu(), stop, thread })
    }

    /// Ends it: what was seen since.
    pub(super) fn end(self, bytes: u64) -> Result<Sample> {
        let (elapsed, cpu) = (self.began.elapsed(), process_cpu().saturating_sub(self.cpu));
        drop(self.stop);
        let seen = self.thread.join().map_err(|_| Error::Panicked("measuring".into()))?;
        let mut threads = BTreeMap::new();
        for thread in seen.threads.values() {
            let nanoseconds = thread.now.saturating_sub(thread.before);
            *threads.entry(thread.group).or_default() +=
                Duration::from_nanos(nanoseconds).as_secs_f64();
        }
        Ok(Sample {
            bytes,
            stored_bytes: 0,
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: cpu.as_secs_f64(),
            engine_cpu_seconds: threads.get(ENGINES).copied().unwrap_or_default(),
            threads,
            peak_bytes: seen.peak_bytes,
            gpus: Vec::new(),
        })
    }
}

impl Seen {
    fn look(&mut self, first: bool) {
        self.peak_bytes = self.peak_bytes.max(anonymous_bytes());
        let Ok(tasks) = fs::read_dir("/proc/self/task") else { return };
        for task in tasks.flatten() {
            let path = task.path();
            // A thread that ends in the middle of this is one that is not seen any more.
            let used = fs::read_to_string(path.join("schedstat"));
            let used = used.ok().and_then(|line| line.split(' ').next()?.parse().ok());
            let number = task.file_name().to_str().and_then(|name| name.parse().ok());
            let (Some(used), Some(number)) = (used, number) else { continue };
            let thread = self.threads.entry(number).or_insert_with(|| {
                let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
                Thread { group: group(&name), before: if first { used } else { 0 }, now: used }
            });
            thread.now = used;
        }
    }
}

fn group(name: &str) -> &'static str {
    GROUPS.iter().find(|(start, _)| name.starts_with(start)).map_or("other", |(_, group)| group)
}

/// CPU time of this process until now.
pub(super) fn process_cpu() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return Duration::ZERO };
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| {
            let micros = u64::try_from(time.tv_usec()).unwrap_or(0);
            Duration::from_secs(u64::try_from(time.tv_sec()).unwrap_or(0))
                + Duration::from_micros(micros)
        })
        .sum()
}

/// Memory that is neither a file's nor shared, which simulated VRAM is.
fn anonymous_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_seen_by_what_they_do_and_only_from_the_start_on() {
        fn spin(until: Instant) {
            while Instant::now() < until {
                std::hint::spin_loop();
            }
        }
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        let engine = std::thread::Builder::new().name("sdma0.0".into()).spawn(move || {
            spin(Instant::now() + Duration::from_millis(300));
            let _ = wait.recv();
            spin(Instant::now() + Duration::from_millis(150));
            let _ = wait.recv();
        });
        go.send(()).unwrap();
        let meter = Meter::start().unwrap();
        let memory = vec![1_u8; 64 << 20];
        // Waits until the engine has spun.
        go.send(()).unwrap();
        let sample = meter.end(1_000_000_000).unwrap();
        engine.unwrap().join().unwrap();
        assert!(sample.engine_cpu_seconds > 0.0);
        assert!(sample.engine_cpu_seconds < 0.29, "{sample:?}");
        assert!(sample.peak_bytes > memory.len() as u64, "{sample:?}");
        assert!(sample.own_cpu_per_gb() <= sample.cpu_per_gb());
    }

    #[test]
    fn groups_are_by_name() {
        assert_eq!(group("sdma1.7\n"), ENGINES);
        assert_eq!(group("shard-12\n"), "shards");
        assert_eq!(group("vramstream\n"), "other");
    }
}
