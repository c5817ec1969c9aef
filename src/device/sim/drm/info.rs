//! VERSION, GET_CAP and INFO.

use nix::errno::Errno;

use crate::{
    abi::{
        Plain,
        amdgpu::{Info, InfoDevice, InfoHwIp, hw_ip, info},
        drm::{GetCap, Version},
    },
    device::sim::{
        caller::Call,
        fence::monotonic,
        host::SimHost,
        machine::KernelRelease,
        vm::{HOLE, RESERVED_TOP, VA_START},
    },
};

/// The capability that says which ways of PRIME work.
const CAP_PRIME: u64 = 0x5;
/// Import and export.
const PRIME_BOTH: u64 = 3;
/// As much of the host's memory as a GPU can reach: amdgpu's default is half of it.
const GTT_BYTES: u64 = 128 << 30;

/// The number of a register, in words.
const GB_ADDR_CONFIG: u32 = 0x263e;
/// The most registers in a query.
const MOST_REGISTERS: u32 = 128;

pub(super) fn version(
    host: &SimHost,
    call: &mut Call<'_>,
    version: &mut Version,
) -> nix::Result<()> {
    let (minor, date) = match host.machine().kernel {
        KernelRelease::V6_1 => (54, "20150101"),
        KernelRelease::V6_12 => (61, "20150101"),
        KernelRelease::V7_2 => (64, "0"),
    };
    (version.version_major, version.version_minor, version.version_patchlevel) = (3, minor, 0);
    let copy = |text: &str, address: u64, len: &mut u64| {
        let room = usize::try_from(*len).unwrap_or(usize::MAX).min(text.len());
        *len = text.len() as u64;
        if room == 0 || address == 0 {
            return Ok(());
        }
        call.memory.write(address, &text.as_bytes()[..room])
    };
    copy("amdgpu", version.name, &mut version.name_len)?;
    copy(date, version.date, &mut version.date_len)?;
    copy("AMD GPU", version.desc, &mut version.desc_len)
}

pub(super) fn get_cap(_: &SimHost, _: &mut Call<'_>, cap: &mut GetCap) -> nix::Result<()> {
    if cap.capability != CAP_PRIME {
        return Err(Errno::EINVAL);
    }
    cap.value = PRIME_BOTH;
    Ok(())
}

pub(super) fn info(host: &SimHost, call: &mut Call<'_>, info: &mut Info) -> nix::Result<()> {
    let room = usize::try_from(info.return_size).unwrap_or(usize::MAX);
    if room == 0 || info.return_pointer == 0 {
        return Err(Errno::EINVAL);
    }
    let answer = answer(host, call, info)?;
    call.memory.write(info.return_pointer, &answer[..room.min(answer.len())])
}

fn answer(host: &SimHost, call: &Call<'_>, info: &Info) -> nix::Result<Vec<u8>> {
    let gpu = host.state().render(call.file)?.gpu;
    let spec = &host.machine().gpus[gpu];
    let longs = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(match info.query {
        info::ACCEL_WORKING => 1u32.to_le_bytes().to_vec(),
        info::HW_IP_INFO => hw_ip_info(host, gpu, info)?,
        info::HW_IP_COUNT => {
            if info.query_type >= hw_ip::NUM {
                return Err(Errno::EINVAL);
            }
            u32::from(info.query_type == hw_ip::DMA).to_le_bytes().to_vec()
        }
        info::READ_MMR_REG => registers(host, gpu, info)?,
        info::TIMESTAMP => longs(&[monotonic() / 10]),
        info::VRAM_USAGE | info::VIS_VRAM_USAGE => longs(&[host.vram_used(gpu)]),
        info::GTT_USAGE | info::NUM_BYTES_MOVED | info::NUM_EVICTIONS => longs(&[0]),
        // Version and feature of a firmware: which one is not looked at.
        info::FW_VERSION => {
            let version = u32::try_from(spec.profile.property("fw_version")).unwrap_or(0);
            [version.to_le_bytes(), 0u32.to_le_bytes()].concat()
        }
        // No GPU that KFD takes has any of what this is about.
        info::GDS_CONFIG => vec![0; 32],
        info::VRAM_GTT => longs(&[spec.vram_bytes, spec.vram_bytes, GTT_BYTES]),
        info::MEMORY => {
            let used = host.vram_used(gpu);
            let heap = |total: u64, used: u64| [total, total, used, total / 4 * 3];
            let vram = heap(spec.vram_bytes, used);
            longs(&[vram, vram, heap(GTT_BYTES, 0)].concat())
        }
        info::DEV_INFO => {
            let device = InfoDevice {
                device_id: spec.profile.device_id,
                family: spec.profile.family,
                virtual_address_offset: VA_START,
                virtual_address_max: HOLE.start - RESERVED_TOP,
                virtual_address_alignment: 4096,
                pte_fragment_size: 2 << 20,
                gart_page_size: 4096,
                wave_front_size: 64,
                ..InfoDevice::default()
            };
            let len = if host.machine().kernel == KernelRelease::V6_1 { 368 } else { 440 };
            device.as_bytes()[..len].to_vec()
        }
        _ => return Err(Errno::EINVAL),
    })
}

/// Registers, of which clients need one: how memory is interleaved.
fn registers(host: &SimHost, gpu: usize, info: &Info) -> nix::Result<Vec<u8>> {
    let [offset, count] = [info.query_type, info.query_instance];
    if count > MOST_REGISTERS {
        return Err(Errno::EINVAL);
    }
    if offset != GB_ADDR_CONFIG || count != 1 {
        return Err(Errno::EFAULT);
    }
    Ok(host.machine().gpus[gpu].profile.gb_addr_config().to_le_bytes().to_vec())
}

fn hw_ip_info(host: &SimHost, gpu: usize, info: &Info) -> nix::Result<Vec<u8>> {
    if info.query_type >= hw_ip::NUM || info.query_instance != 0 {
        return Err(Errno::EINVAL);
    }
    let profile = &host.machine().gpus[gpu].profile;
    let mut ip = InfoHwIp::default();
    if info.query_type == hw_ip::DMA {
        (ip.hw_ip_version_major, ip.hw_ip_version_minor) = profile.sdma_version;
        ip.ib_start_alignment = 256;
        ip.ib_size_alignment = 4;
        // (MI300 has the third revision of its engines' version.)
        let revision = if profile.name == "gfx942" { 2 } else { 0 };
        let (major, minor) = profile.sdma_version;
        ip.ip_discovery_version = major << 16 | minor << 8 | revision;
        // Two rings at most, however many engines are behind them.
        ip.available_rings = (1 << profile.sdma_engines.min(2)) - 1;
    }
    let len = if host.machine().kernel == KernelRelease::V7_2 { 40 } else { 32 };
    Ok(ip.as_bytes()[..len].to_vec())
}
