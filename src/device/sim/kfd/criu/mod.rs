//! CRIU_OP: stopping a process, writing its state down, making it again elsewhere.

use nix::errno::Errno;

use super::{
    super::{
        KernelRelease,
        host::{SimHost, State},
    },
    Io,
    process::{Bo, KfdProcess},
    settings::gpuvm_base,
    svm::attribute_count,
};
use crate::abi::kfd::{
    CriuArgs, SvmAttribute, criu_op,
    private::{
        CriuDevicePrivate, CriuEventPrivate, CriuProcessPrivate, CriuQueuePrivate,
        CriuSvmRangePrivate,
    },
    queue_type,
};

mod checkpoint;
mod restore;
mod resume;

pub(super) fn ioctl(io: &mut Io<'_, '_>, args: &mut CriuArgs) -> nix::Result<()> {
    match args.op {
        criu_op::PROCESS_INFO => process_info(io, args),
        criu_op::CHECKPOINT => checkpoint::checkpoint(io, args),
        criu_op::UNPAUSE => unpause(io),
        criu_op::RESTORE => restore::restore(io, args),
        criu_op::RESUME => resume::resume(io, args),
        _ => Err(Errno::EINVAL),
    }
}

/// Stops a process and says how much state it has.
fn process_info(io: &mut Io<'_, '_>, args: &mut CriuArgs) -> nix::Result<()> {
    let release = io.release();
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    if process.devices.is_empty() {
        return Err(Errno::ENODEV);
    }
    // Only 6.12 looks whether the process is stopped already; with the others, one UNPAUSE does
    // not make up for two of these.
    if release != KernelRelease::V6_12 || !process.paused {
        process.evict();
    }
    process.paused = true;
    match sizes(process, release) {
        Ok(sizes) => {
            args.pid = io.call.memory.own_number(io.pid);
            args.num_devices = sizes.devices;
            args.num_bos = sizes.bos;
            args.num_objects = sizes.objects;
            args.priv_data_size = sizes.private;
            Ok(())
        }
        Err(errno) => {
            process.unevict();
            process.paused = false;
            Err(errno)
        }
    }
}

fn unpause(io: &mut Io<'_, '_>) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    if !process.paused {
        return Err(Errno::EINVAL);
    }
    process.unevict();
    process.paused = false;
    Ok(())
}

/// How much state a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    devices: u32,
    bos: u32,
    objects: u32,
    private: u64,
}

/// EOPNOTSUPP where a queue cannot be written down.
fn sizes(process: &KfdProcess, release: KernelRelease) -> nix::Result<Sizes> {
    let bos = counted_bos(process, release).count();
    let mut private = size_of::<CriuProcessPrivate>()
        + process.devices.len() * size_of::<CriuDevicePrivate>()
        + bos * bo_record_size(release)
        + process.events.len() * size_of::<CriuEventPrivate>();
    for (_, queue) in process.queues.iter() {
        if queue.properties.kind > queue_type::SDMA_XGMI {
            return Err(Errno::EOPNOTSUPP);
        }
        private += size_of::<CriuQueuePrivate>() + queue.mqd.len() + queue.control_stack.len();
    }
    let range = size_of::<CriuSvmRangePrivate>()
        + attribute_count(process.devices.len()) * size_of::<SvmAttribute>();
    private += process.ranges.len() * range;
    let objects = process.queues.len() + process.events.len() + process.ranges.len();
    let count = |number: usize| u32::try_from(number).map_err(|_| Errno::EINVAL);
    Ok(Sizes {
        devices: count(process.devices.len())?,
        bos: count(bos)?,
        objects: count(objects)?,
        private: private as u64,
    })
}

/// The BOs of a checkpoint in its order: GPU by GPU, by handle. With the place of their GPU.
fn counted_bos(
    process: &KfdProcess,
    release: KernelRelease,
) -> impl Iterator<Item = (usize, u32, &Bo)> {
    let base = gpuvm_base(release);
    let counts = move |bo: &Bo| {
        // What is below is the kernel's own. (Whether an address of 0 is, kernels differ.)
        bo.va > base || (bo.va == 0 && release != KernelRelease::V6_1)
    };
    process.devices.iter().enumerate().flat_map(move |(place, device)| {
        device.bos.iter().filter(move |(_, bo)| counts(bo)).map(move |(id, bo)| (place, id, bo))
    })
}

/// For how many GPUs the record of a BO has room.
fn record_gpus(release: KernelRelease) -> usize {
    if release == KernelRelease::V6_1 { 16 } else { 64 }
}

/// The size of a BO's record: user address, handle, GPUs, all in words of 8 bytes.
fn bo_record_size(release: KernelRelease) -> usize {
    (12 + 4 * record_gpus(release)).next_multiple_of(8)
}

/// Runs what a kernel leaves to a worker.
fn later(host: &SimHost, work: impl FnOnce(&mut State) + Send + 'static) -> nix::Result<()> {
    let host = host.clone();
    let worker = std::thread::Builder::new().name("sim-kfd-worker".into());
    let spawned = worker.spawn(move || work(&mut host.state()));
    spawned.map(drop).map_err(|_| Errno::ENOMEM)
}
