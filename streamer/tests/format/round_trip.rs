//! Native images of any shape are read as they were written: as streams by [`absorb`], frame by
//! frame by [`ShardDecoder`], and from their end by [`Index`].
//!
//! [`absorb`]: vramstream_streamer::absorb::absorb

use proptest::prelude::*;
use vramstream::stage::{Compression, Crc32, decompress_lz4};
use vramstream_streamer::{
    absorb::ImageFormat,
    format::{
        Assembly, ChunkHeader, Codec, Event, FileName, ImageEnd, Manifest, ShardDecoder,
        index::{ChunkRecord, INDEX_PREFIX_BYTES, Index, TRAILER_BYTES, Trailer, index_len},
    },
};

use crate::{
    native_image::{CREATED, NativeImage, WRITER},
    support::{Files, noise, read, readers},
};

/// What one shard says, chunk for chunk, as its frames say it.
#[derive(Debug, Default)]
struct Frames {
    files: Vec<(u32, FileName, Option<Crc32>)>,
    chunks: Vec<(ChunkHeader, u64)>,
    end: Option<ImageEnd>,
}

/// Reads a shard's frames, and tells the assembly.
fn frames(shard: &[u8], assembly: &mut Assembly) -> Frames {
    let mut decoder = ShardDecoder::new();
    let mut frames = Frames::default();
    let (mut at, mut number) = (0, 0);
    loop {
        let wants = decoder.wants();
        let event = decoder.feed(&shard[at..at + wants]).unwrap();
        at += wants;
        match event {
            Event::More => {}
            Event::Prologue(prologue) => {
                number = prologue.shard;
                assembly.shard(&prologue).unwrap();
            }
            Event::FileBegin(file, name) => {
                assembly.file_begin(file, &name).unwrap();
                frames.files.push((file, name, None));
            }
            Event::Chunk(chunk) => {
                assembly.chunk(&chunk).unwrap();
                frames.chunks.push((chunk, at as u64));
                at += chunk.stored_len as usize;
            }
            Event::FileEnd(end) => {
                assembly.file_end(&end).unwrap();
                let known = frames.files.iter_mut().find(|(file, ..)| *file == end.file);
                known.unwrap().2 = Some(end.checksum);
            }
            Event::ImageEnd(end) => {
                assembly.shard_end(number, &end).unwrap();
                frames.end = Some(end);
            }
            Event::End => {
                assert_eq!((at, decoder.position()), (shard.len(), shard.len() as u64));
                return frames;
            }
        }
    }
}

/// Opens a shard from its end.
pub(crate) fn open(shard: &[u8]) -> (Index, Vec<ChunkRecord>) {
    let trailer = shard.last_chunk::<TRAILER_BYTES>().unwrap();
    let trailer = Trailer::decode(trailer, shard.len() as u64).unwrap();
    let (prefix, rest) =
        shard[trailer.index_at as usize..].split_first_chunk::<INDEX_PREFIX_BYTES>().unwrap();
    let (len, crc) = index_len(prefix, &trailer).unwrap();
    let index = Index::decode(&rest[..len as usize], crc, trailer.index_at).unwrap();
    let records = index.chunks().collect::<Result<_, _>>().unwrap();
    (index, records)
}

/// Every record of the index is a frame, its payload is where it says, and there are no others.
fn check_index(shard: &[u8], frames: &Frames) {
    let (index, records) = open(shard);
    let found = records.iter().map(|record| (record.header, record.payload_at()));
    assert!(found.eq(frames.chunks.iter().copied()));
    let found = index.files.iter().map(|file| {
        assert!(file.end.is_none_or(|end| end.file == file.file));
        (file.file, file.name.clone(), file.end.map(|end| end.checksum))
    });
    assert!(found.eq(frames.files.iter().cloned()));
    assert_eq!(Some(&index.image_end), frames.end.as_ref());
    for record in records {
        let at = record.payload_at() as usize;
        let stored = &shard[at..at + record.header.stored_len as usize];
        let mut raw = vec![0; record.header.raw_len as usize];
        match record.header.codec {
            Codec::Raw => raw.copy_from_slice(stored),
            Codec::Lz4 => assert!(decompress_lz4(stored, &mut raw)),
            Codec::Zero => {}
        }
        assert_eq!(Crc32::of(&raw).value, record.header.crc);
    }
}

/// All three ways to read; the manifest.
fn check(shards: &[Vec<u8>], files: &Files, step: usize) -> Manifest {
    let mut assembly = Assembly::default();
    for shard in shards {
        let frames = frames(shard, &mut assembly);
        check_index(shard, &frames);
    }
    let manifest = assembly.finish().unwrap();
    let (absorbed, found) = read(readers(shards, step)).unwrap();
    assert_eq!(absorbed.format, ImageFormat::Native);
    // The totals of one shard are in it, and it may be any.
    assert!(absorbed.manifest.end.same_image(&manifest.end));
    assert_eq!(absorbed.manifest.files, manifest.files);
    assert!(found == *files);
    manifest
}

#[derive(Debug, Clone)]
struct Chunked {
    len: usize,
    piece: usize,
    /// Noise, compressible, zero.
    kind: u8,
}

/// A chunk of a file, by where it starts; or the file's end.
type Step<'a> = (u32, Option<(usize, &'a [u8])>);

fn contents(files: &[Chunked]) -> Vec<Vec<u8>> {
    let make = |(seed, file): (u64, &Chunked)| match file.kind {
        0 => noise(file.len, seed),
        1 => noise(50, seed).into_iter().cycle().take(file.len).collect(),
        2 => vec![0; file.len],
        // Some of everything, chunk by chunk.
        _ => {
            let mut bytes = noise(file.len, seed);
            bytes.chunks_mut(file.piece).skip(1).step_by(3).for_each(|b| b.fill(0));
            bytes.chunks_mut(file.piece).skip(2).step_by(3).for_each(|b| b.fill(7));
            bytes
        }
    };
    (0..).zip(files).map(make).collect()
}

/// As good as random.
fn numbers(seed: u64) -> Vec<u32> {
    noise(1200, seed).as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes) >> 1).collect()
}

fn any_file() -> impl Strategy<Value = Chunked> {
    (prop_oneof![0usize..10, 0usize..20_000], 1usize..4000, 0u8..5)
        .prop_map(|(len, piece, kind)| Chunked { len, piece: piece.max(len / 50 + 1), kind })
}

proptest! {
    /// Any files, sizes, chunk orders, shards, codecs and alignments.
    #[test]
    fn any_image(
        files in prop::collection::vec(any_file(), 0..5),
        shards in 1u32..5,
        seed: u64,
        align in prop::option::of(0u32..16),
        step in 1usize..5000,
    ) {
        let align = align.map(|bits| 1 << bits);
        let keys = numbers(seed);
        let contents = contents(&files);
        let names: Vec<_> = (0..files.len()).map(|n| format!("f{n}.img")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        // A step for each chunk and each end, in any order.
        let mut steps: Vec<Step> = Vec::new();
        for ((n, file), bytes) in (0..).zip(&files).zip(&contents) {
            let chunks = bytes.chunks(file.piece).enumerate();
            steps.extend(chunks.map(|(i, b)| (n, Some((i * file.piece, b)))));
            steps.push((n, None));
        }
        let mut order: Vec<usize> = (0..steps.len()).collect();
        order.sort_by_key(|&n| keys[n % keys.len()].wrapping_add(n as u32));
        let mut image = NativeImage::new(1, shards, &names);
        for n in order {
            let key = keys[(n + 7) % keys.len()];
            let shard = (key % shards) as usize;
            let mode = [Compression::None, Compression::Lz4][(key >> 8) as usize % 2];
            match steps[n] {
                (file, Some((at, bytes))) => {
                    image.chunk(shard, file, at as u64, bytes, mode, align);
                }
                (file, None) => image.end(shard, file, Crc32::of(&contents[file as usize])),
            }
        }
        let raw_bytes = contents.iter().map(|bytes| bytes.len() as u64).sum();
        let shards = image.finish(files.len() as u32, raw_bytes, &[]);
        let files: Files = names.iter().map(ToString::to_string).zip(contents).collect();
        let manifest = check(&shards, &files, step);
        prop_assert_eq!(manifest.end.created_unix_ms, CREATED);
        prop_assert_eq!(&manifest.end.writer, WRITER);
        if let Some(align) = align {
            for shard in &shards {
                let raw = |record: &&ChunkRecord| record.header.codec == Codec::Raw;
                for record in open(shard).1.iter().filter(raw) {
                    prop_assert_eq!(record.payload_at() % u64::from(align), 0);
                }
            }
        }
    }
}

/// Every place that a frame can start at: whether the padding is found may depend on it.
#[test]
fn payloads_are_aligned_wherever_the_frame_starts() {
    for align in (0..16).map(|bits| 1 << bits) {
        for before in 1..300 {
            let mut image = NativeImage::new(1, 1, &["a"]);
            image.chunk(0, 0, 0, &noise(before, 1), Compression::None, None);
            image.chunk(0, 0, before as u64, &noise(3, 2), Compression::None, Some(align));
            let shard = &image.finish(1, before as u64 + 3, &[])[0];
            assert_eq!(open(shard).1[1].payload_at() % u64::from(align), 0, "{align} {before}");
        }
    }
}

#[test]
fn zero_runs_of_a_terabyte_cost_nothing() {
    let mut image = NativeImage::new(1, 1, &["vram"]);
    let len = 1u64 << 40;
    for n in 0..len >> 30 {
        image.zeros(0, 0, n << 30, 1 << 30);
    }
    image.end(0, 0, vramstream::stage::crc32_of_zeros(len));
    let shard = image.finish(1, len, &[]).swap_remove(0);
    assert!(shard.len() < 100_000, "{}", shard.len());
    let mut assembly = Assembly::default();
    let frames = frames(&shard, &mut assembly);
    assert!(
        open(&shard).1.iter().map(|record| record.header).eq(frames.chunks.iter().map(|c| c.0))
    );
    assert_eq!(assembly.finish().unwrap().end.raw_bytes, len);
}

/// A name that is written again: any but the superseded one counts, even if that is not whole.
#[test]
fn a_name_written_again() {
    let mut image = NativeImage::new(1, 2, &["x", "x", "y"]);
    image.chunk(0, 0, 5, b"cut", Compression::None, None);
    image.chunk(1, 1, 0, b"whole", Compression::None, None);
    image.end(0, 1, Crc32::of(b"whole"));
    image.end(0, 2, Crc32::of(b""));
    let shards = image.finish(2, 5, &[0]);
    let files = Files::from([("x".into(), b"whole".to_vec()), ("y".into(), vec![])]);
    let manifest = check(&shards, &files, usize::MAX);
    assert_eq!(manifest.end.superseded, [0]);
    assert_eq!(manifest.files.len(), 2);
}
