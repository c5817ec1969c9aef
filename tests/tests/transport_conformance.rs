//! The contract of `vramstream_streamer::transport`, held against every transport.
//!
//! Bytes arrive as they were written; an image that was not committed is never read as one; a
//! failure names the shard or the peer; a destination that is dropped leaves nothing behind.

#![allow(clippy::unwrap_used)] // helpers of a test, which clippy does not take for one

use std::{
    num::NonZeroU64,
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use vramstream::{ring::Ring, stage::Crc32};
use vramstream_streamer::{
    Error, Result,
    absorb::Absorbed,
    format::{ChunkHeader, Codec, FileEnd, FileName, ImageEnd, ImageId, Prologue, ShardEncoder},
    payload::Payload,
    transport::{
        Destination, Origin, ShardWriter,
        file::{FileDestination, FileIo, FileOrigin},
        pipe::{PipeDestination, PipeOrigin},
        tcp::{TcpDestination, TcpOrigin, Timeouts},
        throttle::{Rate, ThrottledDestination},
    },
    verify::verify,
};

const SHARDS: u32 = 3;
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS: u64 = 40;
/// Nothing here may take longer to notice than this.
const BOUND: Duration = Duration::from_secs(10);

/// A destination, and what makes the origin at its other end.
struct Pair {
    name: &'static str,
    destination: Box<dyn Destination>,
    origin: Box<dyn FnOnce() -> Result<Box<dyn Origin>> + Send>,
    /// The origin reads while the destination is written, and not after it.
    streams: bool,
}

fn pipes() -> Pair {
    let (reads, writes) = (0..SHARDS)
        .map(|n| {
            let (read, write) = std::io::pipe().unwrap();
            (
                (format!("pipe {n}"), OwnedFd::from(read)),
                (format!("pipe {n}"), OwnedFd::from(write)),
            )
        })
        .unzip();
    Pair {
        name: "pipe",
        destination: Box::new(PipeDestination::new(writes)),
        origin: Box::new(|| Ok(Box::new(PipeOrigin::new(reads)))),
        streams: true,
    }
}

fn files(dir: &Path) -> Pair {
    let dir = dir.join("image");
    Pair {
        name: "file",
        destination: Box::new(FileDestination::new(&dir, SHARDS, FileIo::default())),
        origin: Box::new(move || Ok(Box::new(FileOrigin::new(dir)))),
        streams: false,
    }
}

fn tcp() -> Pair {
    let timeouts = Timeouts {
        heartbeat: Duration::from_millis(100),
        silence: Duration::from_secs(2),
        ..Timeouts::default()
    };
    let origin = TcpOrigin::bind("127.0.0.1:0", timeouts).unwrap();
    let address = origin.local_addr().to_string();
    Pair {
        name: "tcp",
        destination: Box::new(TcpDestination::new(&address, SHARDS, timeouts).unwrap()),
        origin: Box::new(|| Ok(Box::new(origin))),
        streams: true,
    }
}

/// Another pair, at a rate that does not hold it up for long.
fn throttled(pair: Pair, name: &'static str) -> Pair {
    let rate = Rate::new(NonZeroU64::new(200 << 20).unwrap());
    let destination = Box::new(ThrottledDestination::new(pair.destination, rate));
    Pair { name, destination, ..pair }
}

fn with_each(case: impl Fn(Pair)) {
    let dir = tempfile::tempdir().unwrap();
    let slow_dir = dir.path().join("throttled");
    std::fs::create_dir(&slow_dir).unwrap();
    let throttled =
        [throttled(pipes(), "throttled pipe"), throttled(files(&slow_dir), "throttled file")];
    for pair in [pipes(), files(dir.path()), tcp()].into_iter().chain(throttled) {
        let (name, start) = (pair.name, Instant::now());
        case(pair);
        assert!(start.elapsed() < BOUND, "{name} took {:?}", start.elapsed());
    }
}

/// Reads an image to its end and tells its origin what became of it.
fn read(origin: Box<dyn FnOnce() -> Result<Box<dyn Origin>> + Send>) -> Result<Absorbed> {
    let mut origin = origin()?;
    let shards = origin.open()?;
    match verify(shards, &(Arc::new(|_, _| {}) as _)) {
        Ok(absorbed) => {
            origin.committed(absorbed.manifest.end.files, absorbed.manifest.end.raw_bytes)?;
            Ok(absorbed)
        }
        Err(error) => {
            let error = origin.explain(error);
            origin.failed(&error.report().to_string());
            Err(error)
        }
    }
}

/// The reader of a pair, at work if the pair streams.
enum Reader {
    Working(JoinHandle<Result<Absorbed>>),
    Later(Box<dyn FnOnce() -> Result<Box<dyn Origin>> + Send>),
}

impl Reader {
    fn start(origin: Box<dyn FnOnce() -> Result<Box<dyn Origin>> + Send>, streams: bool) -> Self {
        if streams {
            Reader::Working(std::thread::spawn(|| read(origin)))
        } else {
            Reader::Later(origin)
        }
    }

    fn end(self) -> Result<Absorbed> {
        match self {
            Reader::Working(thread) => thread.join().unwrap(),
            Reader::Later(origin) => read(origin),
        }
    }
}

/// An image of one file whose chunks go to the shards in turn.
struct Image {
    ring: Ring,
    shards: Vec<(Box<dyn ShardWriter>, ShardEncoder, BytesMut)>,
    whole: Crc32,
}

impl Image {
    fn open(destination: &mut dyn Destination) -> Self {
        let image = ImageId::random().unwrap();
        let writers: Vec<Box<dyn ShardWriter>> = destination.open(image).unwrap();
        let ring = Ring::new(CHUNK_BYTES, 40).unwrap();
        assert_eq!(writers.len(), SHARDS as usize);
        let shards = writers.into_iter().zip(0..).map(|(writer, shard)| {
            let mut out = BytesMut::new();
            let encoder = ShardEncoder::new(&Prologue { image, shard, shards: SHARDS }, &mut out);
            (writer, encoder, out)
        });
        Image { ring, shards: shards.collect(), whole: Crc32::default() }
    }

    fn write(&mut self, chunks: std::ops::Range<u64>) -> Result<()> {
        let name = FileName::new("pages-1.img").unwrap();
        for number in chunks {
            let mut chunk = self.ring.take(BOUND).unwrap();
            // Not all of the same length, so that files have to deal with what is not aligned.
            let len = if number % 3 == 2 { CHUNK_BYTES - 1000 } else { CHUNK_BYTES };
            for (at, word) in chunk.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&(number << 32 | at as u64).to_le_bytes());
            }
            let crc = Crc32::of(&chunk[..len]);
            let raw_len = u32::try_from(len).unwrap();
            let header = ChunkHeader {
                file: 0,
                offset: self.whole.len,
                raw_len,
                stored_len: raw_len,
                codec: Codec::Raw,
                crc: crc.value,
                pad: 0,
            };
            self.whole = self.whole.followed_by(crc);
            let turn = usize::try_from(number).unwrap() % self.shards.len();
            let (writer, encoder, out) = &mut self.shards[turn];
            if !encoder.knows(0) {
                encoder.file_begin(0, &name, out);
            }
            encoder.chunk(header, writer.payload_alignment(), out).unwrap();
            writer.write_chunk(out, Payload { chunk, len })?;
            out.clear();
        }
        Ok(())
    }

    fn finish(self) -> Result<u64> {
        for (number, (mut writer, mut encoder, mut out)) in self.shards.into_iter().enumerate() {
            if number == 0 {
                encoder.file_end(FileEnd { file: 0, checksum: self.whole }, &mut out);
            }
            let end = ImageEnd {
                files: 1,
                raw_bytes: self.whole.len,
                superseded: Vec::new(),
                created_unix_ms: 0,
                writer: "conformance".into(),
                shard_chunks: 0,
                shard_stored_bytes: 0,
            };
            encoder.image_end(end, &mut out);
            writer.write(&out)?;
            writer.finish()?;
        }
        Ok(self.whole.len)
    }
}

#[test]
fn what_is_committed_arrives_as_it_was_written() {
    with_each(|Pair { name, mut destination, origin, streams }| {
        let reader = Reader::start(origin, streams);
        assert_eq!(destination.shards(), SHARDS);
        let mut image = Image::open(destination.as_mut());
        image.write(0..CHUNKS).unwrap();
        destination.health().unwrap();
        let bytes = image.finish().unwrap();
        destination
            .commit(&mut || Ok(()))
            .unwrap_or_else(|error| panic!("{name}: {}", error.report()));
        let absorbed = reader.end().unwrap_or_else(|error| panic!("{name}: {}", error.report()));
        // The checksums of the chunks and of the file were verified on the way.
        assert_eq!(absorbed.manifest.end.raw_bytes, bytes, "{name}");
    });
}

#[test]
fn what_is_aborted_is_not_an_image() {
    with_each(|Pair { name, mut destination, origin, streams }| {
        let reader = Reader::start(origin, streams);
        let mut image = Image::open(destination.as_mut());
        image.write(0..CHUNKS / 2).unwrap();
        drop(image);
        destination.abort("the test wants it so");
        drop(destination);
        let error = reader.end().expect_err(name);
        assert!(!error.report().to_string().is_empty());
    });
}

#[test]
fn what_is_dropped_at_the_last_moment_is_not_an_image_in_a_store() {
    // A pipe is different: its reader has all of it before the commit, and there is nothing to take
    // back. Whoever reads a pipe learns the writer's fate from the writer's exit status.
    let dir = tempfile::tempdir().unwrap();
    for Pair { name, mut destination, origin, streams } in [files(dir.path()), tcp()] {
        let reader = Reader::start(origin, streams);
        let mut image = Image::open(destination.as_mut());
        image.write(0..CHUNKS).unwrap();
        image.finish().unwrap();
        drop(destination);
        assert!(reader.end().is_err(), "{name}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn a_reader_that_dies_is_noticed_and_named() {
    for Pair { name, mut destination, origin, .. } in
        [pipes(), tcp(), throttled(pipes(), "throttled pipe")]
    {
        let reader = std::thread::spawn(move || {
            let mut origin = origin()?;
            let shards = origin.open()?;
            std::thread::sleep(Duration::from_millis(200));
            drop((shards, origin));
            Ok::<_, Error>(())
        });
        let start = Instant::now();
        let mut image = Image::open(destination.as_mut());
        let failed = loop {
            if let Err(error) = image.write(0..1) {
                break destination.explain(error);
            }
            assert!(start.elapsed() < BOUND, "{name}: the writer noticed nothing");
        };
        let message = failed.report().to_string();
        let named = if name.ends_with("pipe") { "pipe " } else { "127.0.0.1" };
        assert!(message.contains(named), "{name}: {message}");
        reader.join().unwrap().unwrap();
    }
}
