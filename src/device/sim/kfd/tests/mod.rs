//! Tests of `/dev/kfd`: every rule, and every error, by the kernel that has it.

use std::{
    os::fd::{AsFd, AsRawFd},
    path::Path,
};

use nix::errno::Errno;

use crate::{
    abi::{Plain, Request, kfd::*},
    device::{
        DeviceError, DeviceFile, Driver, KFD_NODE,
        sim::{Credentials, KernelRelease, Machine, Profile, SimHost, SimProcess},
    },
};

mod checkpoint;
mod contents;
mod cycle;
mod dispatcher;
mod events;
mod mapping;
mod memory;
mod queues;
mod restore;
mod rings;

const ALL: [KernelRelease; 3] = [KernelRelease::V6_1, KernelRelease::V6_12, KernelRelease::V7_2];

/// The answer of a call that failed.
fn errno(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Call { errno, .. } => *errno,
        other => panic!("{other}"),
    }
}

/// Issues an ioctl once: the answer, and the argument afterwards.
fn ioctl<T: Plain>(
    file: &dyn DeviceFile,
    request: &Request<T>,
    mut argument: T,
) -> (nix::Result<()>, T) {
    // SAFETY: the tests pass addresses of slices that outlive the call, and their own memory.
    let answer = unsafe { file.ioctl(request.number(), argument.as_bytes_mut()) };
    (answer, argument)
}

/// Only the answer.
fn answer<T: Plain>(file: &dyn DeviceFile, request: &Request<T>, argument: T) -> nix::Result<()> {
    ioctl(file, request, argument).0
}

/// The argument after a call that must not fail.
fn done<T: Plain>(file: &dyn DeviceFile, request: &Request<T>, argument: T) -> T {
    let (answer, argument) = ioctl(file, request, argument);
    assert_eq!(answer, Ok(()), "{request:?}");
    argument
}

/// A process on a machine, with its files.
struct Bench {
    host: SimHost,
    process: SimProcess,
    kfd: Box<dyn DeviceFile>,
    renders: Vec<Box<dyn DeviceFile>>,
}

impl Bench {
    /// On two GPUs of 64 MiB, with no address space yet.
    fn new(kernel: KernelRelease) -> Bench {
        Self::on(Machine::new(&Profile::gfx90a(), 2).kernel(kernel).vram_bytes(64 << 20))
    }

    fn on(machine: Machine) -> Bench {
        let host = SimHost::new(machine).unwrap();
        let process = host.process(Credentials::ROOT);
        Bench::of(host, process)
    }

    fn of(host: SimHost, process: SimProcess) -> Bench {
        let kfd = process.open(Path::new(KFD_NODE)).unwrap();
        let gpus = &host.machine().gpus;
        let renders = gpus.iter().map(|gpu| process.open(&gpu.render_node()).unwrap()).collect();
        Bench { host, process, kfd, renders }
    }

    /// The same with address spaces.
    fn bound(kernel: KernelRelease) -> Bench {
        let bench = Self::new(kernel);
        (0..bench.renders.len()).for_each(|gpu| assert_eq!(bench.acquire(gpu, gpu), Ok(())));
        bench
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn id(&self, gpu: usize) -> u32 {
        self.host.gpu_ids()[gpu]
    }

    fn fd(&self, render: usize) -> u32 {
        self.renders[render].as_fd().as_raw_fd().cast_unsigned()
    }

    fn acquire(&self, gpu: usize, render: usize) -> nix::Result<()> {
        let args = AcquireVm { drm_fd: self.fd(render), gpu_id: self.id(gpu) };
        answer(&*self.kfd, &ACQUIRE_VM, args)
    }

    /// The argument that allocates on the first GPU.
    fn alloc_args(&self, va_addr: u64, size: u64, flags: u32) -> AllocMemoryOfGpu {
        let gpu_id = self.id(0);
        AllocMemoryOfGpu { va_addr, size, gpu_id, flags, ..AllocMemoryOfGpu::default() }
    }

    /// Allocates on the first GPU: the handle.
    fn alloc(&self, va_addr: u64, size: u64, flags: u32) -> nix::Result<u64> {
        let args = self.alloc_args(va_addr, size, flags);
        let (answer, args) = ioctl(&*self.kfd, &ALLOC_MEMORY_OF_GPU, args);
        answer.map(|()| args.handle)
    }

    /// Maps a BO on GPUs; how many it was mapped on.
    fn map(&self, handle: u64, gpus: &[u32]) -> (nix::Result<()>, u32) {
        let (answer, args) = ioctl(&*self.kfd, &MAP_MEMORY_TO_GPU, map_args(handle, gpus));
        (answer, args.n_success)
    }

    fn unmap(&self, handle: u64, gpus: &[u32]) -> nix::Result<()> {
        let args = map_args(handle, gpus);
        let args = UnmapMemoryFromGpu {
            handle,
            device_ids_array_ptr: args.device_ids_array_ptr,
            n_devices: args.n_devices,
            n_success: 0,
        };
        answer(&*self.kfd, &UNMAP_MEMORY_FROM_GPU, args)
    }

    fn free(&self, handle: u64) -> nix::Result<()> {
        answer(&*self.kfd, &FREE_MEMORY_OF_GPU, FreeMemoryOfGpu { handle })
    }

    /// A BO in VRAM that is mapped on the first GPU.
    fn mapped(&self, va: u64, size: u64) -> u64 {
        let handle = self.alloc(va, size, flags::VRAM | flags::WRITABLE).unwrap();
        assert_eq!(self.map(handle, &[self.id(0)]), (Ok(()), 1));
        handle
    }

    fn criu(&self, op: u32) -> nix::Result<()> {
        answer(&*self.kfd, &CRIU_OP, CriuArgs { op, ..CriuArgs::default() })
    }
}

fn map_args(handle: u64, gpus: &[u32]) -> MapMemoryToGpu {
    MapMemoryToGpu {
        handle,
        device_ids_array_ptr: gpus.as_ptr().expose_provenance() as u64,
        n_devices: u32::try_from(gpus.len()).unwrap(),
        n_success: 0,
    }
}

/// Takes over a descriptor that an ioctl has made.
fn owned(fd: u32) -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the call has just made it, and nobody else has its number.
    unsafe { std::os::fd::OwnedFd::from_raw_fd(fd.cast_signed()) }
}

/// Sets (0) or gets (1) attributes of a range: the value of the last of them afterwards.
fn svm(
    kfd: &dyn DeviceFile,
    op: u32,
    (start_addr, size): (u64, u64),
    attributes: &[(u32, u32)],
) -> nix::Result<u32> {
    let nattr = u32::try_from(attributes.len()).unwrap();
    let mut bytes = SvmArgs { start_addr, size, op, nattr }.as_bytes().to_vec();
    for (kind, value) in attributes {
        bytes.extend([kind.to_le_bytes(), value.to_le_bytes()].concat());
    }
    let len = u32::try_from(bytes.len()).unwrap();
    // SAFETY: nothing is read or written through the addresses.
    let answer = unsafe { kfd.ioctl(0xc000_4b20 | len << 16, &mut bytes) };
    answer.map(|()| u32::from_prefix(&bytes[bytes.len() - 4..]))
}
