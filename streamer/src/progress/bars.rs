//! Bars for a person: one line for the image, one for each shard, ten times a second.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Inner;

const REDRAW: Duration = Duration::from_millis(100);
/// More shards than this would push everything else off a terminal.
const MOST_SHARD_LINES: usize = 16;

/// A thread that looks at the counters and draws.
#[derive(Debug)]
pub(super) struct Bars {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Bars {
    pub(super) fn start(inner: &Arc<Inner>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (inner, stopped) = (Arc::downgrade(inner), Arc::clone(&stop));
        // Without a thread there are no bars; the work does not depend on them.
        let thread = std::thread::Builder::new()
            .name("progress".into())
            .spawn(move || draw(&inner, &stopped))
            .ok();
        Bars { stop, thread }
    }

    pub(super) fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn draw(inner: &Weak<Inner>, stop: &AtomicBool) {
    // Signals are for the thread that works.
    let _ = nix::sys::signal::SigSet::all().thread_block();
    let screen = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
    let style = |template| {
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
    };
    let line =
        style("{spinner} {prefix:24} {bytes:>12} {binary_bytes_per_sec:>14} {elapsed:>5} {msg}");
    let total = screen.add(ProgressBar::no_length().with_style(line.clone()));
    let mut shards: Vec<ProgressBar> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        {
            let Some(inner) = inner.upgrade() else { break };
            let (images, raw, _) = inner.snapshot();
            let counters = super::lock(&inner.shards).clone();
            for counter in counters.iter().take(MOST_SHARD_LINES).skip(shards.len()) {
                let bar = ProgressBar::no_length().with_style(line.clone());
                shards.push(screen.add(bar.with_prefix(counter.name.clone())));
            }
            let mut stored = 0;
            for (number, counter) in counters.iter().enumerate() {
                let bytes = counter.bytes.load(Ordering::Relaxed);
                stored += bytes;
                if let Some(bar) = shards.get(number) {
                    bar.set_position(bytes);
                }
            }
            total.set_prefix(inner.command);
            total.set_position(if raw > 0 { raw } else { stored });
            total.set_message(if images > 0 { format!("{images} files") } else { String::new() });
            total.tick();
        }
        std::thread::sleep(REDRAW);
    }
    let _ = screen.clear();
}
