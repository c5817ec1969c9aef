//! RESTORE and RESUME: everything that is refused, and what is left behind then.

use std::time::Duration;

use super::{
    cycle::{PATIENCE, Source, Target},
    *,
};
use crate::device::{
    Checkpoint,
    sim::{Application, BoPlan, QueueState},
};

fn machine(kernel: KernelRelease) -> Machine {
    Machine::new(&Profile::gfx90a(), 2).kernel(kernel)
}

/// A checkpoint of an application with a BO of each kind.
fn checkpoint(kernel: KernelRelease) -> (Source, Checkpoint) {
    let plan = [BoPlan::vram(0, 4096), BoPlan::gtt(1, 4096), BoPlan::userptr(0, 4096)];
    let source = Source::new(machine(kernel), &plan);
    let checkpoint = source.checkpoint();
    (source, checkpoint)
}

fn target(kernel: KernelRelease) -> Target {
    Target::new(&SimHost::new(machine(kernel).moved(128, 0x50)).unwrap())
}

/// Restores with one thing changed; the answer.
fn changed(change: impl FnOnce(&mut Checkpoint, &mut Vec<CriuDeviceBucket>)) -> nix::Result<()> {
    let (_source, mut checkpoint) = checkpoint(KernelRelease::V6_12);
    let target = target(KernelRelease::V6_12);
    let mut devices = target.devices(&checkpoint);
    change(&mut checkpoint, &mut devices);
    target.restore_on(&devices, &checkpoint).map(drop)
}

const BOS_AT: usize = 8 + 2 * 8;
const RECORD: usize = 272;

fn put(checkpoint: &mut Checkpoint, at: usize, word: u32) {
    checkpoint.private[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

fn objects_at(checkpoint: &Checkpoint) -> usize {
    BOS_AT + checkpoint.bos.len() * RECORD
}

/// Where the records of the four events begin.
fn events_at(checkpoint: &Checkpoint) -> usize {
    checkpoint.private.len() - 4 * 64
}

#[test]
fn arguments_that_are_missing() {
    let (_source, checkpoint) = checkpoint(KernelRelease::V6_12);
    let target = target(KernelRelease::V6_12);
    let good = CriuArgs {
        op: criu_op::RESTORE,
        devices: 8,
        bos: 8,
        priv_data: checkpoint.private.as_ptr().expose_provenance() as u64,
        priv_data_size: checkpoint.private.len() as u64,
        num_devices: 2,
        num_bos: 1,
        ..CriuArgs::default()
    };
    for (mut args, expected) in [
        (CriuArgs { num_devices: 0, ..good }, Errno::EINVAL),
        (CriuArgs { devices: 0, ..good }, Errno::EINVAL),
        (CriuArgs { priv_data: 0, ..good }, Errno::EINVAL),
        (CriuArgs { priv_data_size: 0, ..good }, Errno::EINVAL),
        (CriuArgs { bos: 0, ..good }, Errno::EINVAL),
        (CriuArgs { priv_data: 8, ..good }, Errno::EFAULT),
        (CriuArgs { priv_data_size: u64::MAX, ..good }, Errno::ENOMEM),
        (CriuArgs { num_devices: 1, ..good }, Errno::EINVAL),
        (good, Errno::EFAULT),
    ] {
        // SAFETY: the only address that is good is of the private data.
        let failed = unsafe { target.kfd.node().call(&CRIU_OP, &mut args) }.unwrap_err();
        assert_eq!(errno(&failed), expected, "{args:?}");
    }
}

#[test]
fn processes_and_devices_that_do_not_fit() {
    assert_eq!(changed(|_, _| ()), Ok(()));
    assert_eq!(changed(|c, _| put(c, 0, 2)), Err(Errno::EINVAL), "version");
    assert_eq!(changed(|_, devices| devices.truncate(1)), Err(Errno::EINVAL));
    assert_eq!(changed(|_, devices| devices[1].user_gpu_id = 0), Err(Errno::EINVAL));
    assert_eq!(changed(|_, devices| devices[1].actual_gpu_id = 1), Err(Errno::EINVAL));
    assert_eq!(changed(|_, devices| devices[1].drm_fd = 9999), Err(Errno::EINVAL), "not open");
    assert_eq!(changed(|_, d| d[1].drm_fd = d[0].drm_fd), Err(Errno::EINVAL), "of another GPU");
    assert_eq!(changed(|_, devices| devices[1] = devices[0]), Err(Errno::EINVAL), "twice");
    let short = |len| move |c: &mut Checkpoint, _: &mut Vec<_>| c.private.truncate(len);
    assert_eq!(changed(short(7)), Err(Errno::EINVAL));
    assert_eq!(changed(short(BOS_AT - 1)), Err(Errno::EINVAL));
}

#[test]
fn a_device_with_an_address_space_cannot_be_restored_and_names_stay() {
    let (_source, checkpoint) = checkpoint(KernelRelease::V6_12);
    let target = target(KernelRelease::V6_12);
    let devices = target.devices(&checkpoint);
    let acquire = |gpu_id| {
        let mut args = AcquireVm { drm_fd: devices[1].drm_fd, gpu_id };
        // SAFETY: the argument has no addresses.
        let answer = unsafe { target.kfd.node().call(&ACQUIRE_VM, &mut args) };
        answer.map_err(|error| errno(&error))
    };
    acquire(devices[1].actual_gpu_id).unwrap();
    assert_eq!(target.restore(&checkpoint).map(drop), Err(Errno::EINVAL));
    // A part of it is there now: the GPUs have the names from the image.
    assert_eq!(acquire(devices[1].actual_gpu_id), Err(Errno::EINVAL));
    assert_eq!(acquire(devices[1].user_gpu_id), Ok(()));
    assert_eq!(target.restore(&checkpoint).map(drop), Err(Errno::EINVAL), "not a second time");
}

#[test]
fn xnack_is_not_for_everyone() {
    let (_source, mut with) = checkpoint(KernelRelease::V6_12);
    put(&mut with, 4, 1);
    assert!(target(KernelRelease::V6_12).restore(&with).is_ok());
    let old = Machine::new(&Profile::gfx906(), 2);
    let old = Target::new(&SimHost::new(old).unwrap());
    assert_eq!(old.restore(&with).map(drop), Err(Errno::EPERM));
}

#[test]
fn bos_that_do_not_fit() {
    let bo = |n: usize| BOS_AT + n * RECORD;
    assert_eq!(changed(|c, _| c.bos[3].bucket.gpu_id = 1), Err(Errno::ENODEV));
    assert_eq!(changed(|c, _| put(c, bo(3) + 8, 1 << 31)), Err(Errno::EINVAL), "handle");
    assert_eq!(changed(|c, _| put(c, bo(1) + 8, 0)), Err(Errno::ENOMEM), "handle in use");
    assert_eq!(changed(|c, _| put(c, bo(0) + 12, 1)), Err(Errno::EINVAL), "unknown GPU");
    assert_eq!(changed(|c, _| c.bos[0].bucket.size = 1 << 50), Err(Errno::ENOMEM));
    assert_eq!(changed(|c, _| c.bos[0].bucket.alloc_flags = 0), Err(Errno::EINVAL));
    let register = |kind, size| {
        changed(|c, _| {
            let found = c.bos.iter_mut().find(|bo| bo.bucket.alloc_flags & kind != 0);
            found.unwrap().bucket.size = size;
        })
    };
    assert_eq!(register(flags::DOORBELL, 4096), Err(Errno::EINVAL));
    assert_eq!(register(flags::MMIO_REMAP, 8192), Err(Errno::EINVAL));
    let cut = |c: &mut Checkpoint, _: &mut Vec<_>| c.private.truncate(BOS_AT + RECORD);
    assert_eq!(changed(cut), Err(Errno::EINVAL));
}

#[test]
fn objects_that_do_not_fit() {
    let queue = |c: &Checkpoint| objects_at(c);
    let change = |at: fn(&Checkpoint) -> usize, offset: usize, word: u32| {
        changed(|c, _| {
            let at = at(c) + offset;
            put(c, at, word);
        })
    };
    assert_eq!(change(queue, 0, 3), Err(Errno::EINVAL), "type");
    assert_eq!(change(queue, 64, 1), Err(Errno::EINVAL), "GPU");
    assert_eq!(change(queue, 68, 9), Err(Errno::EINVAL), "type of queue");
    assert_eq!(change(queue, 76, 1024), Err(Errno::EINVAL), "id");
    assert_eq!(change(queue, 76, 1), Err(Errno::ENOSPC), "id in use");
    assert_eq!(change(queue, 88, 1024), Err(Errno::EINVAL), "doorbell");
    assert_eq!(change(queue, 112, 2047), Err(Errno::EINVAL), "size of the MQD");
    assert_eq!(change(queue, 112, u32::MAX), Err(Errno::EINVAL), "past the end");
    assert_eq!(change(events_at, 8, 0xffff), Err(Errno::EINVAL), "page of the events");
    assert_eq!(change(events_at, 64 + 16, 1), Err(Errno::ENOSPC), "event in use");
    assert_eq!(changed(|c, _| c.private.push(0)), Err(Errno::EINVAL), "left over");
    assert_eq!(changed(|c, _| c.private.truncate(c.private.len() - 1)), Err(Errno::EINVAL));
    assert_eq!(changed(|c, _| c.info.objects -= 1), Err(Errno::EINVAL));
    assert_eq!(changed(|c, _| c.info.objects += 1), Err(Errno::EINVAL));
}

#[test]
fn another_generation_of_engines() {
    let text = "name next\nvram_bytes 68719476736\nsdma_version 5.2\nfamily 143\nsimd_count 160\n\
        simd_per_cu 2\ngfx_target_version 100300\ndevice_id 29631\nnum_sdma_engines 2\n";
    let next = Profile::parse(Path::new("next"), text).unwrap();
    let target = Target::new(&SimHost::new(Machine::new(&next, 2)).unwrap());
    let (_source, checkpoint) = checkpoint(KernelRelease::V6_12);
    assert_eq!(target.restore(&checkpoint).map(drop), Err(Errno::EINVAL));
}

#[test]
fn kernels_with_other_records_do_not_understand_each_other() {
    let (_old, old) = checkpoint(KernelRelease::V6_1);
    let (_new, new) = checkpoint(KernelRelease::V6_12);
    // What the first nonsense in the records is depends on what is in them.
    assert!(target(KernelRelease::V6_12).restore(&old).is_err());
    assert!(target(KernelRelease::V6_1).restore(&new).is_err());
    assert!(target(KernelRelease::V7_2).restore(&new).is_ok());
}

/// Restores once, and not again whatever the answer: it, and the buckets as they are then.
fn once(target: &Target, checkpoint: &Checkpoint) -> (nix::Result<()>, Vec<CriuBoBucket>) {
    let devices = target.devices(checkpoint);
    let mut buckets: Vec<_> = checkpoint.bos.iter().map(|bo| bo.bucket).collect();
    buckets.iter_mut().for_each(|bucket| bucket.dmabuf_fd = INVALID_FD);
    let args = CriuArgs {
        op: criu_op::RESTORE,
        devices: devices.as_ptr().expose_provenance() as u64,
        bos: buckets.as_mut_ptr().expose_provenance() as u64,
        priv_data: checkpoint.private.as_ptr().expose_provenance() as u64,
        priv_data_size: checkpoint.private.len() as u64,
        num_devices: 2,
        num_bos: checkpoint.info.bos,
        num_objects: checkpoint.info.objects,
        ..CriuArgs::default()
    };
    let kfd = target.task.open(Path::new(KFD_NODE)).unwrap();
    (answer(&*kfd, &CRIU_OP, args), buckets)
}

/// The descriptors in the buckets after a RESTORE that failed.
fn left_behind(change: impl FnOnce(&mut Checkpoint)) -> Vec<u32> {
    let (_source, mut checkpoint) = checkpoint(KernelRelease::V6_12);
    change(&mut checkpoint);
    let (answer, buckets) = once(&target(KernelRelease::V6_12), &checkpoint);
    assert_eq!(answer, Err(Errno::EINVAL));
    let all = buckets.iter().map(|bucket| bucket.dmabuf_fd).filter(|&fd| fd != INVALID_FD);
    // Taking them over closes them, which fails where they are none.
    all.inspect(|&fd| drop(owned(fd))).collect()
}

#[test]
fn descriptors_are_left_behind_only_when_all_bos_are_there() {
    let last = |c: &mut Checkpoint| {
        let at = BOS_AT + (c.bos.len() - 1) * RECORD;
        put(c, at + 12, 1);
    };
    assert_eq!(left_behind(last), [0; 0]);
    let contents = left_behind(|c| c.private.push(0));
    let (_source, checkpoint) = checkpoint(KernelRelease::V6_12);
    let expected = checkpoint.bos.iter().filter(|bo| bo.dma_buf.is_some()).count();
    assert_eq!(contents.len(), expected);
}

#[test]
fn resume_needs_a_restored_process_and_works_once() {
    let (_source, checkpoint) = checkpoint(KernelRelease::V6_12);
    let target = target(KernelRelease::V6_12);
    let criu = crate::device::Kfd::open(&target.host.process(Credentials::ROOT)).unwrap();
    let pid = target.task.pid();
    let resume = |pid| criu.resume(pid).map_err(|error| errno(&error));
    assert_eq!(resume(1), Err(Errno::ESRCH));
    assert_eq!(resume(pid), Err(Errno::EINVAL), "nothing was restored");
    target.restore(&checkpoint).unwrap();
    assert!(!target.host.wait_resumed(pid, Duration::ZERO));
    assert_eq!(resume(pid), Ok(()));
    assert_eq!(resume(pid), Err(Errno::EINVAL), "a second time");
    assert!(target.host.wait_resumed(pid, PATIENCE));
    let user = crate::device::Kfd::open(&target.host.process(Credentials::USER)).unwrap();
    assert_eq!(user.resume(pid).map_err(|error| errno(&error)), Err(Errno::EACCES));
}

#[test]
fn memory_of_the_process_comes_with_resume() {
    let (source, checkpoint) = checkpoint(KernelRelease::V6_12);
    let target = target(KernelRelease::V6_12);
    let pid = target.task.pid();
    target.restore(&checkpoint).unwrap();
    let va = source.app.bos()[2].va;
    let mut bytes = [1; 8];
    assert_eq!(target.host.read_bo(pid, va, 0, &mut bytes), Err(Errno::EFAULT));
    target.kfd.resume(pid).unwrap();
    assert_eq!(target.host.read_bo(pid, va, 0, &mut bytes), Ok(()));
    assert_eq!(bytes, [0; 8]);
}

#[test]
fn a_restored_process_keeps_its_names_for_gpus() {
    let (source, checkpoint) = checkpoint(KernelRelease::V6_12);
    let target = target(KernelRelease::V6_12);
    let (pid, host) = (target.task.pid(), &target.host);
    target.restore(&checkpoint).unwrap();
    target.kfd.resume(pid).unwrap();
    assert!(host.wait_resumed(pid, PATIENCE));
    let (old, new) = (source.host.gpu_ids()[0], host.gpu_ids()[0]);
    let available = |gpu_id| {
        let mut args = AvailableMemory { gpu_id, ..AvailableMemory::default() };
        // SAFETY: the argument has no addresses.
        unsafe { target.kfd.node().call(&AVAILABLE_MEMORY, &mut args) }.map_err(|e| errno(&e))
    };
    assert_eq!(available(old), Ok(()));
    assert_eq!(available(new), Err(Errno::EINVAL));
    // But mmap goes by those of the machine.
    let doorbell = |id| target.kfd.node().map(mmap::TYPE_DOORBELL | mmap::gpu_id(id), 8192);
    assert_eq!(errno(&doorbell(old).unwrap_err()), Errno::ENODEV);
    assert!(doorbell(new).is_ok());

    // From here it can go on to a third machine.
    let info = target.kfd.process_info().unwrap();
    let again = target.kfd.checkpoint(info).unwrap();
    target.kfd.unpause().unwrap();
    let names = |c: &Checkpoint| c.devices.iter().map(|d| d.user_gpu_id).collect::<Vec<_>>();
    assert_eq!(names(&again), names(&checkpoint));
    assert_eq!(again.devices[0].actual_gpu_id, new);
    assert_eq!(again.private, checkpoint.private);
    let third = Target::new(&SimHost::new(machine(KernelRelease::V6_12).moved(200, 0x90)).unwrap());
    third.restore(&again).unwrap();
    assert_eq!(third.host.bos(third.task.pid()), host.bos(pid));
}

#[test]
fn sdma_queues_keep_their_places_or_are_refused() {
    let (source, _) = checkpoint(KernelRelease::V6_12);
    let app = &source.app;
    let at = |n: usize| app.runtime_bos()[n].va;
    let mut args = CreateQueue {
        ring_base_address: at(3),
        write_pointer_address: at(4),
        read_pointer_address: at(5),
        ring_size: u32::try_from(app.runtime_bos()[3].size).unwrap(),
        gpu_id: source.host.gpu_ids()[0],
        queue_type: queue_type::SDMA,
        queue_percentage: 100,
        ..CreateQueue::default()
    };
    // SAFETY: the addresses are of the GPU.
    unsafe { app.kfd().call(&CREATE_QUEUE, &mut args) }.unwrap();
    let checkpoint = source.checkpoint();
    let host = SimHost::new(machine(KernelRelease::V6_12)).unwrap();
    let first = Target::new(&host);
    first.restore(&checkpoint).unwrap();
    let queues = host.queues(first.task.pid());
    assert_eq!((queues[2].id, queues[2].kind, queues[2].state), (2, 1, QueueState::Evicted));
    // Another process has that SDMA queue of the GPU now.
    let second = Target::new(&host);
    assert_eq!(once(&second, &checkpoint).0, Err(Errno::EBUSY));
    drop(first);
    assert!(Target::new(&host).restore(&checkpoint).is_ok());
    assert!(Application::start(&host.process(Credentials::USER), &[]).is_ok());
}
