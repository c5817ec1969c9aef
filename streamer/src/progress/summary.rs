//! The one line at the end.

use std::{fmt, time::Duration};

use nix::sys::resource::{UsageWho, getrusage};

/// What a command did, in figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    command: &'static str,
    files: u32,
    raw_bytes: u64,
    stored_bytes: u64,
    elapsed: Duration,
    cpu: Duration,
    peak_bytes: u64,
}

impl Summary {
    /// Of this process, now.
    pub fn new(
        command: &'static str,
        files: u32,
        raw_bytes: u64,
        stored_bytes: u64,
        elapsed: Duration,
    ) -> Self {
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
        let time = |value: nix::sys::time::TimeVal| {
            let micros = value.tv_sec() * 1_000_000 + value.tv_usec();
            Duration::from_micros(u64::try_from(micros).unwrap_or(0))
        };
        let cpu = usage.map(|u| time(u.user_time()) + time(u.system_time())).unwrap_or_default();
        // Linux reports kilobytes.
        let peak = usage.and_then(|u| u64::try_from(u.max_rss()).ok()).unwrap_or(0) * 1024;
        Summary { command, files, raw_bytes, stored_bytes, elapsed, cpu, peak_bytes: peak }
    }

    /// As an event.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "event": "summary",
            "command": self.command,
            "files": self.files,
            "raw_bytes": self.raw_bytes,
            "stored_bytes": self.stored_bytes,
            "seconds": self.elapsed.as_secs_f64(),
            "gb_per_second": self.rate(),
            "cpu_seconds": self.cpu.as_secs_f64(),
            "peak_memory_bytes": self.peak_bytes,
        })
    }

    /// Raw bytes in 10^9 a second.
    #[allow(clippy::cast_precision_loss)] // shown with two digits
    fn rate(&self) -> f64 {
        self.raw_bytes as f64 / 1e9 / self.elapsed.as_secs_f64().max(1e-6)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} files, {} raw, {} stored, {:.2} s, {:.2} GB/s, {:.2} CPU-s, {} peak memory",
            self.command,
            self.files,
            indicatif::BinaryBytes(self.raw_bytes),
            indicatif::BinaryBytes(self.stored_bytes),
            self.elapsed.as_secs_f64(),
            self.rate(),
            self.cpu.as_secs_f64(),
            indicatif::BinaryBytes(self.peak_bytes),
        )
    }
}
