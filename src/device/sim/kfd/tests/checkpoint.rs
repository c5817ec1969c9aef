//! PROCESS_INFO, CHECKPOINT, UNPAUSE.

use std::fs;

use super::{cycle::Source, *};
use crate::{
    abi::kfd::private::CriuQueuePrivate,
    device::sim::{BoPlan, Complaint, QueueState},
};

fn states(source: &Source) -> Vec<(QueueState, u32)> {
    let queues = source.host.queues(source.pid());
    queues.iter().map(|queue| (queue.state, queue.evictions)).collect()
}

fn machine(kernel: KernelRelease) -> Machine {
    Machine::new(&Profile::gfx90a(), 2).kernel(kernel)
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_stopped_process_is_seen_until_it_runs_again() {
    let source = Source::new(machine(KernelRelease::V6_12), &[]);
    assert_eq!(source.host.left_stopped(), []);
    let kfd = source.kfd();
    kfd.process_info().unwrap();
    assert!(source.host.is_paused(source.pid()));
    assert_eq!(states(&source), [(QueueState::Evicted, 1); 2]);
    let what = "still paused: UNPAUSE was forgotten".into();
    assert_eq!(source.host.left_stopped(), [Complaint { pid: source.pid(), what }]);
    kfd.unpause().unwrap();
    assert_eq!(states(&source), [(QueueState::Active, 1); 2]);
    assert_eq!(source.host.left_stopped(), []);
    assert_eq!(kfd.unpause().map_err(|error| errno(&error)), Err(Errno::EINVAL));
}

#[test]
fn stopping_twice_differs_between_kernels() {
    for kernel in ALL {
        let source = Source::new(machine(kernel), &[]);
        let kfd = source.kfd();
        let info = kfd.process_info().unwrap();
        assert_eq!(kfd.process_info().unwrap(), info);
        kfd.unpause().unwrap();
        assert!(!source.host.is_paused(source.pid()));
        let after = if kernel == KernelRelease::V6_12 {
            assert_eq!(source.host.left_stopped(), []);
            QueueState::Active
        } else {
            let complaints = source.host.left_stopped();
            assert_eq!(complaints[0].what, "not paused, but its queues are stopped 1 times");
            QueueState::Evicted
        };
        assert_eq!(states(&source), [(after, 1); 2], "{kernel:?}");
        // It cannot be made good by another UNPAUSE.
        assert_eq!(kfd.unpause().map_err(|error| errno(&error)), Err(Errno::EINVAL));
    }
}

#[test]
fn how_much_there_is() {
    for kernel in ALL {
        let source = Source::new(machine(kernel), &[BoPlan::vram(0, 4096), BoPlan::gtt(1, 4096)]);
        let kfd = source.kfd();
        let info = kfd.process_info().unwrap();
        let counted = source.app.bos().len() + source.app.runtime_bos().len();
        assert_eq!((info.pid, info.devices, info.objects), (source.pid(), 2, 2 + 4));
        assert_eq!(info.bos as usize, counted);
        let stack = source.host.machine().gpus[0].profile.ctl_stack_size();
        let bo = if kernel == KernelRelease::V6_1 { 80 } else { 272 };
        let expected = 8 + 2 * 8 + counted as u64 * bo + 2 * (120 + 2048 + stack) + 4 * 64;
        assert_eq!(info.private_bytes, expected, "{kernel:?}");
    }
}

#[test]
fn a_queue_that_cannot_be_written_down_stops_nothing() {
    let source = Source::new(machine(KernelRelease::V6_12), &[]);
    let app = &source.app;
    let at = |n: usize| app.runtime_bos()[n].va;
    // Events, doorbells and MMIO come first, then the ring and the pointers.
    let mut args = CreateQueue {
        ring_base_address: at(3),
        write_pointer_address: at(4),
        read_pointer_address: at(5),
        ring_size: u32::try_from(app.runtime_bos()[3].size).unwrap(),
        gpu_id: source.host.gpu_ids()[0],
        queue_type: queue_type::SDMA_BY_ENG_ID,
        queue_percentage: 100,
        ..CreateQueue::default()
    };
    // SAFETY: the addresses are of the GPU.
    unsafe { app.kfd().call(&CREATE_QUEUE, &mut args) }.unwrap();
    let failed = source.kfd().process_info().unwrap_err();
    assert_eq!(errno(&failed), Errno::EOPNOTSUPP);
    assert!(!source.host.is_paused(source.pid()));
    assert!(states(&source).iter().all(|&(state, _)| state == QueueState::Active));
    assert_eq!(source.host.left_stopped(), []);
}

#[test]
fn what_the_buckets_say() {
    for kernel in ALL {
        let plan = [
            BoPlan::vram(1, 4096),
            BoPlan { flags: flags::VRAM, ..BoPlan::vram(0, 10000) },
            BoPlan::userptr(0, 4096),
        ];
        let source = Source::new(machine(kernel), &plan);
        let checkpoint = source.checkpoint();
        let ids = source.host.gpu_ids();
        for (device, &id) in checkpoint.devices.iter().zip(ids) {
            let expected = CriuDeviceBucket {
                user_gpu_id: id,
                actual_gpu_id: id,
                ..CriuDeviceBucket::default()
            };
            assert_eq!(*device, expected);
        }
        // GPU by GPU, by handle.
        let listed: Vec<_> =
            checkpoint.bos.iter().map(|bo| (bo.bucket.gpu_id, bo.bucket.addr)).collect();
        let bos = source.host.bos(source.pid());
        assert_eq!(listed, bos.iter().map(|bo| (bo.gpu_id, bo.va)).collect::<Vec<_>>());
        assert!(listed.is_sorted_by_key(|(id, _)| ids.iter().position(|one| one == id)));
        for (bo, known) in checkpoint.bos.iter().zip(&bos) {
            let bucket = &bo.bucket;
            assert_eq!((bucket.size, bucket.alloc_flags), (known.size, known.flags));
            assert_eq!((bucket.restored_offset, bucket.pad), (0, 0));
            let contents = known.flags & (flags::VRAM | flags::GTT) != 0;
            assert_eq!(bo.dma_buf.is_some(), contents);
            assert_eq!(bucket.dmabuf_fd == INVALID_FD, !contents);
            let gpu = mmap::gpu_id(known.gpu_id);
            match known.flags & (flags::DOORBELL | flags::MMIO_REMAP) {
                flags::DOORBELL => assert_eq!(bucket.offset, mmap::TYPE_DOORBELL | gpu),
                flags::MMIO_REMAP => assert_eq!(bucket.offset, gpu),
                _ => assert!(bucket.offset >= 0x1_0000_0000 && bucket.offset < 1 << 40),
            }
        }
        let offsets: Vec<_> = source.app.bos().iter().map(|bo| (bo.va, bo.mmap_offset)).collect();
        for (va, offset) in offsets {
            let bo = checkpoint.bos.iter().find(|bo| bo.bucket.addr == va).unwrap();
            assert_eq!(bo.bucket.offset, offset);
        }
    }
}

#[test]
fn what_is_not_the_processs_own_is_skipped() {
    for kernel in ALL {
        let bench = Bench::bound(kernel);
        bench.alloc(0, 4096, flags::GTT).unwrap();
        bench.alloc(0x4000, 4096, flags::GTT).unwrap();
        bench.alloc(0x1_0000, 4096, flags::GTT).unwrap();
        bench.alloc(0x2_0000, 4096, flags::GTT).unwrap();
        let info = CriuArgs { op: criu_op::PROCESS_INFO, ..CriuArgs::default() };
        let counted = done(&*bench.kfd, &CRIU_OP, info).num_bos;
        // At or below 0x4000 in 6.1, and 0x10000 later, where 0 counts.
        assert_eq!(counted, 2, "{kernel:?}");
        let mut buckets = [CriuBoBucket::default(); 2];
        let mut devices = [CriuDeviceBucket::default(); 2];
        let mut private = vec![0_u8; 4096];
        let args = CriuArgs {
            op: criu_op::CHECKPOINT,
            devices: devices.as_mut_ptr().expose_provenance() as u64,
            bos: buckets.as_mut_ptr().expose_provenance() as u64,
            priv_data: private.as_mut_ptr().expose_provenance() as u64,
            ..done(&*bench.kfd, &CRIU_OP, info)
        };
        done(&*bench.kfd, &CRIU_OP, CriuArgs { op: criu_op::CHECKPOINT, ..args });
        let listed = buckets.map(|bucket| {
            drop(owned(bucket.dmabuf_fd));
            bucket.addr
        });
        let old = kernel == KernelRelease::V6_1;
        assert_eq!(listed, if old { [0x1_0000, 0x2_0000] } else { [0, 0x2_0000] });
    }
}

#[test]
fn checkpoints_that_are_refused_leave_no_descriptor() {
    let bench = Bench::bound(KernelRelease::V6_12);
    bench.mapped(0x10_0000, 4096);
    bench.mapped(0x20_0000, 4096);
    let mut buckets = [CriuBoBucket::default(); 2];
    let mut devices = [CriuDeviceBucket::default(); 2];
    let mut private = vec![0_u8; 4096];
    let before = descriptors();
    let good = CriuArgs {
        op: criu_op::CHECKPOINT,
        devices: devices.as_mut_ptr().expose_provenance() as u64,
        bos: buckets.as_mut_ptr().expose_provenance() as u64,
        priv_data: private.as_mut_ptr().expose_provenance() as u64,
        priv_data_size: 8 + 16 + 2 * 272,
        num_devices: 2,
        num_bos: 2,
        ..CriuArgs::default()
    };
    let call = |args| answer(&*bench.kfd, &CRIU_OP, args);
    assert_eq!(call(good), Err(Errno::EINVAL), "not paused");
    bench.criu(criu_op::PROCESS_INFO).unwrap();
    for (args, errno) in [
        (CriuArgs { devices: 0, ..good }, Errno::EINVAL),
        (CriuArgs { bos: 0, ..good }, Errno::EINVAL),
        (CriuArgs { priv_data: 0, ..good }, Errno::EINVAL),
        (CriuArgs { num_devices: 1, ..good }, Errno::EINVAL),
        (CriuArgs { num_bos: 3, ..good }, Errno::EINVAL),
        (CriuArgs { num_objects: 1, ..good }, Errno::EINVAL),
        (CriuArgs { priv_data_size: good.priv_data_size + 8, ..good }, Errno::EINVAL),
        (CriuArgs { devices: 8, ..good }, Errno::EFAULT),
        (CriuArgs { bos: 8, ..good }, Errno::EFAULT),
        (CriuArgs { priv_data: 8, ..good }, Errno::EFAULT),
    ] {
        assert_eq!(call(args), Err(errno), "{args:?}");
        assert_eq!(descriptors(), before);
    }
    assert_eq!(call(good), Ok(()));
    assert_eq!(descriptors(), before + 2);
    buckets.iter().for_each(|bucket| drop(owned(bucket.dmabuf_fd)));
    // One descriptor too few.
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // (The one that reads the directory is counted, and gone.)
    let highest = fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap())
        .max()
        .unwrap();
    let files: Vec<_> = (0..=highest).map_while(|_| fs::File::open("/dev/null").ok()).collect();
    let next = nix::unistd::dup(&bench.kfd).unwrap().as_raw_fd().cast_unsigned();
    setrlimit(Resource::RLIMIT_NOFILE, u64::from(next) + 1, hard).unwrap();
    let before = descriptors_without_reading(&bench);
    assert_eq!(call(good), Err(Errno::EMFILE));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert_eq!(descriptors_without_reading(&bench), before);
    drop(files);
    assert_eq!(call(good), Ok(()));
}

/// The lowest number that a descriptor could have.
fn descriptors_without_reading(bench: &Bench) -> u32 {
    nix::unistd::dup(&bench.kfd).map_or(u32::MAX, |fd| fd.as_raw_fd().cast_unsigned())
}

#[test]
fn the_private_data_has_the_kernels_layout() {
    let all = BoPlan { all_gpus: true, ..BoPlan::vram(1, 4096) };
    for kernel in ALL {
        let source = Source::new(machine(kernel), &[BoPlan::userptr(0, 4096), all]);
        let checkpoint = source.checkpoint();
        let record = if kernel == KernelRelease::V6_1 { 80 } else { 272 };
        let data = &checkpoint.private;
        let word = |at: usize| u32::from_prefix(&data[at..]);
        assert_eq!((word(0), word(4)), (1, 0));
        assert!(data[8..24].iter().all(|&byte| byte == 0));
        let bos = source.host.bos(source.pid());
        for (n, bo) in bos.iter().enumerate() {
            let at = 24 + n * record;
            assert_eq!(u64::from_prefix(&data[at..]), bo.user_address);
            assert_eq!(u64::from(word(at + 8)), bo.handle & 0xffff_ffff);
            for (gpu, &id) in bo.mapped.iter().chain(&[0; 2]).enumerate() {
                assert_eq!(word(at + 12 + 4 * gpu), id);
            }
        }
        let mut at = 24 + bos.len() * record;
        for (n, queue) in source.host.queues(source.pid()).iter().enumerate() {
            let record = CriuQueuePrivate::from_prefix(&data[at..]);
            assert_eq!((record.object_type, record.q_id), (0, u32::try_from(n).unwrap()));
            assert_eq!((record.gpu_id, record.format, record.kind), (queue.gpu_id, 1, 0));
            at += 120;
            let saved = [&queue.saved.0[..], &queue.saved.1].concat();
            assert_eq!(data[at..at + saved.len()], saved);
            at += saved.len();
        }
        for (n, &id) in source.app.events().iter().enumerate() {
            assert_eq!((word(at), word(at + 16)), (1, id));
            let page = if n == 0 { source.app.runtime_bos()[0].handle } else { 0 };
            assert_eq!(u64::from_prefix(&data[at + 8..]), page);
            at += 64;
        }
        assert_eq!(at, data.len());
    }
}
