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

mod failures;
mod whole;

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
