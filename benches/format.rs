//! Frames without their payloads, and whole images from a pipe with everything that reading checks.
#![forbid(unsafe_code)]

use std::{
    hint::black_box,
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use criterion::{BatchSize, Criterion, Throughput};
use vramstream::stage::Crc32;
use vramstream_benches::random;
use vramstream_streamer::{
    criu_image_streamer::MarkerWriter,
    format::{
        ChunkHeader, Codec, FileEnd, FileName, ImageEnd, ImageId, Prologue, ShardDecoder,
        ShardEncoder,
    },
    transport::{Origin, pipe::PipeOrigin},
    verify::verify,
};

/// What criu-image-streamer puts in a record from a pipe of 1 MiB.
const PIECE: u32 = (256 << 10) - 4096;
/// Pieces of an image that is read from a pipe.
const PIECES: usize = 2048;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    frames(&mut criterion);
    let Ok(name) = FileName::new("pages-1.img") else { return };
    let bytes = random(PIECE as usize, 1);
    from_pipe(&mut criterion, "native", &native(&name, &bytes), &bytes);
    from_pipe(&mut criterion, "criu-image-streamer", &markers(&name), &bytes);
    criterion.final_summary();
}

fn chunk(n: u64, crc: u32) -> ChunkHeader {
    let len = PIECE;
    let offset = n * u64::from(len);
    ChunkHeader { file: 0, offset, raw_len: len, stored_len: len, codec: Codec::Raw, crc, pad: 0 }
}

fn shard(name: &FileName, out: &mut BytesMut) -> ShardEncoder {
    let mut encoder =
        ShardEncoder::new(&Prologue { image: ImageId([1; 16]), shard: 0, shards: 1 }, out);
    encoder.file_begin(0, name, out);
    encoder
}

fn frames(criterion: &mut Criterion) {
    let Ok(name) = FileName::new("pages-1.img") else { return };
    let mut group = criterion.benchmark_group("frame of a chunk");
    group.throughput(Throughput::Elements(1));
    for (what, align) in [("encode", None), ("encode aligned", Some(4096))] {
        let mut out = BytesMut::new();
        let mut encoder = shard(&name, &mut out);
        let mut n = 0;
        group.bench_function(what, |b| {
            b.iter(|| {
                out.clear();
                n += 1;
                encoder.chunk(chunk(n, 0x1234_5678), align, &mut out).is_ok()
            });
        });
    }
    let mut out = BytesMut::new();
    let mut encoder = shard(&name, &mut out);
    let head = out.split();
    // A frame that fails to encode would fail to decode.
    let _ = encoder.chunk(chunk(70_000, 0x1234_5678), None, &mut out);
    let feed = |decoder: &mut ShardDecoder, mut bytes: &[u8]| {
        while let Some((piece, rest)) = bytes.split_at_checked(decoder.wants()) {
            bytes = rest;
            if decoder.feed(black_box(piece)).is_err() || bytes.is_empty() {
                break;
            }
        }
    };
    group.bench_function("decode", |b| {
        let at_frame = || {
            let mut decoder = ShardDecoder::new();
            feed(&mut decoder, &head);
            decoder
        };
        b.iter_batched(at_frame, |mut decoder| feed(&mut decoder, &out), BatchSize::SmallInput);
    });
    group.finish();
}

/// What stands in front of each piece of an image, and after the last.
fn native(name: &FileName, bytes: &[u8]) -> Vec<BytesMut> {
    let mut out = BytesMut::new();
    let mut encoder = shard(name, &mut out);
    let piece = Crc32::of(bytes);
    let mut whole = Crc32::default();
    let mut heads = Vec::with_capacity(PIECES + 1);
    for n in 0..PIECES as u64 {
        let _ = encoder.chunk(chunk(n, piece.value), None, &mut out);
        whole = whole.followed_by(piece);
        heads.push(out.split());
    }
    encoder.file_end(FileEnd { file: 0, checksum: whole }, &mut out);
    let end = ImageEnd {
        files: 1,
        raw_bytes: whole.len,
        superseded: vec![],
        created_unix_ms: 0,
        writer: "bench".into(),
        shard_chunks: 0,
        shard_stored_bytes: 0,
    };
    encoder.image_end(end, &mut out);
    heads.push(out);
    heads
}

/// The same for the other format.
fn markers(name: &FileName) -> Vec<BytesMut> {
    let mut out = BytesMut::new();
    let mut writer = MarkerWriter::new();
    let mut heads = Vec::with_capacity(PIECES + 1);
    for _ in 0..PIECES {
        writer.file_data(name, PIECE, &mut out);
        heads.push(out.split());
    }
    writer.file_eof(name, &mut out);
    writer.image_eof(&mut out);
    heads.push(out);
    heads
}

/// Another thread writes the image as fast as it can, and `verify` reads it.
fn from_pipe(criterion: &mut Criterion, format: &str, heads: &[BytesMut], bytes: &[u8]) {
    let mut group = criterion.benchmark_group("image from a pipe");
    group.throughput(Throughput::Bytes(PIECES as u64 * u64::from(PIECE)));
    group.sample_size(10);
    let once = || -> Option<Duration> {
        let (read, mut write) = std::io::pipe().ok()?;
        let shards = PipeOrigin::new(vec![("a pipe".into(), read.into())]).open().ok()?;
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for (n, head) in heads.iter().enumerate() {
                    let payload = if n < PIECES { bytes } else { &[] };
                    // The reader says what is wrong.
                    let _ = write.write_all(head).and_then(|()| write.write_all(payload));
                }
            });
            verify(shards, &(Arc::new(|_, _| {}) as _)).ok()
        })?;
        Some(start.elapsed())
    };
    if once().is_none() {
        eprintln!("{format}: the image cannot be read: nothing to measure");
        return;
    }
    group.bench_function(format, |b| {
        b.iter_custom(|rounds| (0..rounds).filter_map(|_| once()).sum());
    });
    group.finish();
}
