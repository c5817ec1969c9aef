//! Memory on all GPUs of a simulated machine, filled by SDMA: something to copy, without a process
//! that is checkpointed.

use std::{error::Error, path::PathBuf, sync::Arc, time::Duration};

use vramstream::{
    abi::amdgpu::domain,
    device::{Driver, RenderNode, sim::Machine},
    gpu::{self, Bo, Contents, Restore, RestoreJob, Write},
    ring::Ring,
};
use vramstream_streamer::Error as StreamerError;

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long a ring may be empty before that counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the [module](self). It is there until it is [freed](GpuMemory::free).
#[derive(Debug)]
pub struct GpuMemory {
    gpus: Vec<(PathBuf, RenderNode, Vec<u32>)>,
    bo_bytes: u64,
}

impl GpuMemory {
    /// So many BOs of this size on each GPU.
    pub fn create(driver: &dyn Driver, machine: &Machine, bos: u64, bo_bytes: u64) -> Answer<Self> {
        let gpus = machine.gpus.iter().map(|gpu| {
            let path = gpu.render_node();
            let render = RenderNode::open(driver, &path)?;
            let handles = (0..bos).map(|_| render.create(bo_bytes, domain::VRAM));
            let handles = handles.collect::<Result<_, _>>()?;
            Ok((path, render, handles))
        });
        Ok(GpuMemory { gpus: gpus.collect::<Answer<_>>()?, bo_bytes })
    }

    /// All of it, for a copy. GPUs are called 1, 2, and so on.
    pub fn contents(&self) -> Answer<Vec<Contents>> {
        let contents = (1..).zip(&self.gpus).map(|(gpu_id, (node, render, handles))| {
            let bo = |&handle| Ok(Bo { size: self.bo_bytes, dma_buf: render.export(handle)? });
            let bos = handles.iter().map(bo).collect::<Answer<_>>()?;
            Ok(Contents { gpu_id, node: node.clone().into(), bos })
        });
        contents.collect()
    }

    /// Fills it with [words].
    pub fn fill(&self, driver: &Arc<dyn Driver>, ring: &Ring) -> Answer<()> {
        let contents = self.contents()?;
        let gpus = contents.iter().map(|gpu| (gpu.gpu_id, gpu.bytes().unwrap_or_default()));
        let gpus: Vec<_> = gpus.collect();
        let jobs = contents.into_iter().map(|contents| RestoreJob { contents }).collect();
        let options = gpu::Options::default();
        let (restore, senders) = Restore::<StreamerError>::start(driver, ring, jobs, options)?;
        std::thread::scope(|scope| {
            let feeders = gpus.into_iter().zip(senders).map(|((gpu_id, bytes), sender)| {
                scope.spawn(move || -> Answer<()> {
                    for offset in (0..bytes).step_by(ring.chunk_bytes()) {
                        let mut chunk = ring.take(PATIENCE).ok_or("no chunk comes back")?;
                        let len = chunk.len().min(usize::try_from(bytes - offset)?);
                        let (to, _) = chunk[..len].as_chunks_mut();
                        to.iter_mut().zip(words(gpu_id, offset)).for_each(|(to, word)| *to = word);
                        let bytes = Write::Bytes { offset, chunk, range: 0..len };
                        sender.send_timeout(bytes, PATIENCE)?;
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

    /// Gives it back.
    pub fn free(self) -> Answer<()> {
        for (_, render, handles) in &self.gpus {
            handles.iter().try_for_each(|&handle| render.close(handle))?;
        }
        Ok(())
    }
}

/// What the contents of a GPU are from an offset on: each word its own.
pub fn words(gpu_id: u32, offset: u64) -> impl Iterator<Item = [u8; 8]> {
    let word =
        move |place: u64| (place | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(gpu_id);
    (offset / 8..).map(move |place| word(place).to_le_bytes())
}
