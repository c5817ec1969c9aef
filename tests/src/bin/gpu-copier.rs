//! Fills the VRAM of simulated GPUs that live in another process, dumps it through checksums and
//! shards, and checks every word on the way: for tests that limit what this needs itself.
//!
//! ```text
//! gpu-copier SOCKET GPUS VRAM BO        gpu-copier /tmp/gpus.sock 1 8G 2G
//! ```
//!
//! `KFD_MAX_BUFFER_SIZE` limits its chunks. Prints its peak memory in bytes.
#![forbid(unsafe_code)]

use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

use nix::sys::resource::{UsageWho, getrusage};
use vramstream::{
    abi::amdgpu::domain,
    device::{
        Driver, RenderNode, SocketDriver,
        sim::{Machine, Profile},
    },
    gpu::{self, Bo, Contents, Drain, DumpJob, Restore, RestoreJob, Write},
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

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long a ring may be empty before that counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);
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
    let renders = machine.gpus.iter().map(|gpu| {
        let render = RenderNode::open(&*driver, &gpu.render_node())?;
        let handles = (0..vram / bo).map(|_| render.create(bo, domain::VRAM));
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        Ok((gpu.render_node(), render, handles))
    });
    let renders = renders.collect::<Answer<Vec<_>>>()?;
    let contents = || -> Answer<Vec<Contents>> {
        let contents = (1..).zip(&renders).map(|(gpu_id, (node, render, handles))| {
            let bos =
                handles.iter().map(|&handle| Ok(Bo { size: bo, dma_buf: render.export(handle)? }));
            Ok(Contents { gpu_id, node: node.clone().into(), bos: bos.collect::<Answer<_>>()? })
        });
        contents.collect()
    };
    let ring = Budget::from_env()?.ring(renders.len())?;
    fill(&driver, &ring, contents()?)?;
    dump(&driver, &ring, contents()?)?;
    for (_, render, handles) in &renders {
        handles.iter().try_for_each(|&handle| render.close(handle))?;
    }
    let kilobytes = getrusage(UsageWho::RUSAGE_SELF)?.max_rss();
    Ok(u64::try_from(kilobytes)? << 10)
}

/// What a word of the contents is.
fn word(gpu_id: u32, place: u64) -> u64 {
    (place | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(gpu_id)
}

fn words(gpu_id: u32, offset: u64) -> impl Iterator<Item = [u8; 8]> {
    (offset / 8..).map(move |place| word(gpu_id, place).to_le_bytes())
}

fn fill(driver: &Arc<dyn Driver>, ring: &Ring, contents: Vec<Contents>) -> Answer<()> {
    let gpus: Vec<_> = contents
        .iter()
        .map(|contents| (contents.gpu_id, contents.bytes().unwrap_or_default()))
        .collect();
    let jobs = contents.into_iter().map(|contents| RestoreJob { contents }).collect();
    let (restore, senders) =
        Restore::<StreamerError>::start(driver, ring, jobs, gpu::Options::default())?;
    std::thread::scope(|scope| {
        let feeders = gpus.into_iter().zip(senders).map(|((gpu_id, bytes), sender)| {
            scope.spawn(move || -> Answer<()> {
                for offset in (0..bytes).step_by(ring.chunk_bytes()) {
                    let mut chunk = ring.take(PATIENCE).ok_or("no chunk comes back")?;
                    let len = chunk.len().min(usize::try_from(bytes - offset)?);
                    let (to, _) = chunk[..len].as_chunks_mut();
                    to.iter_mut().zip(words(gpu_id, offset)).for_each(|(to, word)| *to = word);
                    sender.send_timeout(Write::Bytes { offset, chunk, range: 0..len }, PATIENCE)?;
                }
                Ok(())
            })
        });
        let feeders: Vec<_> = feeders.collect();
        feeders.into_iter().try_for_each(|feeder| feeder.join().map_err(|_| "a panic")?)
    })?;
    restore.finish(&mut || Ok(()))?;
    Ok(())
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
