//! What it costs to take a chunk and give it back.
#![forbid(unsafe_code)]

use std::{hint::black_box, time::Duration};

use criterion::Criterion;
use vramstream::ring::Ring;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    // A ring that cannot be made leaves nothing to measure.
    let Ok(ring) = Ring::new(1 << 20, 64) else { return };
    let mut group = criterion.benchmark_group("ring");
    group.bench_function("try_take and drop", |b| b.iter(|| black_box(ring.try_take())));
    group.bench_function("take and drop", |b| {
        b.iter(|| black_box(ring.take(Duration::from_secs(1))));
    });
    group.bench_function("across threads", |b| {
        b.iter_custom(|rounds| {
            let (give, take) = std::sync::mpsc::sync_channel(16);
            let start = std::time::Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(move || take.into_iter().for_each(drop));
                for _ in 0..rounds {
                    let _ = give.send(ring.take(Duration::from_secs(1)));
                }
                drop(give);
            });
            start.elapsed()
        });
    });
    group.finish();
    criterion.final_summary();
}
