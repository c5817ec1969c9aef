//! Address spaces, allocation, mapping, dma-bufs.

use super::*;

const VA: u64 = 0x7000_0000_0000;

#[test]
fn a_render_node_becomes_an_address_space_once() {
    let bench = Bench::new(KernelRelease::V6_12);
    let acquire = |drm_fd, gpu_id| answer(&*bench.kfd, &ACQUIRE_VM, AcquireVm { drm_fd, gpu_id });
    assert_eq!(acquire(u32::MAX, bench.id(0)), Err(Errno::EINVAL));
    let kfd = bench.kfd.as_fd().as_raw_fd().cast_unsigned();
    assert_eq!(acquire(kfd, bench.id(0)), Err(Errno::EINVAL));
    assert_eq!(acquire(bench.fd(0), 0), Err(Errno::EINVAL));
    assert_eq!(bench.acquire(0, 1), Err(Errno::EINVAL), "another GPU's");
    assert_eq!(bench.acquire(0, 0), Ok(()));
    assert_eq!(bench.acquire(0, 0), Ok(()), "the same again");
    assert_eq!(bench.acquire(0, 1), Err(Errno::EBUSY));
    let other = Bench::of(bench.host.clone(), bench.host.process(Credentials::USER));
    let args = AcquireVm { drm_fd: bench.fd(0), gpu_id: bench.id(0) };
    assert_eq!(answer(&*other.kfd, &ACQUIRE_VM, args), Err(Errno::EINVAL), "in use");
}

#[test]
fn the_kernel_keeps_the_render_node() {
    let mut bench = Bench::bound(KernelRelease::V6_12);
    bench.renders.clear();
    bench.mapped(VA, 4096);
}

#[test]
fn what_cannot_be_allocated() {
    for kernel in ALL {
        let bench = Bench::new(kernel);
        assert_eq!(bench.alloc(VA, 4096, flags::VRAM), Err(Errno::ENODEV), "no address space");
        bench.acquire(0, 0).unwrap();
        assert_eq!(bench.alloc(VA, 0, flags::VRAM), Err(Errno::EINVAL));
        assert_eq!(bench.alloc(VA, 4096, flags::WRITABLE), Err(Errno::EINVAL), "no kind");
        assert_eq!(bench.alloc(VA, 4096, flags::USERPTR), Err(Errno::EINVAL), "address 0");
        assert_eq!(bench.alloc(VA, 4096, flags::DOORBELL), Err(Errno::EINVAL));
        assert_eq!(bench.alloc(VA, 8192, flags::MMIO_REMAP), Err(Errno::EINVAL));
        let mut args = bench.alloc_args(VA, 4096, flags::USERPTR);
        args.mmap_offset = 4096;
        assert_eq!(answer(&*bench.kfd, &ALLOC_MEMORY_OF_GPU, args), Err(Errno::EFAULT));
        args.gpu_id = 0;
        assert_eq!(answer(&*bench.kfd, &ALLOC_MEMORY_OF_GPU, args), Err(Errno::EINVAL));
        let large = bench.alloc(VA, 60 << 20, flags::VRAM).unwrap();
        assert_eq!(bench.alloc(VA + (1 << 30), 8 << 20, flags::VRAM), Err(Errno::ENOMEM));
        assert_eq!(bench.free(large), Ok(()));
        bench.alloc(VA, 8 << 20, flags::VRAM).unwrap();
        bench.alloc(VA, 1 << 40, flags::GTT).unwrap();
    }
    let mut machine = Machine::new(&Profile::gfx900(), 1);
    machine.gpus[0].profile.large_bar = false;
    let bench = Bench::on(machine);
    bench.acquire(0, 0).unwrap();
    assert_eq!(bench.alloc(VA, 4096, flags::VRAM | flags::PUBLIC), Err(Errno::EINVAL));
    bench.alloc(VA, 4096, flags::VRAM).unwrap();
}

#[test]
fn handles_name_the_gpu_and_the_lowest_free_number() {
    let bench = Bench::bound(KernelRelease::V6_12);
    let gpu = u64::from(bench.id(0)) << 32;
    let three: Vec<_> =
        (0..3).map(|n| bench.alloc(VA + n * 4096, 1, flags::GTT).unwrap()).collect();
    assert_eq!(three, [gpu, gpu | 1, gpu | 2]);
    bench.free(three[1]).unwrap();
    assert_eq!(bench.alloc(VA, 4096, flags::GTT), Ok(gpu | 1));
    let bo = &bench.host.bos(bench.pid())[2];
    assert_eq!((bo.size, bo.handle, bo.gpu_id), (4096, gpu | 2, bench.id(0)), "whole pages");
}

#[test]
fn every_kind_says_where_to_map_it() {
    let bench = Bench::bound(KernelRelease::V6_12);
    let offset = |size, kind| {
        let args = bench.alloc_args(VA, size, kind | flags::WRITABLE);
        done(&*bench.kfd, &ALLOC_MEMORY_OF_GPU, args).mmap_offset
    };
    assert_eq!(offset(4096, flags::VRAM), 0x1_0000_0000);
    assert_eq!(offset(8192, flags::GTT), 0x1_0000_1000);
    assert_eq!(offset(4096, flags::VRAM), 0x1_0000_3000);
    assert_eq!(offset(8192, flags::DOORBELL), mmap::TYPE_DOORBELL | mmap::gpu_id(bench.id(0)));
    assert_eq!(offset(4096, flags::MMIO_REMAP), mmap::gpu_id(bench.id(0)));
    let page = memmap2::MmapMut::map_anon(4096).unwrap();
    let mut args = bench.alloc_args(VA, 4096, flags::USERPTR);
    args.mmap_offset = page.as_ptr().expose_provenance() as u64;
    assert_eq!(answer(&*bench.kfd, &ALLOC_MEMORY_OF_GPU, args), Ok(()));
    assert_eq!(bench.host.bos(bench.pid()).last().unwrap().user_address, args.mmap_offset);
    args.mmap_offset += 8;
    args.size = 8;
    assert_eq!(answer(&*bench.kfd, &ALLOC_MEMORY_OF_GPU, args), Ok(()));
    assert_eq!(bench.host.complaints().len(), 1, "unaligned");
}

#[test]
fn mapping_counts_how_far_it_came() {
    let bench = Bench::bound(KernelRelease::V6_12);
    let handle = bench.alloc(VA, 8192, flags::VRAM).unwrap();
    let both = [bench.id(0), bench.id(1)];
    assert_eq!(bench.map(handle, &[]), (Err(Errno::EINVAL), 0));
    let mut args = map_args(handle, &both);
    args.n_success = 3;
    assert_eq!(answer(&*bench.kfd, &MAP_MEMORY_TO_GPU, args), Err(Errno::EINVAL));
    args = MapMemoryToGpu { device_ids_array_ptr: 8, ..map_args(handle, &both) };
    assert_eq!(answer(&*bench.kfd, &MAP_MEMORY_TO_GPU, args), Err(Errno::EFAULT));
    assert_eq!(bench.map(handle + 9, &both), (Err(Errno::ENOMEM), 0));
    assert_eq!(bench.map(handle & 0xff, &both), (Err(Errno::EINVAL), 0));
    assert_eq!(bench.map(handle, &[both[0], 1]), (Err(Errno::EINVAL), 1));
    assert_eq!(bench.host.bos(bench.pid())[0].mapped, [both[0]]);
    assert_eq!(bench.map(handle, &both), (Ok(()), 2), "what is mapped stays");
    assert_eq!(bench.free(handle), Err(Errno::EBUSY));
    assert_eq!(bench.unmap(handle, &both[..1]), Ok(()));
    assert_eq!(bench.free(handle), Err(Errno::EBUSY));
    assert_eq!(bench.unmap(handle, &both), Ok(()), "what is not mapped does not matter");
    assert_eq!(bench.unmap(handle, &[1]), Err(Errno::EINVAL));
    assert_eq!(bench.free(handle), Ok(()));
    assert_eq!(bench.free(handle), Err(Errno::EINVAL));
}

#[test]
fn addresses_are_used_once() {
    let bench = Bench::bound(KernelRelease::V6_12);
    bench.mapped(VA, 8192);
    let overlapping = bench.alloc(VA + 4096, 4096, flags::VRAM).unwrap();
    assert_eq!(bench.map(overlapping, &[bench.id(0)]), (Err(Errno::EINVAL), 0));
    assert_eq!(bench.map(overlapping, &[bench.id(1)]), (Ok(()), 1), "another address space");
    let ring = bench.alloc(VA + 8192, 16384, flags::GTT | flags::AQL_QUEUE_MEM).unwrap();
    assert_eq!(bench.map(ring, &[bench.id(0)]), (Ok(()), 1));
    assert_eq!(bench.host.bos(bench.pid()).last().unwrap().size, 8192);
    // The ring is there twice, one after the other.
    let behind = bench.alloc(VA + 16384, 4096, flags::GTT).unwrap();
    assert_eq!(bench.map(behind, &[bench.id(0)]), (Err(Errno::EINVAL), 0));
    assert_eq!(bench.unmap(ring, &[bench.id(0)]), Ok(()));
    assert_eq!(bench.map(behind, &[bench.id(0)]), (Ok(()), 1));
}

#[test]
fn dma_bufs_share_the_memory() {
    for kernel in [KernelRelease::V6_12, KernelRelease::V7_2] {
        let bench = Bench::bound(kernel);
        let handle = bench.mapped(VA, 8192);
        let export = |handle, flags| ExportDmabuf { handle, flags, dmabuf_fd: 0 };
        let call = |args| answer(&*bench.kfd, &EXPORT_DMABUF, args);
        assert_eq!(call(export(handle + 1, 0)), Err(Errno::EINVAL));
        assert_eq!(call(export(handle, 0x100)), Err(Errno::EINVAL));
        let fd = done(&*bench.kfd, &EXPORT_DMABUF, export(handle, 0x80002)).dmabuf_fd;
        let fd = owned(fd);
        let dmabuf_fd = fd.as_raw_fd().cast_unsigned();
        let info = GetDmabufInfo { dmabuf_fd, ..GetDmabufInfo::default() };
        let info = done(&*bench.kfd, &GET_DMABUF_INFO, info);
        assert_eq!((info.size, info.gpu_id, info.flags), (8192, bench.id(0), flags::VRAM));
        let import =
            ImportDmabuf { va_addr: VA - (1 << 40), handle: 0, gpu_id: bench.id(1), dmabuf_fd };
        let imported = done(&*bench.kfd, &IMPORT_DMABUF, import).handle;
        assert_eq!(bench.map(imported, &[bench.id(1)]), (Ok(()), 1));
        bench.host.write_bo(bench.pid(), VA, 5, b"shared").unwrap();
        let mut bytes = [0; 6];
        bench.host.read_bo(bench.pid(), import.va_addr, 5, &mut bytes).unwrap();
        assert_eq!(&bytes, b"shared");
        let bad = ImportDmabuf { dmabuf_fd: bench.fd(0), ..import };
        assert_eq!(answer(&*bench.kfd, &IMPORT_DMABUF, bad), Err(Errno::EINVAL));
        let bad = ImportDmabuf { gpu_id: 1, ..import };
        assert_eq!(answer(&*bench.kfd, &IMPORT_DMABUF, bad), Err(Errno::EINVAL));
        // The memory is there until nobody has it any more.
        bench.unmap(handle, &[bench.id(0)]).unwrap();
        bench.free(handle).unwrap();
        let left = AvailableMemory { gpu_id: bench.id(0), ..Default::default() };
        assert_eq!(done(&*bench.kfd, &AVAILABLE_MEMORY, left).available, (64 << 20) - 8192);
    }
}

#[test]
fn shared_virtual_memory_keeps_its_addresses() {
    let bench = Bench::bound(KernelRelease::V6_12);
    let call = |op, start, size, attributes: &[_]| svm(&*bench.kfd, op, (start, size), attributes);
    assert!(call(0, VA, 8192, &[(5, 1), (2, bench.id(0))]).is_ok());
    assert_eq!(call(0, VA, 100, &[(5, 1)]), Err(Errno::EINVAL));
    assert_eq!(call(0, VA, 4096, &[(9, 1)]), Err(Errno::EINVAL));
    assert_eq!(call(0, VA, 4096, &[(2, 1)]), Err(Errno::EINVAL));
    assert_eq!(call(2, VA, 4096, &[]), Err(Errno::EINVAL));
    assert_eq!(call(1, VA, 4096, &[(5, 0)]), Ok(1));
    assert_eq!(bench.alloc(VA + 4096, 4096, flags::VRAM), Err(Errno::EADDRINUSE));
    bench.mapped(VA + 8192, 4096);
    assert_eq!(call(0, VA + 8192, 4096, &[(5, 1)]), Err(Errno::EADDRINUSE));
}
