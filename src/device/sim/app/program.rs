//! An application's calls, through any driver: in this process or through a daemon.

use std::{
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    path::Path,
};

use memmap2::MmapMut;

use super::super::{KernelRelease, Machine, Profile, kfd};
use crate::{
    abi::{
        amdgpu::{GEM_CREATE, GEM_USERPTR, GemCreateIn, GemUserptr, domain, userptr},
        drm::{CLOEXEC, RDWR},
        kfd::{
            ACQUIRE_VM, ALLOC_MEMORY_OF_GPU, AcquireVm, AllocMemoryOfGpu, CREATE_EVENT,
            CREATE_QUEUE, CreateEvent, CreateQueue, EXPORT_DMABUF, ExportDmabuf, GET_VERSION,
            GetVersion, MAP_MEMORY_TO_GPU, MapMemoryToGpu, event_type, flags, queue_type,
        },
    },
    device::{DeviceError, DeviceMemory, Driver, KFD_NODE, Node},
};

/// The end of the addresses that an application uses.
pub const ADDRESSES_END: u64 = 0x7000_0000_0000;

const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 << 20;
const RING_BYTES: u64 = 64 << 10;
const EVENT_PAGE_BYTES: u64 = 32 << 10;
const DOORBELL_BYTES: u64 = 8192;
/// What the runtime uses for memory of its own.
const RUNTIME: u32 = flags::GTT | flags::WRITABLE | flags::EXECUTABLE | flags::COHERENT;

/// Memory that an application is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoPlan {
    /// On which GPU, by its place in the machine.
    pub gpu: usize,
    /// In bytes.
    pub size: u64,
    /// As in [`flags`]. Userptrs get memory of this process.
    pub flags: u32,
    /// Whether all GPUs of the machine have it in their address spaces, or only its own.
    pub all_gpus: bool,
    /// Whether the CPU has it mapped; VRAM is public then.
    pub host_visible: bool,
}

impl BoPlan {
    /// VRAM as `hipMalloc` allocates it.
    pub fn vram(gpu: usize, size: u64) -> Self {
        let flags = flags::VRAM | flags::WRITABLE | flags::EXECUTABLE;
        BoPlan { gpu, size, flags, all_gpus: false, host_visible: false }
    }

    /// Memory of the host that the GPU can reach.
    pub fn gtt(gpu: usize, size: u64) -> Self {
        BoPlan { flags: RUNTIME, ..Self::vram(gpu, size) }
    }

    /// Memory of the process.
    pub fn userptr(gpu: usize, size: u64) -> Self {
        let flags = flags::USERPTR | flags::WRITABLE | flags::COHERENT;
        BoPlan { flags, ..Self::vram(gpu, size) }
    }
}

/// Memory that an application has.
#[derive(Debug)]
pub struct AppBo {
    /// On which GPU, by its place in the machine.
    pub gpu: usize,
    /// The process's name for that GPU.
    pub gpu_id: u32,
    /// Its handle.
    pub handle: u64,
    /// Where GPUs see it.
    pub va: u64,
    /// In bytes.
    pub size: u64,
    /// As in [`flags`].
    pub flags: u32,
    /// Where it is in the mmap space of its node.
    pub mmap_offset: u64,
    /// The CPU's mapping, where there is one.
    pub memory: Option<DeviceMemory>,
}

/// A queue of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppQueue {
    /// On which GPU, by its place in the machine.
    pub gpu: usize,
    /// Its number.
    pub id: u32,
    /// Where its doorbell is in the mmap space of `/dev/kfd`.
    pub doorbell_offset: u64,
}

/// What a program does with a machine.
#[derive(Debug, Clone, Default)]
pub struct ProgramPlan {
    /// The memory that it has.
    pub bos: Vec<BoPlan>,
    /// The GPUs that it uses, by their place in the machine; `None` is all of them.
    pub gpus: Option<Vec<usize>>,
    /// Whether it opens the render nodes before `/dev/kfd`.
    pub renders_first: bool,
    /// How many files of each render node it has besides the first.
    pub more_renders: usize,
    /// How many files of `/dev/kfd` it has besides the first.
    pub more_kfds: usize,
    /// Sizes of the memory that it allocates through the render node of its first GPU, past KFD.
    pub gem: Vec<u64>,
    /// Whether it opens the devices and does nothing with them.
    pub idle: bool,
}

/// A running program, which may be anywhere: its driver knows the way to the machine.
#[derive(Debug)]
pub struct Program {
    kfd: Node,
    more_kfds: Vec<Node>,
    gpus: Vec<Gpu>,
    more_renders: Vec<Node>,
    kernel: KernelRelease,
    bos: Vec<AppBo>,
    runtime_bos: Vec<AppBo>,
    queues: Vec<AppQueue>,
    events: Vec<u32>,
    /// The addresses below are free.
    free_below: u64,
    /// What userptrs are of: given back after the files are closed.
    user_memory: Vec<MmapMut>,
}

/// A GPU that a program uses.
#[derive(Debug)]
struct Gpu {
    place: usize,
    id: u32,
    profile: Profile,
    render: Node,
}

/// Events of each application.
const EVENTS: [u32; 4] =
    [event_type::SIGNAL, event_type::SIGNAL, event_type::MEMORY, event_type::HW_EXCEPTION];

impl Program {
    /// Starts a program on a machine whose devices this driver opens.
    pub fn start(
        driver: &dyn Driver,
        machine: &Machine,
        plan: &ProgramPlan,
    ) -> Result<Self, DeviceError> {
        let mut program = Self::open(driver, machine, plan)?;
        if plan.idle {
            return Ok(program);
        }
        for bo in &plan.bos {
            let bo = program.bo(bo)?;
            program.bos.push(bo);
        }
        for &size in &plan.gem {
            program.gem(size)?;
        }
        program.make_events()?;
        let places: Vec<usize> = program.gpus.iter().map(|gpu| gpu.place).collect();
        places.into_iter().try_for_each(|gpu| program.make_queue(gpu))?;
        Ok(program)
    }

    /// Opens the devices and nothing else.
    fn open(
        driver: &dyn Driver,
        machine: &Machine,
        plan: &ProgramPlan,
    ) -> Result<Self, DeviceError> {
        let kfd = || Node::open(driver, Path::new(KFD_NODE));
        let uses = |place| plan.gpus.as_ref().is_none_or(|gpus| gpus.contains(&place));
        let ids = machine.gpu_ids();
        let used = machine.gpus.iter().zip(ids).enumerate().filter(|&(place, _)| uses(place));
        let mut gpus = Vec::new();
        let mut first_kfd = None;
        if !plan.renders_first {
            first_kfd = Some(kfd()?);
        }
        for (place, (spec, id)) in used {
            let render = Node::open(driver, &spec.render_node())?;
            gpus.push(Gpu { place, id, profile: spec.profile.clone(), render });
        }
        let kfd = match first_kfd {
            Some(kfd) => kfd,
            None => kfd()?,
        };
        let mut program = Program {
            kfd,
            more_kfds: Vec::new(),
            gpus,
            more_renders: Vec::new(),
            kernel: machine.kernel,
            bos: Vec::new(),
            runtime_bos: Vec::new(),
            queues: Vec::new(),
            events: Vec::new(),
            free_below: ADDRESSES_END,
            user_memory: Vec::new(),
        };
        for _ in 0..plan.more_renders {
            for gpu in &program.gpus {
                program.more_renders.push(Node::open(driver, gpu.render.path())?);
            }
        }
        for _ in 0..plan.more_kfds {
            program.more_kfds.push(Node::open(driver, Path::new(KFD_NODE))?);
        }
        if plan.idle {
            return Ok(program);
        }
        let mut version = GetVersion::default();
        // SAFETY: the argument has no addresses.
        unsafe { program.kfd.call(&GET_VERSION, &mut version) }?;
        for gpu in &program.gpus {
            let drm_fd = gpu.render.as_fd().as_raw_fd().cast_unsigned();
            let mut args = AcquireVm { drm_fd, gpu_id: gpu.id };
            // SAFETY: the argument has no addresses.
            unsafe { program.kfd.call(&ACQUIRE_VM, &mut args) }?;
        }
        Ok(program)
    }

    /// Its `/dev/kfd`.
    pub fn kfd(&self) -> &Node {
        &self.kfd
    }

    /// Its other files of `/dev/kfd`.
    pub fn more_kfds(&self) -> &[Node] {
        &self.more_kfds
    }

    /// Its render nodes, one for each GPU.
    pub fn renders(&self) -> impl Iterator<Item = &Node> {
        self.gpus.iter().map(|gpu| &gpu.render)
    }

    /// Its other files of render nodes.
    pub fn more_renders(&self) -> &[Node] {
        &self.more_renders
    }

    /// The memory that was asked for, in the order of the plan.
    pub fn bos(&self) -> &[AppBo] {
        &self.bos
    }

    /// Memory of the process, through the render node of a GPU alone: it must stay mapped for as
    /// long as the program has its files, and nobody may mind what is in it.
    pub fn user_gem(&self, gpu: usize, addr: u64, size: u64) -> Result<(), DeviceError> {
        let flags = userptr::ANONONLY | userptr::VALIDATE | userptr::REGISTER;
        let mut args = GemUserptr { addr, size, flags, handle: 0 };
        // SAFETY: nothing is ever submitted that uses it.
        unsafe { self.gpu(gpu)?.render.call(&GEM_USERPTR, &mut args) }
    }

    /// A dma-buf of memory.
    pub fn export(&self, bo: &AppBo) -> Result<OwnedFd, DeviceError> {
        let mut args = ExportDmabuf { handle: bo.handle, flags: CLOEXEC | RDWR, dmabuf_fd: 0 };
        // SAFETY: the argument has no addresses.
        unsafe { self.kfd.call(&EXPORT_DMABUF, &mut args) }?;
        // SAFETY: the driver opened it during the call that has just returned, and told nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(args.dmabuf_fd.cast_signed()) })
    }

    /// The memory that a runtime needs besides: events, doorbells, queues.
    pub fn runtime_bos(&self) -> &[AppBo] {
        &self.runtime_bos
    }

    /// Its queues, one for each GPU.
    pub fn queues(&self) -> &[AppQueue] {
        &self.queues
    }

    /// Its events.
    pub fn events(&self) -> &[u32] {
        &self.events
    }

    /// Where the memory of its userptrs is: addresses and sizes.
    pub fn user_memory(&self) -> impl Iterator<Item = (u64, usize)> {
        self.user_memory.iter().map(|memory| (memory.as_ptr() as u64, memory.len()))
    }

    fn gpu(&self, place: usize) -> Result<&Gpu, DeviceError> {
        let found = self.gpus.iter().find(|gpu| gpu.place == place);
        found.ok_or_else(|| self.kfd.failed("ALLOC_MEMORY_OF_GPU", nix::errno::Errno::ENODEV))
    }

    /// Memory of the render node alone: it goes with the file.
    fn gem(&self, bo_size: u64) -> Result<(), DeviceError> {
        let Some(gpu) = self.gpus.first() else { return Ok(()) };
        let mut args = GemCreateIn { bo_size, domains: domain::VRAM, ..GemCreateIn::default() };
        // SAFETY: the argument has no addresses.
        unsafe { gpu.render.call(&GEM_CREATE, &mut args) }
    }

    /// Addresses that nothing has.
    fn addresses(&mut self, size: u64) -> u64 {
        let align = if size >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let size = size.next_multiple_of(PAGE);
        self.free_below = self.free_below.saturating_sub(size) / align * align;
        self.free_below
    }

    /// Allocates memory and maps it.
    fn bo(&mut self, plan: &BoPlan) -> Result<AppBo, DeviceError> {
        let mut args = AllocMemoryOfGpu {
            va_addr: self.addresses(plan.size),
            size: plan.size,
            gpu_id: self.gpu(plan.gpu)?.id,
            flags: plan.flags,
            ..AllocMemoryOfGpu::default()
        };
        if plan.host_visible && plan.flags & flags::VRAM != 0 {
            args.flags |= flags::PUBLIC;
        }
        if plan.flags & flags::USERPTR != 0 {
            let failed = |_| self.kfd.failed("mmap", nix::errno::Errno::ENOMEM);
            let len = usize::try_from(plan.size).unwrap_or(usize::MAX);
            let memory = MmapMut::map_anon(len).map_err(failed)?;
            args.mmap_offset = memory.as_ptr().expose_provenance() as u64;
            self.user_memory.push(memory);
        }
        // SAFETY: the only address is that of a userptr: that memory is ours, is never touched,
        // and lives until the files are closed.
        unsafe { self.kfd.call(&ALLOC_MEMORY_OF_GPU, &mut args) }?;
        let all = self.gpus.iter().map(|gpu| gpu.id);
        let gpus: Vec<u32> = if plan.all_gpus { all.collect() } else { vec![args.gpu_id] };
        let mut map = MapMemoryToGpu {
            handle: args.handle,
            device_ids_array_ptr: gpus.as_ptr().expose_provenance() as u64,
            n_devices: u32::try_from(gpus.len()).unwrap_or(0),
            n_success: 0,
        };
        // SAFETY: the address is of a slice with so many elements, which is only read.
        unsafe { self.kfd.call(&MAP_MEMORY_TO_GPU, &mut map) }?;
        let memory = if plan.host_visible {
            let registers = plan.flags & (flags::DOORBELL | flags::MMIO_REMAP) != 0;
            let node = if registers { &self.kfd } else { &self.gpu(plan.gpu)?.render };
            let len = usize::try_from(plan.size).unwrap_or(usize::MAX);
            Some(node.map(args.mmap_offset, len)?)
        } else {
            None
        };
        Ok(AppBo {
            gpu: plan.gpu,
            gpu_id: args.gpu_id,
            handle: args.handle,
            va: args.va_addr,
            size: plan.size,
            flags: args.flags,
            mmap_offset: args.mmap_offset,
            memory,
        })
    }

    /// Memory of the runtime: its address.
    fn runtime_bo(&mut self, gpu: usize, size: u64, flags: u32) -> Result<u64, DeviceError> {
        let bo = self.bo(&BoPlan { flags, ..BoPlan::vram(gpu, size) })?;
        let va = bo.va;
        self.runtime_bos.push(bo);
        Ok(va)
    }

    fn make_events(&mut self) -> Result<(), DeviceError> {
        let Some(first) = self.gpus.first().map(|gpu| gpu.place) else { return Ok(()) };
        self.runtime_bo(first, EVENT_PAGE_BYTES, RUNTIME)?;
        let mut page = self.runtime_bos.last().map_or(0, |bo| bo.handle);
        for event_type in EVENTS {
            let auto_reset = u32::from(event_type == event_type::SIGNAL);
            let mut args = CreateEvent {
                event_page_offset: page,
                event_type,
                auto_reset,
                ..CreateEvent::default()
            };
            // SAFETY: the argument has no addresses.
            unsafe { self.kfd.call(&CREATE_EVENT, &mut args) }?;
            self.events.push(args.event_id);
            page = 0;
        }
        Ok(())
    }

    fn make_queue(&mut self, gpu: usize) -> Result<(), DeviceError> {
        let (profile, gpu_id) = (self.gpu(gpu)?.profile.clone(), self.gpu(gpu)?.id);
        let small = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let doorbells = flags::DOORBELL | flags::WRITABLE | flags::COHERENT;
        self.runtime_bo(gpu, DOORBELL_BYTES, doorbells)?;
        let mmio = flags::MMIO_REMAP | flags::WRITABLE | flags::COHERENT;
        self.runtime_bo(gpu, PAGE, mmio)?;
        let save_size = small(profile.cwsr_size());
        let save_bytes = match self.kernel {
            KernelRelease::V6_1 => u64::from(save_size).next_multiple_of(PAGE),
            _ => kfd::save_area(&profile, save_size),
        };
        let mut args = CreateQueue {
            ring_base_address: self.runtime_bo(gpu, RING_BYTES, RUNTIME)?,
            write_pointer_address: self.runtime_bo(gpu, PAGE, RUNTIME)?,
            read_pointer_address: self.runtime_bo(gpu, PAGE, RUNTIME)?,
            ring_size: small(RING_BYTES),
            gpu_id,
            queue_type: queue_type::COMPUTE_AQL,
            queue_percentage: 100,
            queue_priority: 7,
            eop_buffer_address: self.runtime_bo(
                gpu,
                kfd::EOP_SIZE,
                flags::VRAM | flags::WRITABLE | flags::EXECUTABLE,
            )?,
            eop_buffer_size: kfd::EOP_SIZE,
            ctx_save_restore_address: self.runtime_bo(gpu, save_bytes, RUNTIME)?,
            ctx_save_restore_size: save_size,
            ctl_stack_size: small(profile.ctl_stack_size()),
            ..CreateQueue::default()
        };
        // SAFETY: the addresses are of BOs that live as long as the process object.
        unsafe { self.kfd.call(&CREATE_QUEUE, &mut args) }?;
        let CreateQueue { queue_id: id, doorbell_offset, .. } = args;
        self.queues.push(AppQueue { gpu, id, doorbell_offset });
        Ok(())
    }
}
