//! Fills the VRAM of simulated GPUs that live in another process, dumps it through checksums and
//! shards, and checks every word on the way: for tests that limit what this needs itself.
//!
//! ```text
//! gpu-copier SOCKET GPUS VRAM BO        gpu-copier /tmp/gpus.sock 1 8G 2G
//! ```
//!
//! `KFD_MAX_BUFFER_SIZE` limits its chunks. Prints its peak memory in bytes.
#![forbid(unsafe_code)]

use std::{error::Error, process::ExitCode, sync::Arc};

use nix::sys::resource::{UsageWho, getrusage};
use vramstream::{
    device::{
        Driver, SocketDriver,
        sim::{Machine, Profile},
    },
    gpu::{self, Contents, Drain, DumpJob},
    ring::{Budget, ByteSize, Chunk, Ring},
    stage::Compression,
};
use vramstream_streamer::{
    Error as StreamerError,
    pack::{Memory, Options, Packer, StageThreads, Totals},
    progress::Progress,
    transport::null::NullDestination,
    vram::{PagesFile, VramFeed},
};
use vramstream_tests::machine::memory::{GpuMemory, words};

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

const INDEX_BYTES: usize = 4 << 20;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let answer = match args.as_slice() {
        [socket, gpus, vram, bo] => run(socket, gpus, vram, bo),
        _ => Err("usage: gpu-copier SOCKET GPUS VRAM BO".into()),
    };
    match answer {
        Ok(peak) => {
            println!("{peak}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("gpu-copier: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(socket: &str, gpus: &str, vram: &str, bo: &str) -> Answer<u64> {
    let (ByteSize(vram), ByteSize(bo)) = (vram.parse()?, bo.parse()?);
    let gpus: u32 = gpus.parse()?;
    let machine = Machine::new(&Profile::gfx90a(), gpus);
    let driver: Arc<dyn Driver> = Arc::new(SocketDriver::new(socket));
    let memory = GpuMemory::create(&*driver, &machine, vram / bo, bo)?;
    let ring = Budget::from_env()?.ring(machine.gpus.len())?;
    memory.fill(&driver, &ring)?;
    dump(&driver, &ring, memory.contents()?)?;
    memory.free()?;
    let kilobytes = getrusage(UsageWho::RUSAGE_SELF)?.max_rss();
    Ok(u64::try_from(kilobytes)? << 10)
}

fn dump(driver: &Arc<dyn Driver>, ring: &Ring, contents: Vec<Contents>) -> Answer<()> {
    let options = Options {
        compression: Compression::None,
        memory: Memory::Ring { ring: ring.clone(), index_bytes: INDEX_BYTES },
        stages: StageThreads::Checksum,
    };
    let destination = Box::new(NullDestination::new(2));
    let mut packer = Packer::start(destination, options, || Ok(()), &Progress::silent())?;
    let mut totals = Totals::default();
    let mut jobs = Vec::new();
    for contents in contents {
        let gpu_id = contents.gpu_id;
        let bytes = contents.bytes().ok_or("too many bytes")?;
        let feed =
            VramFeed::begin(packer.feed(), totals.files, PagesFile { id: 1, gpu_id }, bytes)?;
        totals.files += 1;
        totals.raw_bytes += feed.file_bytes();
        jobs.push(DumpJob { contents, drain: Check { gpu_id, feed } });
    }
    gpu::dump(driver, ring, jobs, gpu::Options::default(), &mut || packer.health())?;
    packer.commit(&totals)?;
    Ok(())
}

/// Checks the contents on their way.
struct Check {
    gpu_id: u32,
    feed: VramFeed,
}

impl Drain for Check {
    type Error = StreamerError;

    fn chunk(&mut self, offset: u64, chunk: Chunk, len: usize) -> Result<(), StreamerError> {
        let (got, _) = chunk[..len].as_chunks();
        if let Some(at) = got.iter().zip(words(self.gpu_id, offset)).position(|(l, r)| *l != r) {
            let what =
                format!("the word at {} of GPU {} is wrong", offset + 8 * at as u64, self.gpu_id);
            return Err(StreamerError::DumpIncomplete(what));
        }
        self.feed.chunk(offset, chunk, len)
    }

    fn end(&mut self, bytes: u64) -> Result<(), StreamerError> {
        self.feed.end(bytes)
    }
}
