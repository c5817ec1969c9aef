//! The machine: its GPUs, its open files, its KFD processes, behind one lock.
//!
//! Handlers lock [`State`], and never hold the lock while they wait: engines have what they need in
//! `Arc`s, and whoever waits for them waits on a condition of its own.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
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
    dispatch,
    dma_buf::{self, Exporter},
    door::SimProcess,
    drm::RenderFile,
    engine::{Copied, Engines},
    faults::{Fault, Faults, Planned},
    flight::InFlight,
    kfd::KfdState,
    locked::Locked,
    log::{Complaint, Log},
    machine::{GpuSpec, Machine},
    object::{Object, Store, Used},
};
use crate::abi::amdgpu::GemCreateIn;

/// Where the mmap space of a render node begins.
const FIRST_MMAP_OFFSET: u64 = 0x1_0000_0000;
/// How long descriptors that somebody may be closing are waited for.
const PATIENCE: Duration = Duration::from_millis(200);

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
    pub log: Arc<Log>,
    pub faults: Arc<Faults>,
    pub in_flight: Arc<InFlight>,
    /// The engines of each GPU.
    pub engines: Vec<Arc<Engines>>,
    /// Who makes real dma-bufs, if anybody does.
    pub exporter: OnceLock<Box<dyn Exporter>>,
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
    dma_bufs: HashMap<Inode, Arc<Object>>,
    /// Who traces whom.
    pub tracers: HashMap<u32, u32>,
    log: Arc<Log>,
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
    references: u32,
    /// One of the references is that of descriptors which nobody here has in hand.
    loose: Option<Inode>,
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
        let (log, faults, in_flight) = (Arc::default(), Arc::default(), Arc::default());
        let engines = |(gpu, spec)| Engines::new(gpu, spec, &log, &faults, &in_flight);
        let engines = machine.gpus.iter().enumerate().map(engines).collect();
        let state = State {
            files: HashMap::new(),
            inodes: HashMap::new(),
            next_file: 1,
            gpus: machine.gpus.iter().map(gpu).collect(),
            kfd: KfdState::default(),
            dma_bufs: HashMap::new(),
            tracers: HashMap::new(),
            log: Arc::clone(&log),
        };
        let shared = Shared {
            vram: Arena::new("vram")?,
            gtt: Arena::new("gtt")?,
            log,
            faults,
            in_flight,
            engines,
            exporter: OnceLock::new(),
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
        self.shared.log.read()
    }

    /// The same, which are then forgotten.
    pub fn take_complaints(&self) -> Vec<Complaint> {
        self.shared.log.take()
    }

    /// Plans a fault.
    pub fn plan(&self, fault: Fault) -> Planned {
        let (planned, known) = self.shared.faults.plan(fault.clone());
        if !known {
            self.shared.log.complain(0, format!("there is no call for {fault:?}"));
        }
        planned
    }

    /// How often a request was called, by its name in the headers without the prefix of its family,
    /// or "open" or "mmap".
    pub fn calls(&self, name: &str) -> u64 {
        self.shared.faults.calls(name)
    }

    /// How often each request was called that was called at all.
    pub fn all_calls(&self) -> BTreeMap<&'static str, u64> {
        self.shared.faults.all_calls()
    }

    /// What the engines of all GPUs have copied.
    pub fn copied(&self) -> Copied {
        let copied = self.shared.engines.iter().map(|engines| engines.copied());
        copied.fold(Copied::default(), |sum, copied| sum + copied)
    }

    /// How many submissions each engine of a GPU has taken.
    pub fn submissions(&self, gpu: usize) -> Vec<u64> {
        self.shared.engines.get(gpu).map_or_else(Vec::new, |engines| engines.executed())
    }

    pub(super) fn state(&self) -> Locked<'_> {
        // A handler that panicked has failed its test already.
        Locked::new(self.shared.state.lock().unwrap_or_else(PoisonError::into_inner))
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
                if self.shared.faults.vram_is_full(gpu) {
                    return Err(Errno::ENOMEM);
                }
                let vram = self.shared.machine.gpus[gpu].vram_bytes;
                let mut used = Used::take(&state.gpus[gpu].vram_used, vram, size);
                if used.is_none() {
                    state.reap();
                    used = Used::take(&state.gpus[gpu].vram_used, vram, size);
                }
                let used = used.ok_or(Errno::ENOMEM)?;
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
        // Now and then, or it would cost the square of how many there are.
        if offsets.mmap.len().is_power_of_two() {
            offsets.mmap.retain(|_, object| object.strong_count() > 0);
        }
        offsets.mmap.insert(mmap_offset, Arc::downgrade(&object));
        Ok(object)
    }

    /// A descriptor that stands for an object as a dma-buf, and keeps it until it is closed.
    pub(super) fn export(
        &self,
        state: &mut State,
        object: &Arc<Object>,
        writable: bool,
    ) -> nix::Result<OwnedFd> {
        let exporter = self.shared.exporter.get();
        let fd = match exporter {
            Some(exporter) => exporter.export(object.size, writable)?,
            None => dma_buf::descriptor(object.size)?,
        };
        dma_buf::mark(&fd)?;
        state.dma_bufs.insert(inode(&fd)?, Arc::clone(object));
        Ok(fd)
    }

    /// How much VRAM of a GPU is in use.
    pub(super) fn vram_used(&self, gpu: usize) -> u64 {
        let mut state = self.state();
        state.reap();
        state.gpus[gpu].vram_used.load(Ordering::Acquire)
    }

    /// The descriptors of this process that are dma-bufs of this machine, and open.
    pub fn open_dma_bufs(&self) -> Vec<i32> {
        let state = self.state();
        let is_ours = |inode| state.dma_bufs.contains_key(&inode);
        dma_buf::descriptors_of_this_process(is_ours)
    }

    /// What was closed without anybody saying so goes.
    fn settle(&self) {
        let closed = self.state().take_closed();
        closed.into_iter().for_each(|id| dispatch::release(self, id));
    }

    /// What callers did wrong so far, and what is still open: at the end of a test there is
    /// nothing.
    pub fn check(&self) -> Vec<Complaint> {
        // Who forks has everything open for a moment.
        let patience = Instant::now() + PATIENCE;
        self.settle();
        while self.state().files.values().any(|file| file.loose.is_some())
            && Instant::now() < patience
        {
            std::thread::sleep(Duration::from_millis(1));
            self.settle();
        }
        let mut complaints = self.complaints();
        for fd in self.open_dma_bufs() {
            let what = format!("descriptor {fd} is a dma-buf that is still open");
            complaints.push(Complaint { pid: 0, what });
        }
        let state = self.state();
        for file in state.files.values() {
            let (pid, node) = match &file.kind {
                FileKind::Kfd(pid) => (*pid, "/dev/kfd".to_owned()),
                FileKind::Render(file) => {
                    let node = self.machine().gpus[file.gpu].render_node();
                    (file.pid, node.display().to_string())
                }
            };
            if !self.shared.log.is_abandoned(pid) {
                complaints.push(Complaint { pid, what: format!("{node} is still open") });
            }
        }
        complaints
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
        self.inodes.insert(inode(&fd)?, id);
        dma_buf::mark(&fd)?;
        self.files.insert(id, OpenFile { kind, references: 1, loose: None });
        Ok((id, fd))
    }

    /// A descriptor in the hands of another process is of this open file.
    pub(super) fn also_known_as(&mut self, id: FileId, inode: Inode) {
        self.inodes.insert(inode, id);
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

    /// Who had a descriptor of a file in hand has closed it. Others may be open: as duplicates, in
    /// sockets; then they keep the reference until [`take_closed`](Self::take_closed) sees that they
    /// are gone.
    pub(super) fn let_go(&mut self, id: FileId, inode: Inode) -> Option<FileKind> {
        let open = dma_buf::open_somewhere().is_some_and(|open| open.contains(&inode));
        let file = self.files.get_mut(&id)?;
        match (open, file.loose) {
            (true, None) => {
                file.loose = Some(inode);
                return None;
            }
            (false, Some(_)) => {
                file.loose = None;
                file.references = file.references.saturating_sub(1).max(1);
            }
            _ => {}
        }
        self.release(id)
    }

    /// The files whose last descriptor has been closed by somebody who has not said so.
    fn take_closed(&mut self) -> Vec<FileId> {
        if self.files.values().all(|file| file.loose.is_none()) {
            return Vec::new();
        }
        let Some(open) = dma_buf::open_somewhere() else { return Vec::new() };
        let mut closed = Vec::new();
        for (&id, file) in &mut self.files {
            if file.loose.is_some_and(|inode| !open.contains(&inode)) {
                file.loose = None;
                closed.push(id);
            }
        }
        closed
    }

    /// Gives a reference up; with the last one, what the file was.
    pub(super) fn release(&mut self, id: FileId) -> Option<FileKind> {
        let file = self.files.get_mut(&id)?;
        file.references -= 1;
        if file.references > 0 {
            return None;
        }
        let file = self.files.remove(&id)?;
        self.inodes.retain(|_, known| *known != id);
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
        self.dma_bufs.get(&inode).cloned().ok_or(Errno::EINVAL)
    }

    /// Whether a descriptor stands for an object as a dma-buf.
    pub(super) fn is_dma_buf(&self, inode: Inode) -> bool {
        self.dma_bufs.contains_key(&inode)
    }

    /// Lets go of the objects whose dma-bufs have been closed.
    fn reap(&mut self) {
        let open = dma_buf::open_somewhere();
        if let Some(open) = open {
            self.dma_bufs.retain(|inode, _| open.contains(inode));
        }
    }

    pub(super) fn complain(&mut self, pid: u32, what: impl Into<String>) {
        self.log.complain(pid, what);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Engines have no reference to this: it is not one of their threads that drops it.
        self.engines.iter().for_each(|engines| engines.stop());
    }
}

/// What a descriptor of this process is.
pub(super) fn inode(fd: impl AsFd) -> nix::Result<Inode> {
    let stat = fstat(fd)?;
    Ok(Inode { device: stat.st_dev, number: stat.st_ino })
}
