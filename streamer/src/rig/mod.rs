//! Processes on simulated GPUs, to be dumped and restored: what `selftest` and `bench` run on.
//!
//! A [`Source`] is a machine with an application on it and a checkpointer that traces it, as CRIU
//! does. A [`Target`] is another machine, with a task in which the application is made again. Between
//! them goes a [`State`], which is small, and the contents of the GPUs, which are not; moving those
//! is the business of whoever uses this.
//!
//! The calls are the ones that a real checkpoint makes, in their order:
//!
//! ```text
//!  source                                          target
//!  CRIU_OP PROCESS_INFO   queues stop              open, CRIU_OP RESTORE
//!  CRIU_OP CHECKPOINT     state, dma-bufs              BOs are there, dma-bufs
//!  copy the contents ──────────────────────────────► copy the contents
//!  CRIU_OP UNPAUSE        queues run               CRIU_OP RESUME   queues run
//! ```

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use vramstream::{
    abi::kfd::{CriuBoBucket, CriuDeviceBucket, flags},
    device::{
        Checkpoint, DeviceError, Driver, KFD_NODE, Kfd, RenderNode,
        sim::{Application, BoPlan, Credentials, Fill, GpuSpec, Machine, SimHost, SimProcess},
    },
    gpu::{Contents, NoWay, Paused},
};

use crate::error::{Error, Result};

/// How long a restored process may take to run.
const RESUME_PATIENCE: Duration = Duration::from_secs(5);

/// A machine with an application, and somebody who checkpoints it.
#[derive(Debug)]
pub struct Source {
    app: Application,
    checkpointer: SimProcess,
    kfd: Kfd,
}

/// What a checkpoint is, apart from contents.
#[derive(Debug, Clone)]
pub struct State {
    devices: Vec<CriuDeviceBucket>,
    bos: Vec<CriuBoBucket>,
    private: Vec<u8>,
    objects: u32,
}

impl State {
    /// How many GPUs the process has.
    pub fn gpus(&self) -> usize {
        self.devices.len()
    }
}

impl Source {
    /// Starts an application with this memory, filled.
    pub fn start(machine: Machine, plan: &[BoPlan], fill: impl Fn(u64) -> Fill) -> Result<Self> {
        let host = SimHost::new(machine).map_err(Error::io(|| "simulate GPUs"))?;
        let process = host.process(Credentials::USER);
        let app = Application::start(&process, plan)?;
        app.fill(fill).map_err(Error::io(|| "fill the simulated VRAM"))?;
        let checkpointer = host.process(Credentials::ROOT);
        host.trace(&checkpointer, &process);
        let fd = app.kfd().as_fd().try_clone_to_owned();
        let fd = fd.map_err(Error::io(|| "get the application's /dev/kfd"))?;
        let kfd = Kfd::adopt(&checkpointer, fd)?;
        Ok(Source { app, checkpointer, kfd })
    }

    /// The application.
    pub fn application(&self) -> &Application {
        &self.app
    }

    /// The machine.
    pub fn host(&self) -> &SimHost {
        self.checkpointer.host()
    }

    /// Whose calls copy the contents.
    pub fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(self.checkpointer.clone())
    }

    /// Stops the application's queues.
    pub fn pause(&self) -> Result<Paused<&Kfd>> {
        // The driver answers this only on a file of one's own.
        Kfd::open(&self.checkpointer)?.version()?;
        Ok(Paused::pause(&self.kfd)?)
    }

    /// Splits a checkpoint into state and contents.
    pub fn divide(&self, checkpoint: Checkpoint) -> Result<(State, Vec<Contents>)> {
        let Checkpoint { info, devices, bos, private } = checkpoint;
        let buckets = bos.iter().map(|bo| bo.bucket).collect();
        let nodes = devices
            .iter()
            .map(|device| (device.user_gpu_id, render_node(self.host(), device.actual_gpu_id)));
        let bos = bos.into_iter().map(|bo| (bo.bucket, bo.dma_buf));
        let contents = contents(nodes.collect(), bos)?;
        Ok((State { devices, bos: buckets, private, objects: info.objects }, contents))
    }
}

/// A machine with a task in which an application is restored.
#[derive(Debug)]
pub struct Target {
    process: SimProcess,
    kfd: Kfd,
    /// Open as long as the task lives: its address spaces are those of these files.
    _renders: Vec<RenderNode>,
}

impl Target {
    /// Makes everything but the contents, which are to go where the second value says. The n-th GPU
    /// of the checkpoint becomes the n-th of the machine.
    pub fn start(machine: Machine, state: &State) -> Result<(Self, Vec<Contents>)> {
        let host = SimHost::new(machine).map_err(Error::io(|| "simulate GPUs"))?;
        let process = host.process(Credentials::ROOT);
        let kfd = Kfd::open(&process)?;
        let mut renders = Vec::new();
        let mut devices = state.devices.clone();
        let gpus = host.machine().gpus.iter().zip(host.gpu_ids());
        for (device, (gpu, &gpu_id)) in devices.iter_mut().zip(gpus) {
            let render = RenderNode::open(&process, &gpu.render_node())?;
            device.drm_fd = render.as_fd().as_raw_fd().cast_unsigned();
            device.actual_gpu_id = gpu_id;
            renders.push(render);
        }
        let restored = kfd.restore(&devices, &state.bos, &state.private, state.objects)?;
        let nodes = devices
            .iter()
            .map(|device| (device.user_gpu_id, render_node(&host, device.actual_gpu_id)));
        let bos = restored.into_iter().map(|bo| (bo.bucket, bo.dma_buf));
        let contents = contents(nodes.collect(), bos)?;
        Ok((Target { process, kfd, _renders: renders }, contents))
    }

    /// The task's number on the machine.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The machine.
    pub fn host(&self) -> &SimHost {
        self.process.host()
    }

    /// Whose calls copy the contents.
    pub fn driver(&self) -> Arc<dyn Driver> {
        Arc::new(self.process.clone())
    }

    /// Starts the application, and waits until it runs.
    pub fn resume(&self) -> Result<()> {
        self.kfd.resume(self.process.pid())?;
        if self.host().wait_resumed(self.process.pid(), RESUME_PATIENCE) {
            return Ok(());
        }
        Err(Error::Usage("the restored process does not run again".into()))
    }

    /// Fills all BOs that have contents.
    pub fn fill(&self, fill: Fill) -> Result<()> {
        let (host, pid) = (self.host(), self.process.pid());
        for bo in host.bos(pid).iter().filter(|bo| has_contents(bo.flags)) {
            host.fill_bo(pid, bo.va, fill)
                .map_err(Error::io(|| format!("fill the BO at {:#x}", bo.va)))?;
        }
        Ok(())
    }

    /// Compares every byte of every BO that has contents with the application it was made from:
    /// how many bytes are the same.
    pub fn compare(&self, source: &Source) -> Result<u64> {
        const PIECE: u64 = 4 << 20;
        let (from, from_pid) = (source.host(), source.app.process().pid());
        let (to, to_pid) = (self.host(), self.process.pid());
        let (mut left, mut right) = (Vec::new(), Vec::new());
        let mut same = 0;
        for bo in from.bos(from_pid).iter().filter(|bo| has_contents(bo.flags)) {
            let mut at = 0;
            while at < bo.size {
                let len = usize::try_from(PIECE.min(bo.size - at)).unwrap_or(usize::MAX);
                left.resize(len, 0);
                right.resize(len, 0);
                from.read_bo(from_pid, bo.va, at, &mut left)
                    .and_then(|()| to.read_bo(to_pid, bo.va, at, &mut right))
                    .map_err(Error::io(|| format!("read the BO at {:#x}", bo.va)))?;
                if left != right {
                    let byte = left.iter().zip(&right).position(|(l, r)| l != r).unwrap_or(0);
                    return Err(Error::Payload {
                        shard: "restored GPU memory".into(),
                        file: format!("the BO at {:#x} of GPU {}", bo.va, bo.gpu_id),
                        offset: at + byte as u64,
                    });
                }
                at += len as u64;
                same += len as u64;
            }
        }
        Ok(same)
    }
}

fn has_contents(alloc_flags: u32) -> bool {
    alloc_flags & (flags::VRAM | flags::GTT) != 0
}

fn render_node(host: &SimHost, gpu_id: u32) -> PathBuf {
    let at = host.gpu_ids().iter().position(|&id| id == gpu_id);
    at.and_then(|at| host.machine().gpus.get(at)).map(GpuSpec::render_node).unwrap_or_default()
}

/// The contents of the GPUs.
fn contents(
    nodes: Vec<(u32, PathBuf)>,
    bos: impl Iterator<Item = (CriuBoBucket, Option<OwnedFd>)>,
) -> Result<Vec<Contents>> {
    let node = || PathBuf::from(KFD_NODE);
    let failed = |no_way: NoWay| DeviceError::Unsuitable { node: node(), what: no_way.to_string() };
    Ok(Contents::by_gpu(nodes, bos).map_err(failed)?)
}
