//! The daemon with callers in its own process, where faults can be planned. Callers in other
//! processes: `tests/tests/sim_daemon.rs`.

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd, FromRawFd},
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use nix::sys::socket::connect;
use tempfile::TempDir;

use super::{super::remote::is_close_on_exec, *};
use crate::{
    abi::{
        Plain,
        amdgpu::domain,
        drm::{VERSION, Version},
        kfd::{
            ACQUIRE_VM, ALLOC_MEMORY_OF_GPU, AcquireVm, AllocMemoryOfGpu, CREATE_EVENT,
            CreateEvent, EXPORT_DMABUF, EventData, ExportDmabuf, WAIT_EVENTS, WaitEvents,
            event_type, flags,
        },
    },
    device::{
        DeviceError, DeviceKind, Driver, Kfd, Node, RenderNode, SocketDriver,
        copy::{CopyQueue, Direction, Limits, Piece},
        sim::{Fault, Machine, Profile},
        socket::wire,
    },
    ring::Ring,
};

/// How long a step may take before it counts as hung.
const PATIENCE: Duration = Duration::from_secs(30);

struct Served {
    daemon: Arc<Daemon>,
    driver: SocketDriver,
    dir: TempDir,
}

fn serve(gpus: u32) -> Served {
    let host = SimHost::new(Machine::new(&Profile::gfx90a(), gpus)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gpus.sock");
    let daemon = Arc::new(Daemon::bind(host, &path).unwrap());
    let server = Arc::clone(&daemon);
    // It ends with the process.
    thread::spawn(move || server.serve());
    Served { daemon, driver: SocketDriver::new(path), dir }
}

impl Served {
    fn host(&self) -> &SimHost {
        self.daemon.host()
    }

    fn render(&self) -> RenderNode {
        RenderNode::open(&self.driver, Path::new("/dev/dri/renderD128")).unwrap()
    }

    /// All files are closed, and nothing was left in them.
    fn assert_tidy(&self) {
        let begun = Instant::now();
        while self.daemon.connections() > 0 {
            assert!(begun.elapsed() < PATIENCE, "files stay open");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.host().check(), []);
    }
}

fn errno<T: std::fmt::Debug>(answer: Result<T, DeviceError>) -> Errno {
    match answer.unwrap_err() {
        DeviceError::Call { errno, .. } => errno,
        other => panic!("{other}"),
    }
}

#[test]
fn copies_go_to_a_bo_and_back() {
    let served = serve(1);
    let ring = Ring::new(64 << 10, 4).unwrap();
    let render = served.render();
    let handle = render.create(64 << 10, domain::VRAM).unwrap();
    let dma_buf = render.export(handle).unwrap();
    let node = Path::new("/dev/dri/renderD128");
    let mut image = ring.try_take().unwrap();
    (0..).zip(image.iter_mut()).for_each(|(n, byte): (u32, _)| *byte = n.to_le_bytes()[0] ^ 0x5a);
    let expected = image.to_vec();
    let limits = Limits { copies_per_ring: 1, copies: 1, fence_deadline: PATIENCE };
    for direction in [Direction::ToDevice, Direction::ToHost] {
        let mut queue = CopyQueue::open(&served.driver, node, &ring, direction, limits).unwrap();
        let bo = queue.import(dma_buf.as_fd(), 64 << 10).unwrap();
        let piece = Piece { bo, bo_offset: 0, chunk_offset: 0, len: 64 << 10 };
        match direction {
            Direction::ToDevice => queue.write(image, &[piece], 0).unwrap(),
            Direction::ToHost => {
                image.fill(0);
                queue.read(image, &[piece], 0).unwrap();
            }
        }
        image = queue.finish_one().unwrap().unwrap().chunk.unwrap();
        queue.release(bo).unwrap();
    }
    assert_eq!(*image, expected);
    let memory = render.map_memory(handle, 64 << 10).unwrap();
    let mut seen = vec![0; 64 << 10];
    memory.read(0, &mut seen);
    assert_eq!(seen, expected);
    drop(dma_buf);
    render.close(handle).unwrap();
    drop(render);
    served.assert_tidy();
}

#[test]
fn a_call_that_blocks_keeps_nobody_waiting() {
    let served = serve(1);
    let render = served.render();
    let blocked = served.host().plan(Fault::call("INFO").always().blocks());
    thread::scope(|scope| {
        let (sender, done) = mpsc::channel();
        for _ in 0..5 {
            let (render, sender) = (&render, sender.clone());
            scope.spawn(move || sender.send(render.info().map(drop)));
        }
        let (others_sender, others) = mpsc::channel();
        let render = &render;
        scope.spawn(move || {
            let calls = (0..20).try_for_each(|_| render.close(render.create(4096, domain::GTT)?));
            others_sender.send(calls)
        });
        let others = others.recv_timeout(PATIENCE);
        let all_wait = done.try_recv().is_err();
        blocked.release();
        assert!(all_wait && matches!(others, Ok(Ok(()))), "{others:?}");
        for _ in 0..5 {
            done.recv_timeout(PATIENCE).unwrap().unwrap();
        }
    });
    drop(render);
    served.assert_tidy();
}

#[test]
fn the_number_of_a_descriptor_is_the_file_or_dma_buf_that_the_caller_has_there() {
    let served = serve(1);
    let kfd = Node::open(&served.driver, Path::new("/dev/kfd")).unwrap();
    let render = served.render();
    let gpu_id = served.host().gpu_ids()[0];
    let acquire = |fd: i32| {
        let mut args = AcquireVm { drm_fd: fd.cast_unsigned(), gpu_id };
        // SAFETY: the argument has no addresses.
        unsafe { kfd.call(&ACQUIRE_VM, &mut args) }
    };
    let null = File::open("/dev/null").unwrap();
    assert_eq!(errno(acquire(null.as_raw_fd())), Errno::EINVAL);
    assert_eq!(errno(acquire(-1)), Errno::EINVAL);
    acquire(render.as_fd().as_raw_fd()).unwrap();
    // A dma-buf goes through the caller's table as well.
    let handle = render.create(8192, domain::VRAM).unwrap();
    let dma_buf = render.export(handle).unwrap();
    assert!(is_close_on_exec(&dma_buf));
    let other = served.render();
    let imported = other.import(dma_buf.as_fd()).unwrap();
    other.map_memory(imported, 8192).unwrap().write(4096, b"shared");
    let mut seen = [0; 6];
    render.map_memory(handle, 8192).unwrap().read(4096, &mut seen);
    assert_eq!(&seen, b"shared");
    assert!(other.import(null.as_fd()).is_err());
    other.close(imported).unwrap();
    render.close(handle).unwrap();
    drop((dma_buf, kfd, render, other));
    served.assert_tidy();
}

#[test]
fn a_checkpoint_brings_more_descriptors_than_one_record_has() {
    const BOS: u64 = 600;
    let served = serve(1);
    let kfd = Kfd::open(&served.driver).unwrap();
    let render = served.render();
    let gpu_id = served.host().gpu_ids()[0];
    let drm_fd = render.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: the argument has no addresses.
    unsafe { kfd.node().call(&ACQUIRE_VM, &mut AcquireVm { drm_fd, gpu_id }) }.unwrap();
    let flags = flags::VRAM | flags::WRITABLE | flags::PUBLIC;
    for n in 0..BOS {
        let va_addr = (1 << 40) + (n << 20);
        let args = AllocMemoryOfGpu { va_addr, size: 4096, gpu_id, flags, ..Default::default() };
        let mut args = args;
        // SAFETY: the address is the GPU's.
        unsafe { kfd.node().call(&ALLOC_MEMORY_OF_GPU, &mut args) }.unwrap();
        render.node().map(args.mmap_offset, 4096).unwrap().write(0, &va_addr.to_le_bytes());
        if n == 0 {
            let mut export = ExportDmabuf { handle: args.handle, ..Default::default() };
            // SAFETY: the argument has no addresses.
            unsafe { kfd.node().call(&EXPORT_DMABUF, &mut export) }.unwrap();
            let fd = i32::try_from(export.dmabuf_fd).unwrap();
            // SAFETY: the call has just made it for us.
            let inherited = unsafe { OwnedFd::from_raw_fd(fd) };
            assert!(!is_close_on_exec(&inherited));
            drop(inherited);
        }
    }
    let info = kfd.process_info().unwrap();
    let checkpoint = kfd.checkpoint(info).unwrap();
    kfd.unpause().unwrap();
    assert_eq!(checkpoint.bos.len() as u64, BOS);
    let copier = served.render();
    for bo in &checkpoint.bos {
        let dma_buf = bo.dma_buf.as_ref().expect("VRAM has contents");
        let handle = copier.import(dma_buf.as_fd()).unwrap();
        let mut seen = [0; 8];
        copier.map_memory(handle, 4096).unwrap().read(0, &mut seen);
        assert_eq!(u64::from_le_bytes(seen), bo.bucket.addr);
        copier.close(handle).unwrap();
    }
    drop((checkpoint, copier, kfd, render));
    served.assert_tidy();
}

#[test]
fn a_wait_ends_when_nobody_has_the_file_any_more() {
    let served = serve(1);
    let kfd = Node::open(&served.driver, Path::new("/dev/kfd")).unwrap();
    let mut event = CreateEvent { event_type: event_type::SIGNAL, ..Default::default() };
    // SAFETY: the argument has no addresses.
    unsafe { kfd.call(&CREATE_EVENT, &mut event) }.unwrap();
    let mut data = Box::new(EventData { event_id: event.event_id, ..Default::default() });
    let wait = WaitEvents {
        events_ptr: (&raw mut *data).expose_provenance() as u64,
        num_events: 1,
        wait_for_all: 1,
        timeout: u32::MAX,
        wait_result: 0,
    };
    // As a process does it that is killed while it waits.
    let (_answer, reply) = pair();
    let request = wire::Request::Ioctl { number: WAIT_EVENTS.number(), argument: wait.as_bytes() };
    wire::send(&kfd, &request.encode(), &[reply.as_fd()]).unwrap();
    let begun = Instant::now();
    while served.host().calls("WAIT_EVENTS") == 0 {
        assert!(begun.elapsed() < PATIENCE, "it was to wait");
        thread::sleep(Duration::from_millis(1));
    }
    drop(kfd);
    served.assert_tidy();
}

#[test]
fn an_adopted_descriptor_is_the_same_file() {
    let served = serve(1);
    let render = served.render();
    let handle = render.create(4096, domain::VRAM).unwrap();
    let copy = render.as_fd().try_clone_to_owned().unwrap();
    let same = Node::adopt(&served.driver, Path::new("copy"), copy).unwrap();
    drop(render);
    let mut close = crate::abi::drm::GemClose { handle, ..Default::default() };
    // SAFETY: the argument has no addresses.
    unsafe { same.call(&crate::abi::drm::GEM_CLOSE, &mut close) }.unwrap();
    let other = serve(1);
    for wrong in [
        other.render().as_fd().try_clone_to_owned().unwrap(),
        File::open("/dev/null").unwrap().into(),
        std::os::unix::net::UnixStream::pair().unwrap().0.into(),
    ] {
        assert_eq!(served.driver.adopt(wrong).err(), Some(Errno::EBADF));
    }
    drop(same);
    served.assert_tidy();
    other.assert_tidy();
}

#[test]
fn an_address_of_nothing_is_an_error() {
    let served = serve(1);
    let render = served.render();
    for (name, answer) in [(16, Err(Errno::EFAULT)), (u64::MAX, Err(Errno::EFAULT))] {
        let mut version = Version { name_len: 8, name, ..Version::default() };
        // SAFETY: nothing is at these addresses.
        let call = unsafe { render.node().call(&VERSION, &mut version) };
        assert_eq!(call.map_err(|error| errno::<()>(Err(error))), answer);
    }
    // SAFETY: nothing is mapped there.
    let answer = unsafe { render.user_memory(4096, 4096) };
    assert_eq!(errno(answer), Errno::EFAULT);
    drop(render);
    served.assert_tidy();
}

#[test]
fn what_is_no_request_ends_its_connection_and_no_other() {
    let served = serve(1);
    let render = served.render();
    let (_, theirs) = pair();
    let path = served.dir.path().join("gpus.sock");
    let request = |record: &[u8], with_reply: bool| {
        let flags = SockFlag::SOCK_CLOEXEC;
        let raw = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        connect(raw.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        let reply = [theirs.as_fd()];
        let reply = if with_reply { &reply[..] } else { &[] };
        wire::send(&raw, record, reply).unwrap();
        // The end of the connection: no answer comes here in any case.
        wire::receive(&raw, &mut wire::buffer(), 1)
    };
    let check = wire::Request::Check.encode();
    let long = vec![3; wire::buffer().len() + 1];
    for (record, with_reply) in
        [(&check[..], false), (&check, true), (&check[..5], true), (b"\xff", true), (&long, true)]
    {
        assert!(!matches!(request(record, with_reply), Ok(Some(_))), "{record:?}");
    }
    assert!(render.info().is_ok());
    drop(render);
    served.assert_tidy();
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SockFlag::SOCK_CLOEXEC;
    nix::sys::socket::socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap()
}

#[test]
fn nodes_and_daemons_that_are_not_there() {
    let served = serve(1);
    let open = |driver: &SocketDriver, path| driver.open(Path::new(path)).err();
    assert_eq!(open(&served.driver, "/dev/dri/renderD129"), Some(Errno::ENOENT));
    assert_eq!(open(&served.driver, "/dev/null"), Some(Errno::ENOENT));
    let nobody = SocketDriver::new(served.dir.path().join("nobody"));
    assert_eq!(open(&nobody, "/dev/kfd"), Some(Errno::ECONNREFUSED));
    served.assert_tidy();
}

#[test]
fn a_device_node_can_stand_for_an_open_file() {
    let served = serve(2);
    let driver = &served.driver;
    let kfd = driver.open(Path::new("/dev/kfd")).unwrap();
    let render = driver.open(Path::new("/dev/dri/renderD129")).unwrap();
    assert_eq!(driver.identify(kfd.as_fd()), Ok(Some(DeviceKind::Kfd)));
    assert_eq!(driver.identify(render.as_fd()), Ok(Some(DeviceKind::Render { minor: 129 })));
    // A device that is there on every machine.
    let node = Path::new("/dev/zero");
    let stranger = File::open(node).unwrap();
    assert_eq!(driver.identify(stranger.as_fd()), Ok(None));
    driver.stand_in(&render, node).unwrap();
    assert_eq!(driver.identify(stranger.as_fd()), Ok(Some(DeviceKind::Render { minor: 129 })));
    let adopted = RenderNode::adopt(driver, Path::new("there"), stranger.into()).unwrap();
    // It is the same file: what one makes the other has.
    let handle = adopted.create(4096, domain::GTT).unwrap();
    drop(render);
    adopted.close(handle).unwrap();
    let node = RenderNode::open(driver, Path::new("/dev/dri/renderD128")).unwrap();
    let handle = node.create(4096, domain::GTT).unwrap();
    let dma_buf = node.export(handle).unwrap();
    node.close(handle).unwrap();
    assert_eq!(driver.identify(dma_buf.as_fd()), Ok(Some(DeviceKind::DmaBuf)));
    let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
    let other = nix::sys::memfd::memfd_create("dmabuf", flags).unwrap();
    assert_eq!(driver.identify(other.as_fd()), Ok(None));
    assert_eq!(driver.identify(File::open("/dev/null").unwrap().as_fd()), Ok(None));
    assert_eq!(driver.identify(File::open(served.dir.path()).unwrap().as_fd()), Ok(None));
}
