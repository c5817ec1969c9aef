//! GPU contents through whole images: packed, carried, absorbed, on simulated GPUs.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use vramstream::{
    device::{
        Driver,
        sim::{BoPlan, Fill, Machine, Profile},
    },
    gpu::{self, Contents},
    ring::{Budget, Ring},
    stage::Compression,
};

use super::*;
use crate::{
    error::{Error, Result},
    format::ImageId,
    payload::Payload,
    progress::Progress,
    rig::{Source, State, Target},
    transport::{
        Destination, Origin, ShardReader, ShardWriter,
        pipe::{PipeDestination, PipeOrigin},
    },
};

mod causes;
mod damage;
mod hostile;
mod moves;
mod place;

/// A process on so many GPUs, with memory of all kinds.
fn source(gpus: u32) -> Source {
    let plan = (0..gpus as usize).flat_map(|gpu| {
        [
            BoPlan::vram(gpu, 3 << 20),
            BoPlan::vram(gpu, 4096),
            BoPlan::gtt(gpu, 300 << 10),
            BoPlan::vram(gpu, 2 << 20),
        ]
    });
    let plan: Vec<_> = plan.collect();
    Source::start(machine(gpus), &plan, |bo| match bo % 3 {
        0 => Fill::HalfZeros(bo),
        1 => Fill::Random(bo),
        _ => Fill::Bf16(bo),
    })
    .unwrap()
}

fn machine(gpus: u32) -> Machine {
    Machine::new(&Profile::gfx90a(), gpus).vram_bytes(256 << 20)
}

fn options(ring: Ring) -> Options {
    let gpu = gpu::Options {
        fence_deadline: Duration::from_secs(5),
        grace: Duration::from_secs(5),
        ..gpu::Options::default()
    };
    Options { ring, id: 7, compression: Compression::None, index_bytes: 16 << 20, gpu }
}

fn ring_of(cap: &str, gpus: usize) -> Ring {
    Budget::parse(cap).unwrap().ring(gpus).unwrap()
}

/// All chunks come back, though threads that have been given up may take a moment.
fn assert_all_back(ring: &Ring) {
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while ring.free() < ring.chunks() && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(ring.free(), ring.chunks());
}

fn dump_to(
    source: &Source,
    contents: Vec<Contents>,
    destination: Box<dyn Destination>,
    options: &Options,
) -> Result<Moved> {
    dump(&source.driver(), contents, destination, options, || Ok(()), &Progress::silent())
}

fn restore_from(
    target: &Target,
    places: Vec<Contents>,
    origin: &mut dyn Origin,
    options: &Options,
) -> Result<Moved> {
    restore(&target.driver(), places, origin, options, || Ok(()), &Progress::silent())
}

/// Shards in memory.
#[derive(Debug, Default)]
struct Kept {
    shards: Vec<Mutex<Vec<u8>>>,
    committed: AtomicBool,
    /// Payloads that were not in a chunk of this ring.
    ring: Option<Ring>,
    strange: AtomicBool,
}

struct Memory(Arc<Kept>);
struct MemoryShard(Arc<Kept>, usize);

fn memory(shards: usize, ring: Option<&Ring>) -> (Box<Memory>, Arc<Kept>) {
    let kept = Arc::new(Kept {
        shards: (0..shards).map(|_| Mutex::default()).collect(),
        ring: ring.cloned(),
        ..Kept::default()
    });
    (Box::new(Memory(Arc::clone(&kept))), kept)
}

impl Destination for Memory {
    fn shards(&self) -> u32 {
        u32::try_from(self.0.shards.len()).unwrap()
    }

    fn open(&mut self, _: ImageId) -> Result<Vec<Box<dyn ShardWriter>>> {
        let shard = |number| Box::new(MemoryShard(Arc::clone(&self.0), number)) as Box<_>;
        Ok((0..self.0.shards.len()).map(shard).collect())
    }

    fn commit(&mut self, _: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.0.committed.store(true, Ordering::Release);
        Ok(())
    }

    fn abort(&mut self, _: &str) {}
}

impl ShardWriter for MemoryShard {
    fn describe(&self) -> &str {
        "a shard in memory"
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.shards[self.1].lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn write_chunk(&mut self, head: &[u8], payload: Payload) -> Result<()> {
        if self.0.ring.as_ref().is_some_and(|ring| !payload.chunk.is_of(ring)) {
            self.0.strange.store(true, Ordering::Release);
        }
        self.write(head)?;
        self.write(payload.bytes())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The same shards, read.
struct Image(Vec<Vec<u8>>);

impl Kept {
    fn image(&self) -> Image {
        assert!(self.committed.load(Ordering::Acquire));
        Image(self.shards.iter().map(|shard| shard.lock().unwrap().clone()).collect())
    }
}

struct Bytes(std::io::Cursor<Vec<u8>>);

impl std::io::Read for Bytes {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buf)
    }
}

impl ShardReader for Bytes {
    fn describe(&self) -> &str {
        "a shard in memory"
    }
}

impl Origin for Image {
    fn open(&mut self) -> Result<Vec<Box<dyn ShardReader>>> {
        let open = |bytes| Box::new(Bytes(std::io::Cursor::new(bytes))) as Box<dyn ShardReader>;
        Ok(self.0.drain(..).map(open).collect())
    }
}

/// Dumps a process into memory.
fn dumped(source: &Source, shards: usize, options: &Options) -> (State, Image) {
    let paused = source.pause().unwrap();
    let (state, contents) = source.divide(paused.checkpoint().unwrap()).unwrap();
    let (destination, kept) = memory(shards, None);
    dump_to(source, contents, destination, options).unwrap();
    paused.unpause().unwrap();
    (state, kept.image())
}
