//! A capture and a serve in this process, and what a plugin does.

use std::{
    fs::File,
    os::fd::AsFd,
    path::Path,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use vramstream::{
    device::{
        DeviceFile, DeviceKind, Driver, RenderNode,
        sim::{BoPlan, Fill, Machine, Profile, SimHost},
    },
    gpu::{Contents, Render},
    handoff::{Direction, HandoffError, Job, Pending, SOCKET, Streamer},
    stage::Compression,
};
use vramstream_streamer::{
    Error, Result,
    absorb::absorb,
    capture::{self, Captured, Output},
    progress::Progress,
    rig::{Source, State, Target},
    seekable::SeekableImage,
    serve::{self, ImageFiles, MemoryFiles, SeekableFiles},
    signals::Signals,
    store::MemoryStore,
    transport::{
        Destination, Origin,
        file::{FileDestination, FileIo, FileOrigin},
    },
};

/// The number that CRIU has given `/dev/kfd`.
pub(crate) const ID: u32 = 7;

pub(crate) fn machine(gpus: u32) -> Machine {
    Machine::new(&Profile::gfx90a(), gpus).vram_bytes(512 << 20)
}

/// A process with memory of all kinds on so many GPUs.
pub(crate) fn source(gpus: u32) -> Source {
    let plan = (0..gpus as usize).flat_map(|gpu| {
        [
            BoPlan::vram(gpu, 3 << 20),
            BoPlan::vram(gpu, 4096),
            BoPlan::gtt(gpu, 300 << 10),
            BoPlan::vram(gpu, 2 << 20),
        ]
    });
    source_with(gpus, &plan.collect::<Vec<_>>())
}

pub(crate) fn source_with(gpus: u32, plan: &[BoPlan]) -> Source {
    Source::start(machine(gpus), plan, |bo| match bo % 3 {
        0 => Fill::HalfZeros(bo),
        1 => Fill::Random(bo),
        _ => Fill::Bf16(bo),
    })
    .unwrap()
}

/// The state of a process, and where its contents are.
pub(crate) fn checkpoint(source: &Source) -> (State, Vec<Contents>) {
    let paused = source.pause().unwrap();
    let divided = source.divide(paused.checkpoint().unwrap()).unwrap();
    paused.unpause().unwrap();
    divided
}

/// Several machines as one.
#[derive(Debug)]
pub(crate) struct All(pub Vec<Arc<dyn Driver>>);

impl Driver for All {
    fn open(&self, path: &Path) -> nix::Result<Box<dyn DeviceFile>> {
        panic!("the streamer opens {} itself", path.display())
    }

    fn adopt(&self, fd: std::os::fd::OwnedFd) -> nix::Result<Box<dyn DeviceFile>> {
        let of = |driver: &&Arc<dyn Driver>| matches!(driver.identify(fd.as_fd()), Ok(Some(_)));
        self.0.iter().find(of).ok_or(nix::errno::Errno::ENODEV)?.adopt(fd)
    }

    fn identify(&self, fd: std::os::fd::BorrowedFd<'_>) -> nix::Result<Option<DeviceKind>> {
        Ok(self.0.iter().find_map(|driver| driver.identify(fd).ok().flatten()))
    }
}

pub(crate) fn all(drivers: impl IntoIterator<Item = Arc<dyn Driver>>) -> Arc<dyn Driver> {
    Arc::new(All(drivers.into_iter().collect()))
}

/// A job, and the render nodes that were opened for it, which stay open in the plugin's process.
pub(crate) struct Prepared {
    pub job: Job,
    _renders: Vec<RenderNode>,
}

pub(crate) fn prepare(
    driver: &Arc<dyn Driver>,
    direction: Direction,
    mut gpus: Vec<Contents>,
    cap_bytes: Option<u64>,
) -> Prepared {
    let mut renders = Vec::new();
    for gpu in &mut gpus {
        let Render::At(path) = &gpu.node else { panic!("{:?}", gpu.node) };
        let render = RenderNode::open(&**driver, path).unwrap();
        let file = render.as_fd().try_clone_to_owned().unwrap();
        gpu.node = Render::Open { path: path.clone(), file };
        renders.push(render);
    }
    Prepared { job: Job { direction, kfd_id: ID, cap_bytes, gpus }, _renders: renders }
}

/// Connects and hands over.
pub(crate) fn hand_over(dir: &Path, job: Job) -> Result<Pending, HandoffError> {
    connect(dir).hand_over(job)
}

pub(crate) fn connect(dir: &Path) -> Streamer {
    let deadline = Instant::now() + Duration::from_secs(20);
    let images = File::open(dir).unwrap();
    loop {
        // In one process several threads would go to and fro between directories.
        if dir.join(SOCKET).exists()
            && let Some(streamer) = Streamer::connect(images.as_fd()).unwrap()
        {
            return streamer;
        }
        assert!(Instant::now() < deadline, "nobody listens at {}", dir.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How to capture.
pub(crate) struct How {
    pub memory: u64,
    pub compression: Compression,
}

impl Default for How {
    fn default() -> Self {
        How { memory: 64 << 20, compression: Compression::None }
    }
}

pub(crate) fn start_capture(
    dir: &Path,
    driver: Arc<dyn Driver>,
    destination: Box<dyn Destination>,
    how: &How,
) -> JoinHandle<Result<Captured>> {
    let options = capture::Options {
        images_dir: dir.to_owned(),
        external_files: Vec::new(),
        compression: how.compression,
        memory_bytes: how.memory,
        driver,
    };
    std::thread::spawn(move || {
        let signals = Signals::take()?;
        capture::capture(options, Output::Native(destination), &signals, &Progress::silent())
    })
}

pub(crate) fn files(dir: &Path) -> Box<dyn Destination> {
    Box::new(FileDestination::new(dir, 2, FileIo::default()))
}

/// Where an image is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    InMemory,
    InFiles,
}

pub(crate) fn open_image(dir: &Path) -> SeekableImage {
    SeekableImage::open(FileOrigin::new(dir).files().unwrap()).unwrap()
}

pub(crate) fn image(dir: &Path, kept: Kept) -> Arc<dyn ImageFiles> {
    match kept {
        Kept::InFiles => Arc::new(SeekableFiles::new(open_image(dir))),
        Kept::InMemory => {
            let store = MemoryStore::new(1 << 30);
            let shards = FileOrigin::new(dir).open().unwrap();
            let counters = Progress::silent().absorbing(&shards);
            let absorbed = absorb(shards, &store, &counters, &mut || Ok(())).unwrap();
            Arc::new(MemoryFiles::new(store.into_files(&absorbed.manifest), 1 << 20))
        }
    }
}

pub(crate) fn start_serve(
    dir: &Path,
    driver: Arc<dyn Driver>,
    files: Arc<dyn ImageFiles>,
) -> JoinHandle<Result<()>> {
    let options = serve::Options {
        images_dir: dir.to_owned(),
        clients: 1,
        external_files: Vec::new(),
        ports: serve::PortMap::default(),
        driver,
    };
    std::thread::spawn(move || {
        let signals = Signals::take()?;
        serve::serve(options, files, &signals, &Progress::silent())
    })
}

/// Nothing that was made for copying is left on a machine.
pub(crate) fn assert_tidy(host: &SimHost) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !host.open_dma_bufs().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!((host.complaints(), host.open_dma_bufs()), (vec![], vec![]));
}

/// What an error says, with its causes.
pub(crate) fn told<T: std::fmt::Debug>(outcome: std::result::Result<T, Error>) -> String {
    outcome.unwrap_err().report().to_string()
}

/// The reason that a plugin was told.
pub(crate) fn reason<T: std::fmt::Debug>(outcome: Result<T, HandoffError>) -> String {
    match outcome.unwrap_err() {
        HandoffError::Failed(reason) => reason,
        error => panic!("{error}"),
    }
}

pub(crate) fn target(state: &State, gpus: u32) -> (Target, Vec<Contents>) {
    let (target, places) = Target::start(machine(gpus), state).unwrap();
    target.fill(Fill::Random(99)).unwrap();
    (target, places)
}
