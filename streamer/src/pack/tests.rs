//! Images that were fed by several threads, and what becomes of them when something fails.

use std::{
    collections::BTreeMap,
    io::Read,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use vramstream::ring::{Ring, page_bytes};

use super::*;
use crate::{
    absorb::{ImageSink, Lane, absorb},
    format::{ChunkHeader, Codec, FileName, ImageError},
    payload::Payload,
    transport::{ShardReader, ShardWriter},
};

/// Nothing here may hang.
const PATIENCE: Duration = Duration::from_secs(20);
const CHUNK: usize = 16 << 10;

/// What happened to a [`Place`].
#[derive(Debug, Default)]
struct Fate {
    shards: Vec<Mutex<Vec<u8>>>,
    committed: AtomicBool,
    aborted: Mutex<Option<String>>,
    /// While this is set, shards take nothing.
    stuck: AtomicBool,
}

/// How a shard behaves after so many bytes.
#[derive(Debug, Clone, Copy)]
enum After {
    Nothing,
    Fail(usize),
    Panic(usize),
    Stick(usize),
}

/// A destination in memory.
struct Place {
    fate: Arc<Fate>,
    after: After,
}

struct Shard {
    fate: Arc<Fate>,
    number: usize,
    after: After,
}

fn place(shards: usize, after: After) -> (Box<Place>, Arc<Fate>) {
    let fate = Arc::new(Fate {
        shards: (0..shards).map(|_| Mutex::default()).collect(),
        ..Fate::default()
    });
    (Box::new(Place { fate: Arc::clone(&fate), after }), fate)
}

impl Destination for Place {
    fn shards(&self) -> u32 {
        u32::try_from(self.fate.shards.len()).unwrap()
    }

    fn open(&mut self, _: ImageId) -> Result<Vec<Box<dyn ShardWriter>>> {
        let shard = |number| Shard { fate: Arc::clone(&self.fate), number, after: self.after };
        Ok((0..self.fate.shards.len()).map(|number| Box::new(shard(number)) as _).collect())
    }

    fn commit(&mut self, _: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.fate.committed.store(true, Ordering::Release);
        Ok(())
    }

    fn abort(&mut self, reason: &str) {
        *self.fate.aborted.lock().unwrap() = Some(reason.to_owned());
    }
}

impl ShardWriter for Shard {
    fn describe(&self) -> &str {
        "the place"
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let so_far = self.fate.shards[self.number].lock().unwrap().len();
        match self.after {
            After::Fail(after) if so_far >= after => {
                let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
                return Err(Error::io(|| "write to the place")(full));
            }
            After::Panic(after) if so_far >= after => panic!("on purpose"),
            After::Stick(after) if so_far >= after => {
                while self.fate.stuck.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            _ => {}
        }
        self.fate.shards[self.number].lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn write_chunk(&mut self, head: &[u8], payload: Payload) -> Result<()> {
        self.write(head)?;
        self.write(payload.bytes())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Fate {
    /// Reads what was written.
    fn read(&self) -> Result<BTreeMap<String, Vec<u8>>> {
        let shards = self.shards.iter().map(|shard| {
            let bytes = std::io::Cursor::new(shard.lock().unwrap().clone());
            Box::new(Bytes(bytes)) as Box<dyn ShardReader>
        });
        let files = Arc::new(Files::default());
        let absorbed =
            absorb(shards.collect(), &files, &(Arc::new(|_, _| {}) as _), &mut || Ok(()))?;
        let mut kept = std::mem::take(&mut *files.0.lock().unwrap());
        Ok(absorbed
            .manifest
            .files
            .iter()
            .map(|file| (file.name.to_string(), kept.remove(&file.file).unwrap_or_default()))
            .collect())
    }
}

struct Bytes(std::io::Cursor<Vec<u8>>);

impl Read for Bytes {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buf)
    }
}

impl ShardReader for Bytes {
    fn describe(&self) -> &str {
        "what was written"
    }
}

#[derive(Default)]
struct Files(Mutex<BTreeMap<u32, Vec<u8>>>);

struct FilesLane(Arc<Files>, Vec<u8>);

impl ImageSink for Files {
    type Lane = FilesLane;

    fn lane(self: &Arc<Self>) -> Result<FilesLane> {
        Ok(FilesLane(Arc::clone(self), Vec::new()))
    }

    fn file_begin(&self, _: u32, _: &FileName) -> Result<()> {
        Ok(())
    }
}

impl Lane for FilesLane {
    fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        self.1.resize(len, 0);
        Ok(&mut self.1)
    }

    fn chunk(&mut self, header: &ChunkHeader, decompressed: Option<&[u8]>) -> Result<()> {
        let mut files = self.0.0.lock().unwrap();
        let file = files.entry(header.file).or_default();
        let [from, to] = [header.offset, header.end()].map(|at| usize::try_from(at).unwrap());
        file.resize(file.len().max(to), 0);
        if header.codec != Codec::Zero {
            file[from..to].copy_from_slice(decompressed.unwrap_or(&self.1));
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        Ok(())
    }
}

fn ring(chunks: usize) -> Memory {
    Memory::Ring { ring: Ring::new(CHUNK, chunks).unwrap(), index_bytes: 1 << 20 }
}

fn start(place: Box<Place>, memory: Memory, compression: Compression) -> Packer {
    started(place, memory, compression, StageThreads::Checksum, || Ok(()))
}

fn started(
    place: Box<Place>,
    memory: Memory,
    compression: Compression,
    stages: StageThreads,
    check: impl Fn() -> Result<()> + Send + Sync + 'static,
) -> Packer {
    let options = Options { compression, memory, stages };
    Packer::start(place, options, check, &Progress::silent()).unwrap()
}

fn name(name: &str) -> FileName {
    FileName::new(name).unwrap()
}

/// Zeros, text and noise in turn, of a length that is no multiple of anything.
fn contents(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed | 1;
    let piece = |at: usize, x: &mut u64| match at / (3 * CHUNK) % 3 {
        0 => 0,
        1 => b"all work and no play "[at % 21],
        _ => {
            *x ^= *x << 13;
            *x ^= *x >> 7;
            *x ^= *x << 17;
            x.to_le_bytes()[0]
        }
    };
    (0..len).map(|at| piece(at, &mut x)).collect()
}

fn payload(feed: &Feed, bytes: &[u8]) -> Result<Payload> {
    let mut payload = feed.take()?;
    payload.chunk[..bytes.len()].copy_from_slice(bytes);
    payload.len = bytes.len();
    Ok(payload)
}

/// Fails if the closure takes too long; it is left behind then.
fn soon<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = crossbeam_channel::bounded(1);
    std::thread::spawn(move || {
        let _ = done.send(run());
    });
    outcome.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} did not end well in time"))
}

#[test]
fn files_fed_by_several_threads_arrive_whole() {
    for compression in [Compression::None, Compression::Lz4, Compression::Auto] {
        for stages in [StageThreads::Compress, StageThreads::Checksum] {
            for memory in [Memory::Budget(4 << 20), ring(8), ring(1)] {
                arrives(compression, stages, memory);
            }
        }
    }
}

fn arrives(compression: Compression, stages: StageThreads, memory: Memory) {
    let (place, fate) = place(2, After::Nothing);
    let mut packer = started(place, memory, compression, stages, || Ok(()));
    let sizes = [0, 1, 40 * CHUNK + 7, 9 * CHUNK];
    let files: Vec<_> = (0..).zip(sizes).map(|(n, size)| (n, contents(n.into(), size))).collect();
    let feed = packer.feed();
    let handles: Vec<_> =
        files.iter().map(|(n, _)| feed.file(*n, name(&format!("file-{n}")))).collect();
    // Ends before, between and after the chunks.
    feed.end(&handles[2], sizes[2] as u64).unwrap();
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (mut feed, files, handles) = (feed.clone(), &files, &handles);
            scope.spawn(move || {
                for ((_, bytes), handle) in files.iter().zip(handles) {
                    let chunks = bytes.chunks(CHUNK).enumerate();
                    for (at, bytes) in chunks.filter(|(at, _)| at % 3 == worker) {
                        let offset = (at * CHUNK) as u64;
                        let payload = payload(&feed, bytes).unwrap();
                        if at % 2 == 0 {
                            feed.chunk(handle, offset, payload).unwrap();
                        } else {
                            feed.chunk_later(handle, offset, payload).unwrap();
                        }
                    }
                }
            });
        }
    });
    for n in [0, 1, 3] {
        feed.end(&handles[n], sizes[n] as u64).unwrap();
    }
    let raw_bytes = sizes.iter().sum::<usize>() as u64;
    // The feed is still there, and so are its clones' files: nothing waits for them to go.
    let totals = Totals { files: 4, raw_bytes, superseded: Vec::new() };
    let (stats, taken) = soon("a commit", move || {
        let stats = packer.commit(&totals).unwrap();
        (stats, packer.feed().ring().free() == packer.feed().ring().chunks())
    });
    assert!(taken, "a chunk was not given back");
    assert!(fate.committed.load(Ordering::Acquire));
    let stored: u64 = stats.iter().map(|shard| shard.bytes).sum();
    assert_eq!(stored, fate.shards.iter().map(|s| s.lock().unwrap().len() as u64).sum::<u64>());
    if compression == Compression::Lz4 {
        assert!(stored < raw_bytes * 4 / 10, "a third is noise, the rest shrinks: {stored}");
    }
    let got = fate.read().unwrap();
    for (n, bytes) in files {
        assert!(got[&format!("file-{n}")] == bytes, "file {n} under {compression:?}, {stages:?}");
    }
}

#[test]
fn chunks_of_another_ring_and_another_size_are_taken_as_well() {
    let (place, fate) = place(1, After::Nothing);
    let mut packer = start(place, ring(8), Compression::Lz4);
    let other = Ring::new(8 * CHUNK, 2).unwrap();
    let mut feed = packer.feed();
    let file = feed.file(0, name("gpu"));
    let bytes = contents(1, 64 * CHUNK);
    for (at, bytes) in (0..).zip(bytes.chunks(8 * CHUNK)) {
        let mut chunk = other.take(PATIENCE).unwrap();
        chunk.copy_from_slice(bytes);
        let payload = Payload { len: chunk.len(), chunk };
        feed.chunk_later(&file, at * 8 * CHUNK as u64, payload).unwrap();
    }
    feed.end(&file, bytes.len() as u64).unwrap();
    let raw_bytes = bytes.len() as u64;
    let stats = packer.commit(&Totals { files: 1, raw_bytes, superseded: Vec::new() }).unwrap();
    assert!(stats[0].bytes < raw_bytes * 6 / 10, "text is compressed: {}", stats[0].bytes);
    assert_eq!(other.free(), 2);
    assert!(fate.read().unwrap()["gpu"] == bytes);
}

#[test]
fn an_image_with_a_file_that_has_not_ended_is_not_committed() {
    for missing in ["the end", "a chunk"] {
        let (place, fate) = place(1, After::Nothing);
        let mut packer = start(place, ring(8), Compression::None);
        let mut feed = packer.feed();
        let file = feed.file(0, name("half"));
        feed.chunk(&file, 0, payload(&feed, b"half").unwrap()).unwrap();
        if missing == "a chunk" {
            feed.end(&file, 8).unwrap();
        }
        let totals = Totals { files: 1, raw_bytes: 4, superseded: Vec::new() };
        let error = packer.commit(&totals).expect_err(missing);
        assert!(matches!(error, Error::DumpIncomplete(_)), "{error}");
        packer.abort("it is not whole");
        assert!(!fate.committed.load(Ordering::Acquire));
        let read = fate.read().expect_err(missing).report().to_string();
        assert!(read.contains("it is not whole"), "{read}");
    }
}

#[test]
fn what_comes_after_the_end_is_refused_and_so_is_what_comes_twice() {
    let (place, _) = place(1, After::Nothing);
    let mut packer = start(place, ring(8), Compression::None);
    let mut feed = packer.feed();
    let file = feed.file(0, name("one"));
    feed.end(&file, 0).unwrap();
    packer.commit(&Totals { files: 1, raw_bytes: 0, superseded: Vec::new() }).unwrap();
    let error = feed.chunk(&file, 0, payload(&feed, b"late").unwrap()).unwrap_err();
    assert!(matches!(error, Error::GivenUp), "{error}");
    let error = packer.explain(error);
    assert!(matches!(&error, Error::DumpIncomplete(what) if what.contains("one")), "{error}");

    let twice: [fn(&mut Feed, &FileHandle) -> Result<()>; 2] = [
        |feed, file| feed.chunk(file, 2, payload(feed, b"cd").unwrap()),
        |feed, file| feed.end(file, 4),
    ];
    for again in twice {
        let (place, _) = self::place(1, After::Nothing);
        let mut packer = start(place, ring(8), Compression::None);
        let mut feed = packer.feed();
        let file = feed.file(0, name("two"));
        feed.chunk(&file, 0, payload(&feed, b"abcd").unwrap()).unwrap();
        feed.end(&file, 4).unwrap();
        let error = again(&mut feed, &file).unwrap_err();
        let error = packer.explain(error);
        let two = |name: &FileName| name.as_str() == "two";
        assert!(
            matches!(&error, Error::Image(ImageError::Overlap { name, .. } | ImageError::EndTwice(name)) if two(name)),
            "{error}"
        );
    }
}

#[test]
fn a_chunk_without_bytes_fails_the_image() {
    for later in [false, true] {
        let (place, fate) = place(1, After::Nothing);
        let mut packer = start(place, ring(8), Compression::None);
        let mut feed = packer.feed();
        let file = feed.file(0, name("empty"));
        feed.end(&file, 0).unwrap();
        let empty = payload(&feed, &[]).unwrap();
        let _ = if later { feed.chunk_later(&file, 0, empty) } else { feed.chunk(&file, 0, empty) };
        let totals = Totals { files: 1, raw_bytes: 0, superseded: Vec::new() };
        assert!(packer.commit(&totals).is_err());
        assert!(!fate.committed.load(Ordering::Acquire));
    }
}

/// Feeds until there is an error.
fn feed_until_error(mut feed: Feed, file: &FileHandle, later: bool, other: Option<&Ring>) -> Error {
    let start = Instant::now();
    for at in (0..).step_by(CHUNK) {
        let payload = match other {
            None => payload(&feed, &[7; CHUNK]),
            Some(ring) => {
                let mut chunk = ring.take(PATIENCE).unwrap();
                chunk.fill(7);
                Ok(Payload { len: chunk.len(), chunk })
            }
        };
        let fed = payload.and_then(|payload| match later {
            true => feed.chunk_later(file, at, payload),
            false => feed.chunk(file, at, payload),
        });
        if let Err(error) = fed {
            return error;
        }
        assert!(start.elapsed() < PATIENCE, "nothing is noticed");
    }
    unreachable!()
}

#[test]
fn a_shard_that_fails_ends_every_feed_and_the_packer_knows_why() {
    for after in [After::Fail(5 * CHUNK), After::Panic(5 * CHUNK)] {
        let (place, fate) = place(2, after);
        let packer = start(place, ring(8), Compression::Auto);
        let feeds: Vec<_> = (0..4)
            .map(|n| {
                let feed = packer.feed();
                let file = feed.file(n, name(&format!("file-{n}")));
                std::thread::spawn(move || feed_until_error(feed, &file, n % 2 == 0, None))
            })
            .collect();
        let (errors, mut packer) = soon("a feed", move || {
            let errors: Vec<_> = feeds.into_iter().map(|feed| feed.join().unwrap()).collect();
            (errors, packer)
        });
        assert!(errors.iter().all(|error| matches!(error, Error::GivenUp)), "{errors:?}");
        let cause = packer.explain(Error::GivenUp);
        let expected = match after {
            After::Fail(_) => {
                matches!(&cause, Error::Io { doing, .. } if doing.contains("the place"))
            }
            _ => matches!(&cause, Error::Panicked(thread) if thread == "shard"),
        };
        assert!(expected, "{cause:?}");
        soon("an abort", move || packer.abort("it failed"));
        assert_eq!(fate.aborted.lock().unwrap().as_deref(), Some("it failed"));
        assert!(fate.read().is_err());
    }
}

/// Says once, to whoever asks first, that a signal has come.
fn signalled() -> impl Fn() -> Result<()> + Send + Sync + 'static {
    let signal = AtomicBool::new(true);
    move || {
        let told = !signal.swap(false, Ordering::AcqRel);
        told.then_some(()).ok_or(Error::Interrupted("SIGTERM"))
    }
}

#[test]
fn a_shard_that_is_stuck_hangs_nobody() {
    // Chunks of another ring fill the queues; the packer's own are all out before that.
    for (own_chunks, later, compression) in [
        (true, false, Compression::None),
        (false, false, Compression::None),
        (false, true, Compression::Lz4),
    ] {
        let (place, fate) = place(1, After::Stick(0));
        fate.stuck.store(true, Ordering::Release);
        let memory = ring(if own_chunks { 8 } else { 1 });
        let mut packer = started(place, memory, compression, StageThreads::Checksum, signalled());
        let other = (!own_chunks).then(|| Ring::new(CHUNK, 64).unwrap());
        let feeds: Vec<_> = (0..3)
            .map(|n| {
                let (feed, other) = (packer.feed(), other.clone());
                let file = feed.file(n, name(&format!("file-{n}")));
                std::thread::spawn(move || feed_until_error(feed, &file, later, other.as_ref()))
            })
            .collect();
        let cause = soon("a feed", move || {
            let errors: Vec<_> = feeds.into_iter().map(|feed| feed.join().unwrap()).collect();
            assert!(errors.iter().all(|error| matches!(error, Error::GivenUp)), "{errors:?}");
            let cause = packer.explain(Error::GivenUp);
            packer.abort("interrupted");
            cause
        });
        assert!(matches!(cause, Error::Interrupted("SIGTERM")), "{cause:?}");
        assert!(fate.aborted.lock().unwrap().is_some());
        fate.stuck.store(false, Ordering::Release);
    }
}

#[test]
fn a_commit_to_a_shard_that_is_stuck_can_be_stopped() {
    let (place, fate) = place(1, After::Stick(0));
    fate.stuck.store(true, Ordering::Release);
    let mut packer =
        started(place, ring(8), Compression::None, StageThreads::Compress, signalled());
    let mut feed = packer.feed();
    let file = feed.file(0, name("one"));
    feed.chunk(&file, 0, payload(&feed, b"abcd").unwrap()).unwrap();
    feed.end(&file, 4).unwrap();
    let error = soon("a commit", move || {
        let totals = Totals { files: 1, raw_bytes: 4, superseded: Vec::new() };
        let error = packer.commit(&totals).unwrap_err();
        packer.abort("interrupted");
        error
    });
    assert!(matches!(error, Error::Interrupted("SIGTERM")), "{error:?}");
    fate.stuck.store(false, Ordering::Release);
    assert!(!fate.committed.load(Ordering::Acquire));
}

#[test]
fn an_abort_reaches_the_shards_though_feeds_are_left() {
    let (place, fate) = place(2, After::Nothing);
    let mut packer = start(place, ring(8), Compression::Lz4);
    let mut feed = packer.feed();
    let file = feed.file(0, name("one"));
    feed.chunk(&file, 0, payload(&feed, b"abcd").unwrap()).unwrap();
    packer.abort("the device is gone");
    let error = fate.read().unwrap_err().report().to_string();
    assert!(error.contains("the device is gone"), "{error}");
    assert_eq!(fate.aborted.lock().unwrap().as_deref(), Some("the device is gone"));
    assert!(feed.chunk(&file, 4, payload(&feed, b"efgh").unwrap()).is_err());
}

#[test]
fn a_feed_that_fails_fails_the_image() {
    let (place, fate) = place(1, After::Nothing);
    let mut packer = start(place, ring(8), Compression::None);
    packer.feed().fail(Error::Faulty("the memory of GPU 3"));
    assert!(matches!(packer.feed().go_on(), Err(Error::GivenUp)));
    let totals = Totals { files: 0, raw_bytes: 0, superseded: Vec::new() };
    let error = packer.commit(&totals).unwrap_err();
    assert!(matches!(error, Error::Faulty("the memory of GPU 3")), "{error:?}");
    assert!(!fate.committed.load(Ordering::Acquire));
}

#[test]
fn what_is_dropped_is_not_an_image() {
    let (place, fate) = place(2, After::Nothing);
    let packer = start(place, ring(8), Compression::None);
    let feed = packer.feed();
    let file = feed.file(0, name("one"));
    feed.end(&file, 0).unwrap();
    drop(packer);
    assert!(feed.end(&file, 0).is_err());
    assert!(fate.read().is_err());
    assert!(!fate.committed.load(Ordering::Acquire));
}

#[test]
fn a_budget_of_too_few_pages_is_refused() {
    for (bytes, fits) in [(31 * page_bytes(), false), (32 * page_bytes(), true)] {
        let (place, _) = place(1, After::Nothing);
        let options = Options {
            compression: Compression::None,
            memory: Memory::Budget(bytes as u64),
            stages: StageThreads::Compress,
        };
        let packer = Packer::start(place, options, || Ok(()), &Progress::silent());
        assert_eq!(packer.is_ok(), fits, "{bytes}");
    }
}
