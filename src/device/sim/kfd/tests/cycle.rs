//! A process that goes from one machine to another.

use std::{
    os::fd::{AsFd, AsRawFd},
    time::Duration,
};

use crate::{
    abi::kfd::{CriuDeviceBucket, SET_EVENT, SET_XNACK_MODE, SetEvent, SetXnackMode, flags},
    device::{
        Checkpoint, Driver, Kfd, RestoredBo,
        sim::{
            Application, BoPlan, Credentials, Fill, KernelRelease, Machine, Profile, QueueState,
            SimHost, SimProcess,
        },
    },
};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A machine with an application on it, and CRIU, which has stopped it.
pub(super) struct Source {
    pub host: SimHost,
    pub app: Application,
    pub criu: SimProcess,
}

impl Source {
    pub(super) fn new(machine: Machine, plan: &[BoPlan]) -> Source {
        let host = SimHost::new(machine).unwrap();
        let process = host.process(Credentials::USER);
        let app = Application::start(&process, plan).unwrap();
        let criu = host.process(Credentials::ROOT);
        host.trace(&criu, &process);
        Source { host, app, criu }
    }

    pub(super) fn pid(&self) -> u32 {
        self.app.process().pid()
    }

    /// The application's `/dev/kfd` in the hands of CRIU.
    pub(super) fn kfd(&self) -> Kfd {
        let fd = self.app.kfd().as_fd().try_clone_to_owned().unwrap();
        Kfd::adopt(&self.criu, fd).unwrap()
    }

    /// A whole checkpoint; the application goes on.
    pub(super) fn checkpoint(&self) -> Checkpoint {
        let kfd = self.kfd();
        let info = kfd.process_info().unwrap();
        let checkpoint = kfd.checkpoint(info).unwrap();
        kfd.unpause().unwrap();
        checkpoint
    }
}

/// The task that a checkpoint is restored into.
pub(super) struct Target {
    pub host: SimHost,
    pub task: SimProcess,
    pub kfd: Kfd,
    pub renders: Vec<Box<dyn crate::device::DeviceFile>>,
}

impl Target {
    pub(super) fn new(host: &SimHost) -> Target {
        let task = host.process(Credentials::ROOT);
        let kfd = Kfd::open(&task).unwrap();
        let open = |gpu: &crate::device::sim::GpuSpec| task.open(&gpu.render_node()).unwrap();
        let renders = host.machine().gpus.iter().map(open).collect();
        Target { host: host.clone(), task, kfd, renders }
    }

    /// The device buckets of a checkpoint, for the GPUs of this machine in their order.
    pub(super) fn devices(&self, checkpoint: &Checkpoint) -> Vec<CriuDeviceBucket> {
        let ids = self.host.gpu_ids().iter();
        let buckets = checkpoint.devices.iter().zip(ids).zip(&self.renders);
        buckets
            .map(|((bucket, &actual_gpu_id), render)| CriuDeviceBucket {
                user_gpu_id: bucket.user_gpu_id,
                actual_gpu_id,
                drm_fd: render.as_fd().as_raw_fd().cast_unsigned(),
                pad: 0,
            })
            .collect()
    }

    pub(super) fn restore(&self, checkpoint: &Checkpoint) -> nix::Result<Vec<RestoredBo>> {
        self.restore_on(&self.devices(checkpoint), checkpoint)
    }

    pub(super) fn restore_on(
        &self,
        devices: &[CriuDeviceBucket],
        checkpoint: &Checkpoint,
    ) -> nix::Result<Vec<RestoredBo>> {
        let buckets: Vec<_> = checkpoint.bos.iter().map(|bo| bo.bucket).collect();
        let objects = checkpoint.info.objects;
        self.kfd
            .restore(devices, &buckets, &checkpoint.private, objects)
            .map_err(|error| super::errno(&error))
    }
}

#[test]
fn a_process_moves_to_another_machine() {
    for kernel in [KernelRelease::V6_1, KernelRelease::V6_12, KernelRelease::V7_2] {
        let machine = Machine::new(&Profile::gfx90a(), 2).kernel(kernel);
        let plan = [
            BoPlan::vram(0, 1 << 20),
            BoPlan { all_gpus: true, ..BoPlan::vram(1, 8 << 20) },
            BoPlan::gtt(1, 12288),
            BoPlan::userptr(0, 8192),
        ];
        let source = Source::new(machine.clone(), &plan);
        source.app.fill(Fill::Random).unwrap();
        let checkpoint = source.checkpoint();
        assert_eq!(source.host.left_stopped(), []);

        let host = SimHost::new(machine.moved(140, 0x80)).unwrap();
        assert_ne!(host.gpu_ids(), source.host.gpu_ids());
        // Something is there already, so that places in mmap spaces differ.
        let other = Application::start(&host.process(Credentials::USER), &plan).unwrap();
        let target = Target::new(&host);
        let pid = target.task.pid();
        let restored = target.restore(&checkpoint).unwrap();

        assert_eq!(host.bos(pid), {
            let mut bos = source.host.bos(source.pid());
            bos.retain(|bo| bo.va > 0);
            bos
        });
        for (bo, before) in restored.iter().zip(&checkpoint.bos) {
            let has_contents = before.bucket.alloc_flags & (flags::VRAM | flags::GTT) != 0;
            assert_eq!(bo.dma_buf.is_some(), has_contents);
            let userptr = before.bucket.alloc_flags & flags::USERPTR != 0;
            assert_eq!(bo.bucket.restored_offset == 0, userptr, "{bo:?}");
            if before.bucket.alloc_flags & flags::MMIO_REMAP == 0 && !userptr {
                assert_ne!(bo.bucket.restored_offset, before.bucket.offset, "{bo:?}");
            }
        }
        let queues = host.queues(pid);
        assert!(queues.iter().all(|queue| queue.state == QueueState::Evicted));
        assert_eq!(host.left_stopped().len(), 1);

        // CRIU starts it from a file of its own.
        let criu = host.process(Credentials::ROOT);
        Kfd::open(&criu).unwrap().resume(pid).unwrap();
        assert!(host.wait_resumed(pid, PATIENCE));
        assert_eq!(host.left_stopped(), []);
        let queues = host.queues(pid);
        assert_eq!(queues.len(), 2);
        for (queue, before) in queues.iter().zip(source.host.queues(source.pid())) {
            assert_eq!(queue.state, QueueState::Active);
            assert_eq!((queue.evictions, before.evictions), (0, 1));
            assert_eq!(&crate::device::sim::QueueInfo { evictions: 1, ..queue.clone() }, &before);
        }
        assert_eq!(host.events(pid), source.host.events(source.pid()));
        assert_eq!(host.events(pid).len(), 4);
        drop((other, host));
    }
}

#[test]
fn events_that_are_set_and_ranges_with_attributes_move_too() {
    let machine = Machine::new(&Profile::gfx90a(), 2);
    let source = Source::new(machine.clone(), &[]);
    let (kfd, events) = (source.app.kfd(), source.app.events());
    let mut set = SetEvent { event_id: events[1], pad: 0 };
    // SAFETY: the argument has no addresses.
    unsafe { kfd.call(&SET_EVENT, &mut set) }.unwrap();
    let id = source.host.gpu_ids()[1];
    let mut xnack = SetXnackMode { xnack_enabled: -1 };
    // SAFETY: the argument has no addresses.
    unsafe { kfd.call(&SET_XNACK_MODE, &mut xnack) }.unwrap();
    let process = source.app.process();
    let file = process.open(std::path::Path::new(crate::device::KFD_NODE)).unwrap();
    assert_eq!(super::svm(&*file, 0, (0x1000_0000, 1 << 20), &[(0, id), (3, id), (5, 1)]), Ok(1));
    let checkpoint = source.checkpoint();
    assert_eq!(checkpoint.info.objects, 2 + 4 + 1);

    let host = SimHost::new(machine.moved(140, 0x80)).unwrap();
    let target = Target::new(&host);
    target.restore(&checkpoint).unwrap();
    let pid = target.task.pid();
    assert_eq!(host.events(pid), source.host.events(source.pid()));
    assert!(host.events(pid)[1].signaled);
    let file = target.task.open(std::path::Path::new(crate::device::KFD_NODE)).unwrap();
    let get = |kind, value| super::svm(&*file, 1, (0x1000_0000, 1 << 20), &[(kind, value)]);
    // By the names that the GPUs had.
    assert_eq!(get(0, 0), Ok(id));
    assert_eq!(get(5, 0), Ok(1));
    assert_eq!(get(2, host.gpu_ids()[1]), Err(nix::errno::Errno::EINVAL));
    // And all of it is in the next checkpoint.
    let info = target.kfd.process_info().unwrap();
    assert_eq!(target.kfd.checkpoint(info).unwrap().private, checkpoint.private);
}
