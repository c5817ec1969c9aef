//! Opening, VERSION, INFO, mappings, dma-bufs.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::{assert_clean, client::*, complaints_of, host, machine, with_kernel};
use crate::{
    abi::{
        Plain,
        amdgpu::{self, CsIn, Info, InfoDevice, InfoHwIp, domain, hw_ip, info},
        drm::{self, GetCap, PrimeHandle, Version},
        kfd,
    },
    device::{
        DeviceError,
        sim::{Credentials, Fault, KernelRelease, Machine, Profile, SimHost},
    },
};

#[test]
fn only_nodes_of_the_machine_can_be_opened() {
    let host = host(2);
    let process = host.process(Credentials::USER);
    assert!(open(&process, "/dev/dri/renderD129").is_ok());
    for path in ["/dev/dri/renderD130", "/dev/dri/card0", "/dev/dri/renderD", "/etc/passwd"] {
        assert_eq!(open(&process, path).err(), Some(Errno::ENOENT), "{path}");
    }
    assert_clean(&host);
}

#[test]
fn each_kernel_has_its_version() {
    for (kernel, minor) in
        [(KernelRelease::V6_1, 54), (KernelRelease::V6_12, 61), (KernelRelease::V7_2, 64)]
    {
        let client = Client::open(&with_kernel(kernel).process(Credentials::USER));
        let mut name = [b'-'; 8];
        let mut version = Version {
            name_len: 4,
            name: name.as_mut_ptr().expose_provenance() as u64,
            ..Version::default()
        };
        client.call(&drm::VERSION, &mut version).unwrap();
        assert_eq!((version.version_major, version.version_minor), (3, minor));
        // As much as fits, and the whole length.
        assert_eq!((&name, version.name_len, version.desc_len), (b"amdg----", 6, 7));
    }
}

#[test]
fn requests_are_known_by_their_low_byte_and_their_letter() {
    let host = host(1);
    let client = Client::open(&host.process(Credentials::USER));
    assert_eq!(client.raw(0xc010_4b05, &mut [0; 16]), Err(Errno::ENOTTY));
    assert_eq!(client.raw(0xc010_64ff, &mut [0; 16]), Err(Errno::EINVAL));
    assert_eq!(client.raw(0xc010_6459, &mut [0; 16]), Err(Errno::EINVAL), "not in this kernel");
    // GEM_CREATE from a caller whose structure is shorter, and longer.
    let mut create = [0; 16];
    create[0] = 1;
    assert_eq!(client.raw(0xc010_6440, &mut create), Ok(()));
    assert_eq!(u32::from_prefix(&create), 1);
    let mut create = [0xff; 40];
    create[..32].fill(0);
    create[..8].copy_from_slice(&4096_u64.to_le_bytes());
    create[16] = 2;
    assert_eq!(client.raw(0xc028_6440, &mut create), Ok(()));
    assert_eq!((u32::from_prefix(&create), create[32..] == [0xff; 8]), (2, true));
    for handle in [1, 2] {
        client.close(handle).unwrap();
    }
    let mut cap = GetCap { capability: 5, value: 0 };
    client.call(&drm::GET_CAP, &mut cap).unwrap();
    assert_eq!(cap.value, 3);
    assert_eq!(
        client.call(&drm::GEM_CHANGE_HANDLE, &mut drm::GemChangeHandle::default()),
        Err(Errno::EINVAL)
    );
}

fn query(client: &Client, args: Info, room: &mut [u8]) -> Result<(), Errno> {
    let mut args = Info {
        return_pointer: room.as_mut_ptr().expose_provenance() as u64,
        return_size: u32::try_from(room.len()).unwrap(),
        ..args
    };
    client.call(&amdgpu::INFO, &mut args)
}

#[test]
fn info_fills_as_much_as_there_is_room_for() {
    let host = SimHost::new(machine(1)).unwrap();
    let client = Client::open(&host.process(Credentials::USER));
    let ask = |query| Info { query, ..Info::default() };
    let mut room = [0xee; 450];
    query(&client, ask(info::DEV_INFO), &mut room).unwrap();
    let device = InfoDevice::from_prefix(&room);
    assert_eq!((device.family, device.virtual_address_offset), (141, 0x10000));
    assert_eq!(&room[440..], [0xee; 10]);
    let mut few = [0; 20];
    query(&client, ask(info::DEV_INFO), &mut few).unwrap();
    assert_eq!(few, room[..20]);
    let mut ip = InfoHwIp::default();
    let dma = Info { query_type: hw_ip::DMA, ..ask(info::HW_IP_INFO) };
    query(&client, dma, ip.as_bytes_mut()).unwrap();
    assert_eq!((ip.available_rings, ip.ib_start_alignment, ip.ib_size_alignment), (3, 256, 4));
    let second = Info { query_instance: 1, ..dma };
    assert_eq!(query(&client, second, ip.as_bytes_mut()), Err(Errno::EINVAL));
    let none = Info { query_type: hw_ip::NUM, ..dma };
    assert_eq!(query(&client, none, ip.as_bytes_mut()), Err(Errno::EINVAL));
    for (bad, room) in [(ask(0x77), &mut few[..]), (ask(info::DEV_INFO), &mut [])] {
        assert_eq!(query(&client, bad, room), Err(Errno::EINVAL));
    }
    let mut nowhere = Info { return_pointer: 4096, return_size: 4, ..ask(info::ACCEL_WORKING) };
    assert_eq!(client.call(&amdgpu::INFO, &mut nowhere), Err(Errno::EFAULT));
}

#[test]
fn info_counts_the_vram_that_is_used() {
    let host = host(1);
    let client = Client::open(&host.process(Credentials::USER));
    let used = || {
        let mut heaps = [0; 96];
        let ask = Info { query: info::MEMORY, ..Info::default() };
        query(&client, ask, &mut heaps).unwrap();
        u64::from_prefix(&heaps[16..])
    };
    let handle = client.create(domain::VRAM, 1 << 20);
    let fd = client.export(handle).unwrap();
    client.close(handle).unwrap();
    assert_eq!(used(), 1 << 20, "the dma-buf keeps it");
    drop(fd);
    assert_eq!(used(), 0);
    let mut sizes = [0; 24];
    query(&client, Info { query: info::VRAM_GTT, ..Info::default() }, &mut sizes).unwrap();
    assert_eq!(u64::from_prefix(&sizes), 1 << 30);
}

#[test]
fn a_mapping_needs_the_offset_the_length_and_the_right() {
    let host = host(1);
    let process = host.process(Credentials::USER);
    let (one, two) = (Client::open(&process), Client::open(&process));
    let handle = one.create(domain::VRAM, 1 << 14);
    let offset = one.mmap_offset(handle).unwrap();
    assert!(offset >= 0x1_0000_0000);
    one.node.map(offset, 1 << 14).unwrap().write(0, b"seen");
    let mut seen = [0; 4];
    one.node.map(offset, 4096).unwrap().read(0, &mut seen);
    assert_eq!(&seen, b"seen");
    let map = |client: &Client, offset, len| match client.node.map(offset, len) {
        Ok(_) => Ok(()),
        Err(DeviceError::Call { errno, .. }) => Err(errno),
        Err(other) => panic!("{other}"),
    };
    assert_eq!(map(&one, offset + 4096, 4096), Err(Errno::EINVAL));
    assert_eq!(map(&one, offset, 1 << 15), Err(Errno::EINVAL));
    assert_eq!(map(&two, offset, 4096), Err(Errno::EACCES));
    let fd = one.export(handle).unwrap();
    let imported = two.import(&fd).unwrap();
    assert_eq!(map(&two, offset, 4096), Ok(()));
    two.close(imported).unwrap();
    one.close(handle).unwrap();
    drop(fd);
    assert_eq!(host.vram_used(0), 0);
    assert_eq!(map(&one, offset, 4096), Err(Errno::EINVAL), "it is gone");
    drop((one, two));
    assert_clean(&host);
}

#[test]
fn a_dma_buf_comes_back_as_the_same_handle() {
    let host = host(2);
    let process = host.process(Credentials::USER);
    let (one, two) = (Client::open(&process), Client::open(&process));
    let handle = one.create(domain::VRAM, 4096);
    let (fd, again) = (one.export(handle).unwrap(), one.export(handle).unwrap());
    assert_eq!(one.import(&fd), Ok(handle));
    two.create(domain::GTT, 4096);
    assert_eq!((two.import(&fd), two.import(&again)), (Ok(2), Ok(2)));
    // One close is enough, however often it was imported.
    assert_eq!((two.close(2), two.close(2)), (Ok(()), Err(Errno::EINVAL)));
    let peer = Client::of_gpu(&process, 1);
    assert_eq!(peer.import(&fd), Ok(1));
    assert_eq!(host.open_dma_bufs(), {
        let mut open = [fd.as_raw_fd(), again.as_raw_fd()];
        open.sort_unstable();
        open
    });
}

#[test]
fn dma_bufs_that_cannot_be() {
    let host = host(1);
    let client = Client::open(&host.process(Credentials::USER));
    let pages = Pages::new(4096);
    let user = client.userptr(pages.address(), 4096, USERPTR).unwrap();
    assert_eq!(client.export(user).err(), Some(Errno::EPERM));
    assert_eq!(client.export(99).err(), Some(Errno::ENOENT));
    let flags = PrimeHandle { handle: user, flags: 0x4, fd: 0 };
    assert_eq!(client.call(&drm::PRIME_HANDLE_TO_FD, &mut flags.clone()), Err(Errno::EINVAL));
    assert_eq!(client.call(&drm::PRIME_FD_TO_HANDLE, &mut flags.clone()), Err(Errno::EINVAL));
    let file = tempfile::tempfile().unwrap().into();
    assert_eq!(client.import(&file), Err(Errno::EINVAL));
    assert_eq!(client.import_number(-1), Err(Errno::EBADF));
    client.close(user).unwrap();
    drop(client);
    let complaint = "PRIME_FD_TO_HANDLE of -1, which is no descriptor";
    assert!(complaints_of(&host)[0].ends_with(complaint), "{:?}", complaints_of(&host));
}

#[test]
fn an_argument_that_cannot_be_read() {
    let host = host(1);
    let client = Client::open(&host.process(Credentials::USER));
    let ctx_id = client.new_context();
    let mut cs = CsIn { ctx_id, num_chunks: 1, chunks: 8, ..CsIn::default() };
    assert_eq!(client.call(&amdgpu::CS, &mut cs), Err(Errno::EFAULT));
    client.free_context(ctx_id).unwrap();
    drop(client);
    assert_clean(&host);
}

#[test]
fn a_gpu_with_one_engine_has_one_ring() {
    let mut profile = Profile::gfx90a();
    for (engines, rings) in [(1, 1), (2, 3), (5, 3)] {
        profile.sdma_engines = engines;
        let host = SimHost::new(Machine::new(&profile, 1)).unwrap();
        let client = Client::open(&host.process(Credentials::USER));
        let mut ip = InfoHwIp::default();
        let dma = Info { query: info::HW_IP_INFO, query_type: hw_ip::DMA, ..Info::default() };
        query(&client, dma, ip.as_bytes_mut()).unwrap();
        assert_eq!(ip.available_rings, rings);
    }
}

#[test]
fn memory_of_kfd_is_mapped_through_the_file_that_is_its_address_space() {
    let host = host(1);
    let process = host.process(Credentials::USER);
    let kfd = open(&process, "/dev/kfd").unwrap();
    let (compute, other) = (Client::open(&process), Client::open(&process));
    let gpu_id = host.gpu_ids()[0];
    let drm_fd = u32::try_from(compute.node.as_fd().as_raw_fd()).unwrap();
    let mut acquire = kfd::AcquireVm { drm_fd, gpu_id };
    // SAFETY: the argument has no addresses.
    unsafe { kfd.call(&kfd::ACQUIRE_VM, &mut acquire) }.unwrap();
    let mut alloc = kfd::AllocMemoryOfGpu {
        va_addr: 0x7000_0000,
        size: 8192,
        gpu_id,
        flags: kfd::flags::VRAM | kfd::flags::WRITABLE | kfd::flags::PUBLIC,
        ..kfd::AllocMemoryOfGpu::default()
    };
    // SAFETY: the address is the GPU's.
    unsafe { kfd.call(&kfd::ALLOC_MEMORY_OF_GPU, &mut alloc) }.unwrap();
    let map = |client: &Client| client.node.map(alloc.mmap_offset, 8192);
    map(&compute).unwrap().write(0, b"kfd");
    assert!(matches!(map(&other), Err(DeviceError::Call { errno: Errno::EACCES, .. })));
    let gone = host.plan(Fault::vanished(0));
    let mut free = kfd::FreeMemoryOfGpu { handle: alloc.handle };
    // SAFETY: the argument has no addresses.
    let answer = unsafe { kfd.call(&kfd::FREE_MEMORY_OF_GPU, &mut free) };
    assert!(matches!(answer, Err(DeviceError::Call { errno: Errno::ENODEV, .. })), "{answer:?}");
    gone.release();
    // The application's own files may be closed with whatever is in them.
    compute.create(domain::GTT, 4096);
    drop((kfd, compute, other));
    assert_clean(&host);
}
