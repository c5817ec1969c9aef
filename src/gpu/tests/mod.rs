//! Dumps and restores on simulated GPUs, with contents that are compared byte by byte.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    Bo, Contents, Drain, DumpJob, GpuError, GpuStats, Options, Render, Restore, RestoreJob, Write,
    dump,
};
use crate::{
    abi::amdgpu::domain,
    device::{
        DeviceError, DeviceMemory, Driver, RenderNode,
        sim::{Complaint, Credentials, Machine, Profile, SimHost, SimProcess},
    },
    ring::{Chunk, Ring},
};

mod failures;
mod large;
mod round_trip;

/// Fails when told to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
struct Given(&'static str);

/// A machine with an application on it that has BOs on each GPU, and somebody who copies them.
struct Bench {
    host: SimHost,
    app: Vec<AppGpu>,
    copier: SimProcess,
}

/// What an application has on a GPU.
struct AppGpu {
    render: RenderNode,
    bos: Vec<(u32, u64, DeviceMemory)>,
}

impl Bench {
    /// BOs of these sizes, on each GPU.
    fn new(gpus: u32, sizes: &[u64]) -> Self {
        Bench::on(&Profile::gfx90a(), gpus, sizes)
    }

    /// The same, on GPUs of another kind.
    fn on(profile: &Profile, gpus: u32, sizes: &[u64]) -> Self {
        let host = SimHost::new(Machine::new(profile, gpus)).unwrap();
        let application = host.process(Credentials::USER);
        let copier = host.process(Credentials::ROOT);
        let app = host.machine().gpus.iter().map(|gpu| {
            let render = RenderNode::open(&application, &gpu.render_node()).unwrap();
            let bos = sizes.iter().map(|&size| {
                let handle = render.create(size, domain::VRAM).unwrap();
                let memory = render.map_memory(handle, usize::try_from(size).unwrap()).unwrap();
                (handle, size, memory)
            });
            let bos = bos.collect();
            AppGpu { render, bos }
        });
        let app = app.collect();
        Bench { app, host, copier }
    }

    /// The same, with contents that are different in every word, BO and GPU.
    fn filled(gpus: u32, sizes: &[u64]) -> Self {
        let bench = Bench::new(gpus, sizes);
        for (gpu, app) in (0_u64..).zip(&bench.app) {
            for (bo, (_, size, memory)) in (0_u64..).zip(&app.bos) {
                let words = (0..size / 8).map(|word| {
                    (gpu << 56 | bo << 40 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
                });
                let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
                memory.write(0, &bytes);
            }
        }
        bench
    }

    fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(self.copier.clone())
    }

    fn contents(&self) -> Vec<Contents> {
        let contents = self.app.iter().zip(self.host.gpu_ids()).zip(&self.host.machine().gpus);
        contents
            .map(|((app, &gpu_id), spec)| Contents {
                gpu_id,
                node: spec.render_node().into(),
                bos: app
                    .bos
                    .iter()
                    .map(|(handle, size, _)| Bo {
                        size: *size,
                        dma_buf: app.render.export(*handle).unwrap(),
                    })
                    .collect(),
            })
            .collect()
    }

    /// The bytes of a GPU's BOs, one after the other.
    fn bytes(&self, gpu: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (_, size, memory) in &self.app[gpu].bos {
            let start = bytes.len();
            bytes.resize(start + usize::try_from(*size).unwrap(), 0);
            memory.read(0, &mut bytes[start..]);
        }
        bytes
    }

    fn dump(&self, ring: &Ring, store: &Store) -> Result<Vec<GpuStats>, GpuError<Given>> {
        self.dump_with(ring, store, options())
    }

    fn dump_with(
        &self,
        ring: &Ring,
        store: &Store,
        options: Options,
    ) -> Result<Vec<GpuStats>, GpuError<Given>> {
        let jobs = self.contents().into_iter().map(|contents| {
            let drain = Keep { gpu_id: contents.gpu_id, store: store.clone() };
            DumpJob { contents, drain }
        });
        dump(&self.driver(), ring, jobs.collect(), options, &mut || Ok(()))
    }

    fn restore(&self, ring: &Ring, images: &[Vec<u8>]) -> Result<Vec<GpuStats>, GpuError<Given>> {
        self.restore_with(ring, images, options())
    }

    fn restore_with(
        &self,
        ring: &Ring,
        images: &[Vec<u8>],
        options: Options,
    ) -> Result<Vec<GpuStats>, GpuError<Given>> {
        let jobs = self.contents().into_iter().map(|contents| RestoreJob { contents });
        let (restore, senders) = Restore::start(&self.driver(), ring, jobs.collect(), options)?;
        let watch = restore.watch();
        std::thread::scope(|scope| {
            for (sender, image) in senders.into_iter().zip(images) {
                let watch = &watch;
                scope.spawn(move || {
                    send(
                        image,
                        ring,
                        &|write| {
                            let mut write = write;
                            while let Err(error) =
                                sender.send_timeout(write, Duration::from_millis(20))
                            {
                                if watch.is_failing() {
                                    return false;
                                }
                                write = error.into_inner();
                            }
                            true
                        },
                        &|| !watch.is_failing(),
                    );
                });
            }
            restore.finish(&mut || Ok(()))
        })
    }

    /// The application still has its files open; the copier has none, and no dma-buf is left.
    fn assert_no_complaint(&self) {
        let mut left = self.host.check();
        left.retain(|complaint| complaint.pid == self.copier.pid());
        assert_eq!(left, []);
        assert_eq!(self.host.open_dma_bufs(), [0; 0]);
    }

    /// Whether the copier has nothing open any more.
    fn is_tidy(&self) -> bool {
        let of_copier = |complaint: &Complaint| complaint.pid == self.copier.pid();
        !self.host.check().iter().any(of_copier) && self.host.open_dma_bufs().is_empty()
    }

    /// Nothing that was made for copying is left.
    fn assert_tidy(&self, ring: &Ring) {
        self.assert_no_complaint();
        assert_eq!(ring.free() + ring.condemned(), ring.chunks());
    }
}

/// Sends an image in windows of a chunk, those that are zero as zeros, the last window first.
fn send(image: &[u8], ring: &Ring, send: &dyn Fn(Write) -> bool, go_on: &dyn Fn() -> bool) {
    let windows: Vec<_> = image.chunks(ring.chunk_bytes()).enumerate().collect();
    for (number, window) in windows.into_iter().rev() {
        let offset = (number * ring.chunk_bytes()) as u64;
        if window.iter().all(|&byte| byte == 0) {
            if !send(Write::Zeros { offset, len: window.len() as u64 }) {
                return;
            }
            continue;
        }
        let mut chunk = loop {
            match ring.take(Duration::from_millis(20)) {
                Some(chunk) => break chunk,
                None if go_on() => {}
                None => return,
            }
        };
        chunk[..window.len()].copy_from_slice(window);
        if !send(Write::Bytes { offset, chunk, range: 0..window.len() }) {
            return;
        }
    }
}

fn options() -> Options {
    Options {
        fence_deadline: Duration::from_secs(5),
        grace: Duration::from_secs(5),
        ..Options::default()
    }
}

/// The contents that were dumped, by GPU.
type Store = Arc<Mutex<BTreeMap<u32, (Vec<u8>, bool)>>>;

/// Keeps what it is given, and insists on its order.
struct Keep {
    gpu_id: u32,
    store: Store,
}

impl Drain for Keep {
    type Error = Given;

    fn chunk(&mut self, offset: u64, chunk: Chunk, len: usize) -> Result<(), Given> {
        let mut store = self.store.lock().unwrap();
        let (bytes, ended) = store.entry(self.gpu_id).or_default();
        assert_eq!((bytes.len() as u64, *ended), (offset, false));
        bytes.extend_from_slice(&chunk[..len]);
        Ok(())
    }

    fn end(&mut self, bytes: u64) -> Result<(), Given> {
        let mut store = self.store.lock().unwrap();
        let (kept, ended) = store.entry(self.gpu_id).or_default();
        assert_eq!(kept.len() as u64, bytes);
        *ended = true;
        Ok(())
    }
}
