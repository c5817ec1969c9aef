//! Queues: what they need, what they hold, when they run.

use super::*;
use crate::device::sim::{Application, BoPlan, QueueState, kfd::save_area};

const RING: u64 = 0x7000_0000_0000;
const POINTERS: u64 = RING + 0x10_0000;
const EOP: u64 = RING + 0x20_0000;
const SAVE: u64 = RING + 0x1000_0000;

/// A process with the buffers of a compute queue, and the call that makes it.
fn with_buffers(kernel: KernelRelease) -> (Bench, CreateQueue) {
    let bench = Bench::bound(kernel);
    let profile = &bench.host.machine().gpus[0].profile;
    let save_size = u32::try_from(profile.cwsr_size()).unwrap();
    for (va, size) in [
        (RING, 65536),
        (POINTERS, 4096),
        (POINTERS + 4096, 4096),
        (EOP, 4096),
        (SAVE, save_area(profile, save_size)),
    ] {
        let handle = bench.alloc(va, size, flags::GTT).unwrap();
        assert_eq!(bench.map(handle, &[bench.id(0)]), (Ok(()), 1));
    }
    let args = CreateQueue {
        ring_base_address: RING,
        write_pointer_address: POINTERS + 8,
        read_pointer_address: POINTERS + 4096,
        ring_size: 65536,
        gpu_id: bench.id(0),
        queue_type: queue_type::COMPUTE,
        queue_percentage: 100,
        queue_priority: 15,
        eop_buffer_address: EOP,
        eop_buffer_size: 4096,
        ctx_save_restore_address: SAVE,
        ctx_save_restore_size: save_size,
        ctl_stack_size: u32::try_from(profile.ctl_stack_size()).unwrap(),
        ..CreateQueue::default()
    };
    (bench, args)
}

#[test]
fn limits_of_all_kernels() {
    for kernel in ALL {
        let (bench, good) = with_buffers(kernel);
        let call = |args| answer(&*bench.kfd, &CREATE_QUEUE, args);
        for (args, errno) in [
            (CreateQueue { queue_percentage: 101, ..good }, Errno::EINVAL),
            (CreateQueue { queue_priority: 16, ..good }, Errno::EINVAL),
            (CreateQueue { ring_size: 65537, ..good }, Errno::EINVAL),
            (CreateQueue { gpu_id: 1, ..good }, Errno::EINVAL),
            (CreateQueue { ring_base_address: 1 << 63, ..good }, Errno::EFAULT),
            (CreateQueue { read_pointer_address: 1 << 63, ..good }, Errno::EFAULT),
            (CreateQueue { eop_buffer_address: 1 << 63, ..good }, Errno::EFAULT),
            (CreateQueue { queue_type: 5, ..good }, Errno::from_raw(524)),
        ] {
            assert_eq!(call(args), Err(errno), "{kernel:?} {args:?}");
        }
        let made = done(&*bench.kfd, &CREATE_QUEUE, good);
        assert_eq!(made.queue_id, 0);
        let at = mmap::TYPE_DOORBELL | mmap::gpu_id(bench.id(0));
        assert_eq!(made.doorbell_offset, at);
        let unbound = Bench::new(kernel);
        let args = CreateQueue { gpu_id: unbound.id(0), ..good };
        assert_eq!(answer(&*unbound.kfd, &CREATE_QUEUE, args), Err(Errno::ESRCH));
    }
}

#[test]
fn newer_kernels_look_at_every_buffer() {
    for kernel in ALL {
        let (bench, good) = with_buffers(kernel);
        for args in [
            CreateQueue { ring_base_address: RING + 4096, ..good },
            CreateQueue { ring_size: 32768, ..good },
            CreateQueue { write_pointer_address: RING, ..good },
            CreateQueue { read_pointer_address: RING - 4096, ..good },
            CreateQueue { eop_buffer_address: EOP + 4096, ..good },
            CreateQueue { eop_buffer_size: 2048, ..good },
            CreateQueue { ctl_stack_size: good.ctl_stack_size + 4096, ..good },
            CreateQueue { ctx_save_restore_size: good.ctx_save_restore_size - 4096, ..good },
            CreateQueue { ctx_save_restore_size: good.ctx_save_restore_size + 4096, ..good },
            CreateQueue { ctx_save_restore_address: SAVE + 4096, ..good },
        ] {
            let expected = if kernel == KernelRelease::V6_1 { Ok(()) } else { Err(Errno::EINVAL) };
            assert_eq!(answer(&*bench.kfd, &CREATE_QUEUE, args), expected, "{kernel:?} {args:?}");
        }
        done(&*bench.kfd, &CREATE_QUEUE, good);
    }
}

#[test]
fn newer_kernels_keep_what_a_queue_uses() {
    for kernel in ALL {
        let (bench, good) = with_buffers(kernel);
        let made = done(&*bench.kfd, &CREATE_QUEUE, good);
        let ring = bench.host.bos(bench.pid())[0].handle;
        let gpu = [bench.id(0)];
        let answered = bench.unmap(ring, &gpu);
        if kernel == KernelRelease::V6_1 {
            assert_eq!(answered, Ok(()));
            continue;
        }
        assert_eq!(answered, Err(Errno::EBUSY));
        assert_eq!(bench.free(ring), Err(Errno::EBUSY));
        let queue_id = made.queue_id;
        assert_eq!(answer(&*bench.kfd, &DESTROY_QUEUE, DestroyQueue { queue_id, pad: 0 }), Ok(()));
        assert_eq!(bench.unmap(ring, &gpu), Ok(()));
        assert_eq!(bench.free(ring), Ok(()));
    }
}

#[test]
fn queues_are_updated_and_destroyed_by_number() {
    let (bench, good) = with_buffers(KernelRelease::V6_12);
    let first = done(&*bench.kfd, &CREATE_QUEUE, good);
    let second = done(&*bench.kfd, &CREATE_QUEUE, good);
    assert_eq!((first.queue_id, second.queue_id), (0, 1));
    assert_eq!(second.doorbell_offset, first.doorbell_offset + 8);
    let update = UpdateQueue {
        ring_base_address: RING,
        queue_id: 1,
        ring_size: 65536,
        queue_percentage: 0,
        queue_priority: 1,
    };
    let call = |args| answer(&*bench.kfd, &UPDATE_QUEUE, args);
    assert_eq!(call(UpdateQueue { queue_id: 2, ..update }), Err(Errno::EFAULT));
    assert_eq!(call(UpdateQueue { queue_percentage: 101, ..update }), Err(Errno::EINVAL));
    assert_eq!(call(UpdateQueue { ring_size: 32768, ..update }), Err(Errno::EINVAL));
    assert_eq!(call(update), Ok(()));
    let states: Vec<_> = bench.host.queues(bench.pid()).iter().map(|queue| queue.state).collect();
    assert_eq!(states, [QueueState::Active, QueueState::Idle]);
    let destroy = |queue_id| answer(&*bench.kfd, &DESTROY_QUEUE, DestroyQueue { queue_id, pad: 0 });
    assert_eq!(destroy(0), Ok(()));
    assert_eq!(destroy(0), Err(Errno::EINVAL));
    assert_eq!(done(&*bench.kfd, &CREATE_QUEUE, good).queue_id, 0);
    let xnack = SetXnackMode { xnack_enabled: 0 };
    assert_eq!(answer(&*bench.kfd, &SET_XNACK_MODE, xnack), Err(Errno::EBUSY));
}

#[test]
fn there_are_only_so_many_sdma_queues() {
    let (bench, good) = with_buffers(KernelRelease::V6_12);
    let sdma = CreateQueue { queue_type: queue_type::SDMA, ..good };
    let offsets: Vec<_> =
        (0..16).map(|_| done(&*bench.kfd, &CREATE_QUEUE, sdma).doorbell_offset).collect();
    assert_eq!(answer(&*bench.kfd, &CREATE_QUEUE, sdma), Err(Errno::ENOMEM));
    let unique: std::collections::BTreeSet<_> = offsets.iter().collect();
    assert_eq!(unique.len(), 16);
    let xgmi = CreateQueue { queue_type: queue_type::SDMA_XGMI, ..good };
    done(&*bench.kfd, &CREATE_QUEUE, xgmi);
}

#[test]
fn a_queue_that_is_made_while_its_process_is_stopped_does_not_run() {
    let (bench, good) = with_buffers(KernelRelease::V6_12);
    bench.criu(criu_op::PROCESS_INFO).unwrap();
    done(&*bench.kfd, &CREATE_QUEUE, good);
    assert_eq!(bench.host.queues(bench.pid())[0].state, QueueState::Evicted);
    bench.criu(criu_op::UNPAUSE).unwrap();
    assert_eq!(bench.host.queues(bench.pid())[0].state, QueueState::Active);
}

#[test]
fn an_application_starts_on_every_model_and_kernel() {
    for kernel in ALL {
        for name in ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx942"] {
            let profile = Profile::named(name).unwrap();
            let machine = Machine::new(&profile, 2).kernel(kernel);
            let host = SimHost::new(machine).unwrap();
            let process = host.process(Credentials::USER);
            let plan = [BoPlan::vram(0, 4096), BoPlan::gtt(1, 100), BoPlan::userptr(1, 8192)];
            let app = Application::start(&process, &plan).unwrap();
            let states: Vec<_> = host.queues(process.pid()).iter().map(|q| q.state).collect();
            assert_eq!(states, [QueueState::Active; 2], "{name} {kernel:?}");
            assert_eq!((app.bos().len(), app.events().len()), (3, 4));
            assert_eq!(host.complaints(), []);
            drop(app);
            assert_eq!(host.queues(process.pid()), []);
        }
    }
}

#[test]
fn what_few_queues_have() {
    let (bench, args) = with_buffers(KernelRelease::V6_12);
    let kfd = &*bench.kfd;
    let enable = RuntimeEnable { mode_mask: 1, ..RuntimeEnable::default() };
    let queue_id = done(kfd, &CREATE_QUEUE, args).queue_id;
    assert_eq!(answer(kfd, &RUNTIME_ENABLE, enable), Err(Errno::EEXIST), "too late");
    let gws = |queue_id, num_gws| {
        let args = AllocQueueGws { queue_id, num_gws, first_gws: 7, pad: 0 };
        let (answer, args) = ioctl(kfd, &ALLOC_QUEUE_GWS, args);
        answer.map(|()| args.first_gws)
    };
    assert_eq!(gws(99, 1), Err(Errno::EINVAL));
    assert_eq!(gws(queue_id, 0), Err(Errno::EINVAL));
    assert_eq!(gws(queue_id, 64), Ok(0));
    assert_eq!(gws(queue_id, 64), Err(Errno::EBUSY));
    assert_eq!(gws(queue_id, 0), Ok(0));

    let words = [u32::MAX; 4];
    let cu_mask_ptr = words.as_ptr().expose_provenance() as u64;
    let mask = |queue_id, num_cu_mask, cu_mask_ptr| {
        answer(kfd, &SET_CU_MASK, SetCuMask { queue_id, num_cu_mask, cu_mask_ptr })
    };
    assert_eq!(mask(queue_id, 128, cu_mask_ptr), Ok(()));
    assert_eq!(mask(99, 128, cu_mask_ptr), Err(Errno::EFAULT));
    assert_eq!(mask(queue_id, 128, 8), Err(Errno::EFAULT));
    for (count, pointer) in [(0, cu_mask_ptr), (31, cu_mask_ptr), (128, 0)] {
        assert_eq!(mask(queue_id, count, pointer), Err(Errno::EINVAL));
    }

    let state = |queue_id| {
        let args =
            GetQueueWaveState { queue_id, ctl_stack_used_size: 7, ..GetQueueWaveState::default() };
        let (answer, args) = ioctl(kfd, &GET_QUEUE_WAVE_STATE, args);
        answer.map(|()| (args.ctl_stack_used_size, args.save_area_used_size))
    };
    assert_eq!(state(99), Err(Errno::EFAULT));
    assert_eq!(state(queue_id), Err(Errno::EINVAL), "it runs");
    bench.criu(criu_op::PROCESS_INFO).unwrap();
    assert_eq!(state(queue_id), Ok((0, 0)));
}
