//! Dumps and restores in this process: an application, a CRIU and the task that it restores are
//! processes of simulated machines.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;

use super::{Plugin, host::Host};
use crate::{
    abi::{
        amdgpu::{GemCreateIn, GemVmEntry, domain},
        criu::{Level, Stage},
    },
    device::{
        RenderNode,
        sim::{
            BoPlan, Complaint, Credentials, KernelRelease, Machine, Profile, Program, ProgramPlan,
            SimHost, SimProcess,
        },
    },
    system::System,
};

mod dmabuf;
mod gem;
mod host;
mod nodes;
mod refusals;

use host::FakeHost;

/// A machine that plugins find in a directory.
struct Place {
    host: SimHost,
    dir: TempDir,
}

impl Place {
    fn new(machine: Machine) -> Self {
        let host = SimHost::new(machine).unwrap();
        let dir = tempfile::tempdir().unwrap();
        host.write_sysfs(&dir.path().join("topology")).unwrap();
        std::fs::write(dir.path().join("dev"), "511:0\n").unwrap();
        std::fs::create_dir(dir.path().join("shm")).unwrap();
        Place { host, dir }
    }

    /// Two GPUs of 64 MiB.
    fn on(kernel: KernelRelease) -> Self {
        Place::new(Machine::new(&Profile::gfx90a(), 2).kernel(kernel).vram_bytes(64 << 20))
    }

    /// The same in other slots.
    fn other(kernel: KernelRelease) -> Self {
        let machine = Machine::new(&Profile::gfx90a(), 2).kernel(kernel).vram_bytes(64 << 20);
        Place::new(machine.moved(150, 9))
    }

    fn plugin(&self, criu: &FakeHost, process: &SimProcess, stage: Stage) -> Plugin {
        let system = System::simulated(self.dir.path()).with_driver(Arc::new(process.clone()));
        Plugin::start(Box::new(criu.clone()) as Box<dyn Host>, system, stage).unwrap()
    }

    /// Dumps open files, as CRIU does: the answer of the first hook that has failed.
    fn dump(&self, criu: &FakeHost, app: &App, files: &[(BorrowedFd<'_>, u32)]) -> i32 {
        let checkpointer = self.host.process(Credentials::ROOT);
        self.host.trace(&checkpointer, &app.process);
        let mut plugin = self.plugin(criu, &checkpointer, Stage::Dump);
        let mut answer = 0;
        for &(fd, id) in files {
            answer = plugin.dump_file(fd, id);
            if answer != 0 {
                break;
            }
        }
        if answer == 0 && criu.hooks() == Some(15) {
            answer = plugin.dump_late();
        }
        plugin.finish(answer != 0);
        criu.end();
        // Whatever has happened, nothing is left of it.
        assert_eq!(self.host.left_stopped(), []);
        let complaints = self.host.check().into_iter();
        let ours: Vec<Complaint> = complaints.filter(|c| c.pid == checkpointer.pid()).collect();
        assert_eq!(ours, []);
        assert_eq!(self.host.open_dma_bufs().len(), app.dma_bufs);
        answer
    }

    /// Restores files by their ids.
    fn restore(&self, criu: &FakeHost, ids: &[u32]) -> Result<Restored, i32> {
        let task = self.host.process(Credentials::ROOT);
        let mut plugin = self.plugin(criu, &task, Stage::Restore);
        let files = ids.iter().map(|&id| plugin.restore_file(id)).collect::<Result<Vec<_>, _>>();
        match files {
            Ok(files) => Ok(Restored { task, files, plugin, criu: criu.clone() }),
            Err(answer) => {
                // CRIU kills the task.
                task.abandon();
                drop(plugin);
                criu.end();
                // What a call that failed did not close went with its file.
                let complaints = self.host.check().into_iter();
                let left: Vec<_> =
                    complaints.filter(|c| !c.what.contains(" was closed with ")).collect();
                assert_eq!(left, []);
                Err(answer)
            }
        }
    }
}

/// A task that was restored.
struct Restored {
    task: SimProcess,
    files: Vec<OwnedFd>,
    plugin: Plugin,
    criu: FakeHost,
}

impl Restored {
    /// A file as the task has it.
    fn render(&self, at: usize) -> RenderNode {
        let fd = self.files[at].try_clone().unwrap();
        RenderNode::adopt(&self.task, Path::new("restored"), fd).unwrap()
    }

    /// CRIU lets it run, and ends.
    fn run(&self, place: &Place) {
        let master = place.host.process(Credentials::ROOT);
        let mut plugin = place.plugin(&self.criu, &master, Stage::Restore);
        assert_eq!(plugin.resume(self.task.pid()), 0);
        assert!(place.host.wait_resumed(self.task.pid(), Duration::from_secs(10)));
        plugin.finish(false);
        assert_eq!(self.criu.said(Level::Error), [""; 0]);
    }

    /// The task ends: nothing is left.
    fn end(self, place: &Place) {
        self.task.abandon();
        drop(self.files);
        drop(self.plugin);
        self.criu.end();
        assert_eq!(place.host.check(), []);
    }
}

/// An application with files of render nodes.
struct App {
    process: SimProcess,
    program: Program,
    /// Its descriptors of dma-bufs.
    dma_bufs: usize,
}

impl App {
    /// With memory of KFD on each GPU, and a second file of each render node.
    fn start(place: &Place) -> Self {
        let process = place.host.process(Credentials::USER);
        let plan = ProgramPlan {
            bos: vec![BoPlan::vram(0, 64 << 10), BoPlan::gtt(1, 8 << 10)],
            more_renders: 1,
            ..ProgramPlan::default()
        };
        let program = Program::start(&process, place.host.machine(), &plan).unwrap();
        App { process, program, dma_bufs: 0 }
    }

    fn node(&self, fd: BorrowedFd<'_>) -> RenderNode {
        let fd = fd.try_clone_to_owned().unwrap();
        RenderNode::adopt(&self.process, Path::new("application"), fd).unwrap()
    }

    /// The file that KFD was given for a GPU.
    fn render(&self, gpu: usize) -> RenderNode {
        self.node(self.program.renders().nth(gpu).unwrap().as_fd())
    }

    /// Its other file of that render node.
    fn other(&self, gpu: usize) -> RenderNode {
        self.node(self.program.more_renders()[gpu].as_fd())
    }

    /// /dev/kfd: 1, the files that KFD was given: 2 and 3, the others: 4 and 5.
    fn files(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        let renders = self.program.renders().chain(self.program.more_renders());
        let all = std::iter::once(self.program.kfd()).chain(renders);
        all.map(AsFd::as_fd).zip(1..).collect()
    }

    /// The end of it.
    fn end(self, place: &Place) {
        self.process.abandon();
        drop(self.program);
        assert_eq!(place.host.check(), []);
    }
}

/// What differs in each BO.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8)).to_le_bytes()[0] ^ seed;
    (0..len).map(byte).collect()
}

/// A BO with this in it.
fn made(render: &RenderNode, create: GemCreateIn, bytes: &[u8]) -> u32 {
    let handle = render.create_as(create).unwrap();
    if !bytes.is_empty() {
        write(render, handle, bytes);
    }
    handle
}

fn write(render: &RenderNode, handle: u32, bytes: &[u8]) {
    render.map_memory(handle, bytes.len()).unwrap().write(0, bytes);
}

fn read(render: &RenderNode, handle: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    render.map_memory(handle, len).unwrap().read(0, &mut bytes);
    bytes
}

fn vram(bo_size: u64) -> GemCreateIn {
    GemCreateIn { bo_size, domains: domain::VRAM, ..GemCreateIn::default() }
}

fn mapped(render: &RenderNode, handle: u32, addr: u64, size: u64, offset: u64) {
    render.map_as(handle, &GemVmEntry { addr, size, offset, flags: 0xe }).unwrap();
}

/// A BO: its handle, what it was made with, its flags, where it is mapped.
type Described = (u32, GemCreateIn, u32, Vec<GemVmEntry>);

/// Handles, sizes, memory and flags of all BOs, and where each is mapped.
fn described(render: &RenderNode) -> Vec<Described> {
    let bos = render.bos().unwrap().unwrap();
    let described = bos.into_iter().map(|bo| {
        let mut mappings = render.mappings(bo.handle).unwrap();
        mappings.sort_by_key(|vm| vm.addr);
        (bo.handle, bo.create, bo.flags, mappings)
    });
    described.collect()
}

/// The descriptors of this process.
fn descriptors() -> usize {
    // (One of them is of the list.)
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The name of an error's file is in the message.
fn assert_said(criu: &FakeHost, what: &[&str]) {
    let said = criu.said(Level::Error).join("\n");
    for what in what {
        assert!(said.contains(what), "{what:?} is not in: {said}");
    }
}
