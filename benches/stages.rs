//! What each stage does to 1 MiB of what images contain.
#![forbid(unsafe_code)]

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use vramstream::stage::{AutoCompress, Compression, Crc32, Lz4Table, decompress_lz4, is_zero};
use vramstream_benches::{bf16, half_zero, random};

const LEN: usize = 1 << 20;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let kinds = [
        ("random", random(LEN, 1)),
        ("zeros", vec![0; LEN]),
        ("half zeros", half_zero(LEN, 2)),
        ("bf16", bf16(LEN, 3)),
    ];
    for (kind, data) in &kinds {
        let mut group = criterion.benchmark_group(*kind);
        group.throughput(Throughput::Bytes(LEN as u64));
        group.bench_function("zero scan", |b| b.iter(|| is_zero(black_box(data))));
        group.bench_function("crc-32", |b| b.iter(|| Crc32::of(black_box(data))));
        let mut out = vec![0; LEN * 2];
        let mut table = Lz4Table::default();
        let mut compress = |out: &mut [u8]| {
            let always = AutoCompress::default();
            always.compress(Compression::Lz4, black_box(data), out, &mut table)
        };
        group.bench_function("lz4", |b| b.iter(|| compress(&mut out)));
        // What LZ4 does not make smaller is never decompressed.
        if let Some(len) = compress(&mut out) {
            let mut raw = vec![0; LEN];
            group.bench_function("unlz4", |b| {
                b.iter(|| decompress_lz4(black_box(&out[..len]), &mut raw));
            });
        }
        // With its memory, a file that does not compress costs next to nothing.
        let (auto, mut table) = (AutoCompress::default(), Lz4Table::default());
        group.bench_function("auto", |b| {
            b.iter(|| {
                let mode = Compression::Auto;
                let wanted = auto.wants_try(mode);
                wanted.then(|| auto.compress(mode, black_box(data), &mut out, &mut table))
            });
        });
        group.finish();
    }
    criterion.final_summary();
}
