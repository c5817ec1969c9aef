//! What the streamer tells while it works and when it is done.
//!
//! Three audiences: a program that started it reads lines from the progress descriptor (the
//! protocol of criu-image-streamer); a person at a terminal sees bars; a program that was given
//! `--json` reads events. The data path only counts, in atomics; it never waits for any of them.
//!
//! # The progress descriptor
//!
//! One line each, in this order, as far as they apply:
//!
//! | line | when |
//! |---|---|
//! | `listening ADDRESS:PORT` | receive: the port can be connected to |
//! | `socket-init` | capture: CRIU can connect (first line). serve: the image was checked and CRIU can connect (after the statistics) |
//! | `checkpoint-start` | capture: the process to be dumped is frozen |
//! | `{"shards":[{"size":N,"transfer_duration_millis":N},…]}` | capture: committed. serve, extract: all shards were read |
//!
//! Whoever stops reading is not told any more, and nothing else happens.

use std::{
    io::Write,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{absorb::ShardStat, format::FileName};

mod bars;
mod summary;

pub use summary::Summary;

/// How a person or a program is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Display {
    /// Bars on the terminal that standard error is.
    Bars,
    /// A JSON object a line on standard error.
    Json,
    /// Nothing.
    Silent,
}

/// Counters and the progress descriptor. Clones are the same.
#[derive(Debug, Clone)]
pub struct Progress(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    command: &'static str,
    display: Display,
    fd: Mutex<Option<std::fs::File>>,
    started: Instant,
    counters: Counters,
    shards: Mutex<Vec<Arc<ShardCounter>>>,
    bars: Mutex<Option<bars::Bars>>,
}

#[derive(Debug, Default)]
struct Counters {
    images: AtomicU64,
    raw: AtomicU64,
}

#[derive(Debug)]
struct ShardCounter {
    name: String,
    bytes: AtomicU64,
}

/// Serialised as the original does.
#[derive(serde::Serialize)]
struct StatsLine {
    shards: Vec<ShardLine>,
}

#[derive(serde::Serialize)]
struct ShardLine {
    size: u64,
    transfer_duration_millis: u64,
}

impl Progress {
    /// For a command. Lines go to `fd`.
    pub fn new(command: &'static str, display: Display, fd: Option<OwnedFd>) -> Self {
        let progress = Progress(Arc::new(Inner {
            command,
            display,
            fd: Mutex::new(fd.map(Into::into)),
            started: Instant::now(),
            counters: Counters::default(),
            shards: Mutex::default(),
            bars: Mutex::default(),
        }));
        if display == Display::Bars {
            *lock(&progress.0.bars) = Some(bars::Bars::start(&progress.0));
        }
        progress
    }

    /// For tests and library users: counts, and tells nobody.
    pub fn silent() -> Self {
        Self::new("", Display::Silent, None)
    }

    /// A line on the progress descriptor.
    pub fn line(&self, line: &str) {
        let mut fd = lock(&self.0.fd);
        let failed =
            fd.as_mut().is_some_and(|fd| fd.write_all(format!("{line}\n").as_bytes()).is_err());
        if failed {
            *fd = None;
        }
        drop(fd);
        self.event(serde_json::json!({ "event": "progress", "line": line }));
    }

    /// The statistics line.
    pub fn stats(&self, shards: &[ShardStat]) {
        let shards = shards.iter().map(|shard| ShardLine {
            size: shard.bytes,
            transfer_duration_millis: shard.duration_ms,
        });
        let line = StatsLine { shards: shards.collect() };
        // A struct of numbers always has a JSON form.
        self.line(&serde_json::to_string(&line).unwrap_or_default());
    }

    /// An image has been begun.
    pub fn image_opened(&self, name: &FileName) {
        self.0.counters.images.fetch_add(1, Ordering::Relaxed);
        self.event(serde_json::json!({ "event": "image", "name": name.as_str() }));
    }

    /// Bytes of images have passed.
    pub fn raw(&self, bytes: u64) {
        self.0.counters.raw.fetch_add(bytes, Ordering::Relaxed);
    }

    /// These are the shards.
    pub fn shards(&self, names: impl Iterator<Item = String>) {
        let counters = names.map(|name| Arc::new(ShardCounter { name, bytes: AtomicU64::new(0) }));
        *lock(&self.0.shards) = counters.collect();
    }

    /// Bytes of a shard, by its place, have passed.
    pub fn stored(&self, shard: usize, bytes: u64) {
        if let Some(shard) = lock(&self.0.shards).get(shard) {
            shard.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The same, as what [`absorb`](crate::absorb::absorb) wants.
    pub fn absorbing(
        &self,
        shards: &[Box<dyn crate::transport::ShardReader>],
    ) -> crate::absorb::Progress {
        self.shards(shards.iter().map(|shard| shard.describe().to_owned()));
        let counters = lock(&self.0.shards).clone();
        Arc::new(move |shard, bytes| {
            if let Some(shard) = counters.get(shard) {
                shard.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        })
    }

    /// The command has done what it should: the summary, to whoever is watching.
    pub fn finished(&self, files: u32, raw_bytes: u64) {
        let stored = lock(&self.0.shards).iter().map(|s| s.bytes.load(Ordering::Relaxed)).sum();
        let summary =
            Summary::new(self.0.command, files, raw_bytes, stored, self.0.started.elapsed());
        self.end_bars();
        match self.0.display {
            Display::Bars => eprintln!("{summary}"),
            Display::Json => self.event(summary.to_json()),
            Display::Silent => {}
        }
    }

    /// The command has failed.
    pub fn failed(&self, message: &str) {
        self.end_bars();
        self.event(serde_json::json!({ "event": "error", "message": message }));
    }

    fn end_bars(&self) {
        if let Some(bars) = lock(&self.0.bars).take() {
            bars.end();
        }
    }

    fn event(&self, event: serde_json::Value) {
        if self.0.display == Display::Json {
            eprintln!("{event}");
        }
    }
}

impl Inner {
    fn snapshot(&self) -> (u64, u64, Duration) {
        let Counters { images, raw } = &self.counters;
        (images.load(Ordering::Relaxed), raw.load(Ordering::Relaxed), self.started.elapsed())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Counters and a file: a panic elsewhere cannot leave them half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
