//! The machine: its GPUs, its open files, its KFD processes, behind one lock.
//!
//! Handlers lock [`State`], and never hold the lock while they wait: engines have what they need in
//! `Arc`s, and whoever waits for them waits on a condition of its own.

use std::{
    collections::HashMap,
    fmt,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        stat::fstat,
    },
};

use super::{
    arena::Arena,
    caller::{Credentials, Inode},
    door::SimProcess,
    drm::RenderFile,
    kfd::KfdState,
    machine::{GpuSpec, Machine},
    object::{Object, Store, Used},
};
use crate::abi::amdgpu::GemCreateIn;

/// Where the mmap space of a render node begins.
const FIRST_MMAP_OFFSET: u64 = 0x1_0000_0000;

/// Something that a caller did and should not have, though the kernel lets it pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// The process.
    pub pid: u32,
    /// What it did, to what.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}: {}", self.pid, self.what)
    }
}

/// An open file of the simulated machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileId(pub u64);

/// A simulated machine. Clones are the same machine.
#[derive(Debug, Clone)]
pub struct SimHost {
    pub(super) shared: Arc<Shared>,
}

/// What does not change, and the rest behind a lock.
#[derive(Debug)]
pub(super) struct Shared {
    pub machine: Machine,
    /// What the topology calls each GPU.
    pub gpu_ids: Vec<u32>,
    pub vram: Arc<Arena>,
    pub gtt: Arc<Arena>,
    next_pid: AtomicU32,
    state: Mutex<State>,
}

/// Everything that can change.
#[derive(Debug)]
pub(super) struct State {
    files: HashMap<FileId, OpenFile>,
    inodes: HashMap<Inode, FileId>,
    next_file: u64,
    pub gpus: Vec<GpuState>,
    pub kfd: KfdState,
    /// Objects by the inode of the descriptor that stands for them as a dma-buf.
    dma_bufs: HashMap<Inode, Weak<Object>>,
    /// Who traces whom.
    pub tracers: HashMap<u32, u32>,
    pub complaints: Vec<Complaint>,
}

/// What changes of a GPU.
#[derive(Debug)]
pub(super) struct GpuState {
    pub vram_used: Arc<AtomicU64>,
    next_mmap_offset: u64,
    /// Objects by their place in the mmap space.
    pub mmap: HashMap<u64, Weak<Object>>,
}

#[derive(Debug)]
struct OpenFile {
    kind: FileKind,
    inode: Inode,
    references: u32,
}

/// What a file is of.
#[derive(Debug)]
pub(super) enum FileKind {
    /// `/dev/kfd`, opened by this process.
    Kfd(u32),
    /// A render node.
    Render(Box<RenderFile>),
}

impl SimHost {
    /// Builds a machine.
    pub fn new(machine: Machine) -> nix::Result<Self> {
        let gpu_ids = super::profile::gpu_ids(&machine);
        let gpu = |_: &GpuSpec| GpuState {
            vram_used: Arc::default(),
            next_mmap_offset: FIRST_MMAP_OFFSET,
            mmap: HashMap::new(),
        };
        let state = State {
            files: HashMap::new(),
            inodes: HashMap::new(),
            next_file: 1,
            gpus: machine.gpus.iter().map(gpu).collect(),
            kfd: KfdState::default(),
            dma_bufs: HashMap::new(),
            tracers: HashMap::new(),
            complaints: Vec::new(),
        };
        let shared = Shared {
            vram: Arena::new("vram")?,
            gtt: Arena::new("gtt")?,
            next_pid: AtomicU32::new(1000),
            state: Mutex::new(state),
            machine,
            gpu_ids,
        };
        Ok(SimHost { shared: Arc::new(shared) })
    }

    /// A new process.
    pub fn process(&self, credentials: Credentials) -> SimProcess {
        let pid = self.shared.next_pid.fetch_add(1, Ordering::Relaxed);
        SimProcess::new(self.clone(), pid, credentials)
    }

    /// `tracer` becomes the ptracer of `tracee`, as CRIU does with what it dumps.
    pub fn trace(&self, tracer: &SimProcess, tracee: &SimProcess) {
        self.state().tracers.insert(tracee.pid(), tracer.pid());
    }

    /// What it was built from.
    pub fn machine(&self) -> &Machine {
        &self.shared.machine
    }

    /// What the topology calls each GPU, in its order.
    pub fn gpu_ids(&self) -> &[u32] {
        &self.shared.gpu_ids
    }

    /// What callers did wrong so far.
    pub fn complaints(&self) -> Vec<Complaint> {
        self.state().complaints.clone()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A handler that panicked has failed its test already.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new object in VRAM (ENOMEM where it is full) or GTT; `size` is whole pages.
    pub(super) fn new_object(
        &self,
        state: &mut State,
        gpu: usize,
        create: GemCreateIn,
        store: NewStore,
    ) -> nix::Result<Arc<Object>> {
        let size = create.bo_size;
        let store = match store {
            NewStore::Vram => {
                let total = &state.gpus[gpu].vram_used;
                let used = Used::take(total, self.shared.machine.gpus[gpu].vram_bytes, size)
                    .ok_or(Errno::ENOMEM)?;
                Store::Vram(self.shared.vram.piece(size)?, used)
            }
            NewStore::Gtt => Store::Gtt(self.shared.gtt.piece(size)?),
            NewStore::Registers => Store::Registers(self.shared.gtt.piece(size)?),
            NewStore::Ready(store) => store,
        };
        let offsets = &mut state.gpus[gpu];
        let mmap_offset = offsets.next_mmap_offset;
        offsets.next_mmap_offset += size;
        let object = Arc::new(Object { gpu, size, store, create, mmap_offset });
        offsets.mmap.insert(mmap_offset, Arc::downgrade(&object));
        Ok(object)
    }

    /// A descriptor that stands for an object as a dma-buf.
    pub(super) fn export(&self, state: &mut State, object: &Arc<Object>) -> nix::Result<OwnedFd> {
        let fd = memfd_create("dmabuf", MFdFlags::empty())?;
        // Now and then, or thousands of exports would take a time that grows with their square.
        if state.dma_bufs.len().is_power_of_two() {
            state.dma_bufs.retain(|_, object| object.strong_count() > 0);
        }
        state.dma_bufs.insert(inode(&fd)?, Arc::downgrade(object));
        Ok(fd)
    }
}

/// What a new object is made of.
#[derive(Debug)]
pub(super) enum NewStore {
    Vram,
    Gtt,
    Registers,
    Ready(Store),
}

impl State {
    /// Enters a file that was opened: its number, and the descriptor that stands for it.
    pub(super) fn open(&mut self, name: &str, kind: FileKind) -> nix::Result<(FileId, OwnedFd)> {
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC)?;
        let id = FileId(self.next_file);
        self.next_file += 1;
        let inode = inode(&fd)?;
        self.inodes.insert(inode, id);
        self.files.insert(id, OpenFile { kind, inode, references: 1 });
        Ok((id, fd))
    }

    /// Another reference to an open file, by a descriptor of it.
    pub(super) fn adopt(&mut self, inode: Inode) -> nix::Result<FileId> {
        let id = *self.inodes.get(&inode).ok_or(Errno::EBADF)?;
        self.hold(id);
        Ok(id)
    }

    /// The kernel keeps a reference to a file.
    pub(super) fn hold(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.references += 1;
        }
    }

    /// Gives a reference up; with the last one, what the file was.
    pub(super) fn release(&mut self, id: FileId) -> Option<FileKind> {
        let file = self.files.get_mut(&id)?;
        file.references -= 1;
        if file.references > 0 {
            return None;
        }
        let file = self.files.remove(&id)?;
        self.inodes.remove(&file.inode);
        Some(file.kind)
    }

    pub(super) fn file(&self, id: FileId) -> nix::Result<&FileKind> {
        self.files.get(&id).map(|file| &file.kind).ok_or(Errno::EBADF)
    }

    pub(super) fn file_mut(&mut self, id: FileId) -> nix::Result<&mut FileKind> {
        self.files.get_mut(&id).map(|file| &mut file.kind).ok_or(Errno::EBADF)
    }

    /// The open render node, EINVAL if it is something else.
    pub(super) fn render(&mut self, id: FileId) -> nix::Result<&mut RenderFile> {
        match self.file_mut(id)? {
            FileKind::Render(file) => Ok(file),
            FileKind::Kfd(_) => Err(Errno::EINVAL),
        }
    }

    /// The file that a descriptor is of.
    pub(super) fn by_inode(&self, inode: Inode) -> nix::Result<FileId> {
        self.inodes.get(&inode).copied().ok_or(Errno::EINVAL)
    }

    /// The object that a descriptor stands for as a dma-buf; EINVAL if it is no dma-buf.
    pub(super) fn import(&self, inode: Inode) -> nix::Result<Arc<Object>> {
        self.dma_bufs.get(&inode).and_then(Weak::upgrade).ok_or(Errno::EINVAL)
    }

    pub(super) fn complain(&mut self, pid: u32, what: impl Into<String>) {
        self.complaints.push(Complaint { pid, what: what.into() });
    }
}

/// What a descriptor of this process is.
pub(super) fn inode(fd: impl AsFd) -> nix::Result<Inode> {
    let stat = fstat(fd)?;
    Ok(Inode { device: stat.st_dev, number: stat.st_ino })
}
