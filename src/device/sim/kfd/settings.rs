//! Small answers: versions, apertures, clocks, policies.

use std::{sync::LazyLock, time::Instant};

use nix::errno::Errno;

use super::{super::KernelRelease, Io, memory::write_array, process::KfdProcess};
use crate::abi::kfd::{
    DeviceApertures, GetClockCounters, GetProcessApertures, GetProcessAperturesNew, GetTileConfig,
    GetVersion, NUM_OF_SUPPORTED_GPUS, RuntimeEnable, SetMemoryPolicy, SetScratchBackingVa,
    SetTrapHandler, SetXnackMode,
};

/// How many entries the tables of [`get_tile_config`] have.
const TILE_MODES: u32 = 32;
const MACRO_TILE_MODES: u32 = 16;

pub(super) fn get_version(io: &mut Io<'_, '_>, args: &mut GetVersion) -> nix::Result<()> {
    args.major_version = 1;
    args.minor_version = match io.release() {
        KernelRelease::V6_1 => 11,
        KernelRelease::V6_12 => 17,
        KernelRelease::V7_2 => 23,
    };
    Ok(())
}

/// Where the GPU's address space begins, for memory that user space makes.
pub(super) fn gpuvm_base(release: KernelRelease) -> u64 {
    if release == KernelRelease::V6_1 { 0x4000 } else { 0x1_0000 }
}

fn apertures(process: &KfdProcess, release: KernelRelease) -> Vec<DeviceApertures> {
    let one = |device: &super::process::Device| DeviceApertures {
        lds_base: 1 << 48,
        lds_limit: (1 << 48) | 0xffff_ffff,
        scratch_base: 2 << 48,
        scratch_limit: (2 << 48) | 0xffff_ffff,
        gpuvm_base: gpuvm_base(release),
        gpuvm_limit: 0x7fff_ffff_ffff,
        gpu_id: device.actual_id,
        pad: 0,
    };
    process.devices.iter().map(one).collect()
}

pub(super) fn get_process_apertures(
    io: &mut Io<'_, '_>,
    args: &mut GetProcessApertures,
) -> nix::Result<()> {
    let all = apertures(io.host.state().kfd.process(io.pid)?, io.release());
    args.num_of_nodes = 0;
    for (to, from) in args.process_apertures.iter_mut().zip(all) {
        *to = from;
        args.num_of_nodes += 1;
    }
    debug_assert!(args.num_of_nodes <= NUM_OF_SUPPORTED_GPUS);
    Ok(())
}

pub(super) fn get_process_apertures_new(
    io: &mut Io<'_, '_>,
    args: &mut GetProcessAperturesNew,
) -> nix::Result<()> {
    let all = apertures(io.host.state().kfd.process(io.pid)?, io.release());
    let count = u32::try_from(all.len()).map_err(|_| Errno::EINVAL)?;
    if args.num_of_nodes == 0 {
        args.num_of_nodes = count;
        return Ok(());
    }
    let machine = io.host.machine();
    if args.num_of_nodes as usize > machine.gpus.len() + machine.cpu_nodes as usize {
        return Err(Errno::EINVAL);
    }
    args.num_of_nodes = args.num_of_nodes.min(count);
    let some = &all[..args.num_of_nodes as usize];
    write_array(io, args.kfd_process_device_apertures_ptr, some)
}

pub(super) fn get_clock_counters(
    io: &mut Io<'_, '_>,
    args: &mut GetClockCounters,
) -> nix::Result<()> {
    // Nanoseconds since the machine was switched on, in a way.
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let now = u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX);
    args.cpu_clock_counter = now;
    args.system_clock_counter = now;
    args.system_clock_freq = 1_000_000_000;
    let known = io.host.state().kfd.process(io.pid)?.device(args.gpu_id).is_ok();
    // At 100 MHz; a CPU node has none.
    args.gpu_clock_counter = if known { args.cpu_clock_counter / 10 } else { 0 };
    Ok(())
}

pub(super) fn set_memory_policy(
    io: &mut Io<'_, '_>,
    args: &mut SetMemoryPolicy,
) -> nix::Result<()> {
    if args.default_policy > 1 || args.alternate_policy > 1 {
        return Err(Errno::EINVAL);
    }
    let state = &mut *io.host.state();
    state.kfd.process(io.pid)?.device(args.gpu_id)?.bound(Errno::ESRCH)?;
    Ok(())
}

pub(super) fn set_trap_handler(io: &mut Io<'_, '_>, args: &mut SetTrapHandler) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let device = state.kfd.process(io.pid)?.device(args.gpu_id)?;
    device.bound(Errno::ESRCH)?;
    device.trap_handler = (args.tba_addr, args.tma_addr);
    Ok(())
}

/// Where the waves of a process find what of their scratch memory does not fit. (No wave runs here.)
pub(super) fn set_scratch_backing_va(
    io: &mut Io<'_, '_>,
    args: &mut SetScratchBackingVa,
) -> nix::Result<()> {
    let state = &mut *io.host.state();
    state.kfd.process(io.pid)?.device(args.gpu_id)?.bound(Errno::ESRCH)?;
    Ok(())
}

/// How old GPUs lay out images: as of GFX9, the tables are there and empty.
pub(super) fn get_tile_config(io: &mut Io<'_, '_>, args: &mut GetTileConfig) -> nix::Result<()> {
    let gpu = io.host.state().kfd.process(io.pid)?.device(args.gpu_id)?.gpu;
    args.gb_addr_config = io.host.machine().gpus[gpu].profile.gb_addr_config();
    (args.num_banks, args.num_ranks) = (0, 0);
    args.num_tile_configs = args.num_tile_configs.min(TILE_MODES);
    args.num_macro_tile_configs = args.num_macro_tile_configs.min(MACRO_TILE_MODES);
    for (address, count) in [
        (args.tile_config_ptr, args.num_tile_configs),
        (args.macro_tile_config_ptr, args.num_macro_tile_configs),
    ] {
        write_array(io, address, &vec![0u32; count as usize])?;
    }
    Ok(())
}

pub(super) fn set_xnack_mode(io: &mut Io<'_, '_>, args: &mut SetXnackMode) -> nix::Result<()> {
    let possible = xnack_possible(io)?;
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    if args.xnack_enabled < 0 {
        args.xnack_enabled = i32::from(process.xnack);
        return Ok(());
    }
    let wanted = args.xnack_enabled != 0;
    if !process.queues.is_empty() {
        return Err(Errno::EBUSY);
    }
    if wanted && !possible {
        return Err(Errno::EPERM);
    }
    process.xnack = wanted;
    Ok(())
}

/// Whether every GPU of the process can repeat accesses that faulted, for this process alone.
pub(super) fn xnack_possible(io: &Io<'_, '_>) -> nix::Result<bool> {
    let state = &mut *io.host.state();
    let gpus = &io.host.shared.machine.gpus;
    let devices = &state.kfd.process(io.pid)?.devices;
    Ok(devices.iter().all(|device| {
        // Aldebaran and what came after it; older ones only all together, and that is off.
        matches!(gpus[device.gpu].profile.gfx_target_version(), 90010 | 90400..=90500)
    }))
}

pub(super) fn runtime_enable(io: &mut Io<'_, '_>, args: &mut RuntimeEnable) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    let enable = args.mode_mask & 1 != 0;
    if enable && process.runtime_enabled {
        return Err(Errno::EBUSY);
    }
    if enable && !process.queues.is_empty() {
        return Err(Errno::EEXIST);
    }
    process.runtime_enabled = enable;
    Ok(())
}
