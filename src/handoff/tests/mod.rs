//! Both ends over a real socket, and each end against one that does not keep to the protocol.

use std::{
    fs::File,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::Path,
    thread::JoinHandle,
};

use nix::{
    sys::{
        memfd::{MFdFlags, memfd_create},
        resource::{Resource, getrlimit, setrlimit},
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket, socketpair,
        },
        stat::fstat,
    },
    unistd::ftruncate,
};

use super::*;
use crate::{
    device::{
        RenderNode,
        sim::{Credentials, Machine, Profile, SimHost, SimProcess},
    },
    gpu::{Bo, Contents, Render},
};
mod connecting;
mod hostile;
mod jobs;

/// A machine, and whose calls are made on it.
struct Sim {
    host: SimHost,
    process: SimProcess,
    /// Open as long as the plugin lives.
    renders: Vec<RenderNode>,
}

impl Sim {
    fn new(gpus: u32) -> Self {
        let host = SimHost::new(Machine::new(&Profile::gfx90a(), gpus)).unwrap();
        let process = host.process(Credentials::ROOT);
        let open = |gpu: &crate::device::sim::GpuSpec| {
            RenderNode::open(&process, &gpu.render_node()).unwrap()
        };
        let renders = host.machine().gpus.iter().map(open).collect();
        Sim { host, process, renders }
    }

    fn job(&self, sizes: &[u64]) -> Job {
        let gpus = self.renders.iter().zip(self.host.gpu_ids()).map(|(render, &gpu_id)| {
            let bo = |&size| Bo { size, dma_buf: memory(size) };
            Contents { gpu_id, node: self.node(render), bos: sizes.iter().map(bo).collect() }
        });
        let (direction, cap_bytes) = (Direction::Dump, Some(12_345));
        Job { direction, kfd_id: 42, cap_bytes, gpus: gpus.collect() }
    }

    fn node(&self, render: &RenderNode) -> Render {
        let path = render.node().path().to_owned();
        Render::Open { path, file: render.as_fd().try_clone_to_owned().unwrap() }
    }
}

/// A file that looks like a dma-buf of this size.
fn memory(size: u64) -> OwnedFd {
    let fd = memfd_create("memory", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&fd, i64::try_from(size).unwrap()).unwrap();
    fd
}

fn inode(fd: impl AsFd) -> u64 {
    fstat(fd).unwrap().st_ino
}

/// Listens in a directory, as the streamer does.
fn door(dir: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let door = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(door.as_raw_fd(), &UnixAddr::new(&dir.join(SOCKET)).unwrap()).unwrap();
    listen(&door, Backlog::new(8).unwrap()).unwrap();
    door
}

/// Waits for one plugin, and does this with it.
fn streamer<T: Send + 'static>(
    dir: &Path,
    work: impl FnOnce(Plugin) -> T + Send + 'static,
) -> JoinHandle<T> {
    let door = door(dir);
    std::thread::spawn(move || work(accept_one(&door)))
}

fn accept_one(door: &OwnedFd) -> Plugin {
    Plugin::new(accepted(door)).unwrap()
}

fn accepted(door: &OwnedFd) -> OwnedFd {
    let listener = UnixListener::from(door.try_clone().unwrap());
    listener.accept().unwrap().0.into()
}

/// Two ends of a connection.
fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

fn directory(dir: &Path) -> OwnedFd {
    File::open(dir).unwrap().into()
}

fn connect(dir: &Path) -> Streamer {
    Streamer::connect(directory(dir).as_fd()).unwrap().unwrap()
}
