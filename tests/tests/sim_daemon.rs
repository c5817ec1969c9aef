//! Simulated GPUs in a process of their own, and what is done to them from others: contents are
//! copied, a process moves there, files are handed over, and either side dies.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Read as _, Write as _},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::ptrace,
    unistd::{Uid, getppid},
};
use vramstream::{
    abi::{
        amdgpu::domain,
        kfd::{CriuDeviceBucket, flags},
    },
    device::{
        Checkpoint, DeviceError, Driver, Kfd, RenderNode, SocketDriver,
        sim::{Application, BoPlan, Credentials, Fill, Machine, Profile, SimHost},
    },
    gpu::{self, Bo, Contents, Drain, DumpJob, Paused, Restore, RestoreJob, Write},
    ring::{Chunk, Ring},
};

/// How long a channel may be full, or a ring empty, before that counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// The process with the GPUs.
struct Gpus {
    child: Child,
    output: BufReader<ChildStdout>,
    machine: Machine,
    driver: Arc<dyn Driver>,
    dir: tempfile::TempDir,
}

impl Gpus {
    fn start(count: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpus.sock");
        let mut child = Command::new(env!("CARGO_BIN_EXE_simulated-gpus"))
            .arg(&path)
            .args([&count.to_string(), "1G", "gfx90a"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let machine = Machine::new(&Profile::gfx90a(), count).vram_bytes(1 << 30);
        Gpus { child, output, machine, driver: Arc::new(SocketDriver::new(path)), dir }
    }

    fn renders(&self) -> Vec<RenderNode> {
        let gpus = self.machine.gpus.iter();
        gpus.map(|gpu| RenderNode::open(&*self.driver, &gpu.render_node()).unwrap()).collect()
    }

    /// Another process of this test, with a descriptor as its standard input.
    fn other(&self, role: &str, stdin: impl Into<Stdio>) -> Child {
        Command::new(env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture"])
            .env("VRAMSTREAM_TEST_ROLE", role)
            .env("VRAMSTREAM_TEST_SOCKET", self.dir.path().join("gpus.sock"))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// All files are closed and nobody did anything wrong.
    fn assert_tidy(mut self) {
        drop(self.child.stdin.take());
        let complaints: Vec<_> = self.output.by_ref().lines().map(Result::unwrap).collect();
        assert_eq!(complaints, [""; 0]);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no room")]
struct NoRoom;

/// Contents by GPU.
type Store = Arc<Mutex<BTreeMap<u32, Vec<u8>>>>;

struct Keep(u32, Store);

impl Drain for Keep {
    type Error = NoRoom;

    fn chunk(&mut self, offset: u64, chunk: Chunk, len: usize) -> Result<(), NoRoom> {
        let mut store = self.1.lock().unwrap();
        let bytes = store.entry(self.0).or_default();
        assert_eq!(bytes.len() as u64, offset);
        bytes.extend_from_slice(&chunk[..len]);
        Ok(())
    }

    fn end(&mut self, bytes: u64) -> Result<(), NoRoom> {
        assert_eq!(self.1.lock().unwrap().entry(self.0).or_default().len() as u64, bytes);
        Ok(())
    }
}

fn dump(driver: &Arc<dyn Driver>, contents: Vec<Contents>) -> BTreeMap<u32, Vec<u8>> {
    let ring = Ring::new(128 << 10, 8).unwrap();
    let store = Store::default();
    let jobs = contents.into_iter().map(|contents| {
        let drain = Keep(contents.gpu_id, Arc::clone(&store));
        DumpJob { contents, drain }
    });
    gpu::dump(driver, &ring, jobs.collect(), gpu::Options::default(), &mut || Ok(())).unwrap();
    assert_eq!(ring.free(), ring.chunks());
    std::mem::take(&mut store.lock().unwrap())
}

/// Writes all contents, a chunk at a time.
fn restore(driver: &Arc<dyn Driver>, contents: Vec<Contents>, images: &BTreeMap<u32, Vec<u8>>) {
    let ring = Ring::new(128 << 10, 8).unwrap();
    let ids: Vec<u32> = contents.iter().map(|contents| contents.gpu_id).collect();
    let jobs = contents.into_iter().map(|contents| RestoreJob { contents }).collect();
    let (restore, senders) =
        Restore::<NoRoom>::start(driver, &ring, jobs, gpu::Options::default()).unwrap();
    for (sender, id) in senders.into_iter().zip(ids) {
        for (number, window) in images[&id].chunks(ring.chunk_bytes()).enumerate() {
            let mut chunk = ring.take(PATIENCE).unwrap();
            chunk[..window.len()].copy_from_slice(window);
            let offset = (number * ring.chunk_bytes()) as u64;
            let write = Write::Bytes { offset, chunk, range: 0..window.len() };
            sender.send_timeout(write, PATIENCE).unwrap();
        }
    }
    restore.finish(&mut || Ok(())).unwrap();
    assert_eq!(ring.free(), ring.chunks());
}

fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    let word = |n: u64| (seed << 48 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..bytes / 8).flat_map(|n| word(n).to_le_bytes()).collect()
}

#[test]
fn contents_are_copied_out_and_in() {
    let gpus = Gpus::start(2);
    let renders = gpus.renders();
    let sizes = [4096, 3 << 20, 8192, 200 << 10];
    let bos: Vec<Vec<_>> = renders
        .iter()
        .map(|render| {
            let bo = |&size| (render.create(size, domain::VRAM).unwrap(), size);
            sizes.iter().map(bo).collect()
        })
        .collect();
    let contents = || -> Vec<Contents> {
        let gpu = |((render, bos), gpu_id): ((&RenderNode, &Vec<_>), u32)| Contents {
            gpu_id,
            node: render.node().path().to_owned().into(),
            bos: bos
                .iter()
                .map(|&(handle, size)| Bo { size, dma_buf: render.export(handle).unwrap() })
                .collect(),
        };
        renders.iter().zip(&bos).zip(1..).map(gpu).collect()
    };
    let images: BTreeMap<u32, Vec<u8>> =
        [1, 2].map(|id| (id, pattern(id.into(), sizes.iter().sum()))).into();

    restore(&gpus.driver, contents(), &images);
    // What the owner sees through its own mappings, and what a dump gives.
    for ((render, bos), image) in renders.iter().zip(&bos).zip(images.values()) {
        let mut seen = Vec::new();
        for &(handle, size) in bos {
            let mut bytes = vec![0; usize::try_from(size).unwrap()];
            render.map_memory(handle, bytes.len()).unwrap().read(0, &mut bytes);
            seen.extend(bytes);
        }
        assert!(seen == *image);
    }
    assert!(dump(&gpus.driver, contents()) == images);

    for (render, bos) in renders.iter().zip(&bos) {
        bos.iter().for_each(|&(handle, _)| render.close(handle).unwrap());
    }
    drop(renders);
    gpus.assert_tidy();
}

/// The contents of a checkpoint, by GPU, in the order of the BOs.
fn contents(
    machine: &Machine,
    ids: &[u32],
    bos: Vec<(u32, u64, Option<OwnedFd>)>,
) -> Vec<Contents> {
    let mut all: BTreeMap<u32, Vec<Bo>> = BTreeMap::new();
    for (gpu_id, size, dma_buf) in bos {
        if let Some(dma_buf) = dma_buf {
            all.entry(gpu_id).or_default().push(Bo { size, dma_buf });
        }
    }
    let gpus = machine.gpus.iter().zip(ids);
    gpus.map(|(gpu, gpu_id)| Contents {
        gpu_id: *gpu_id,
        node: gpu.render_node().into(),
        bos: all.remove(gpu_id).unwrap_or_default(),
    })
    .collect()
}

fn checkpoint(kfd: &Kfd) -> Checkpoint {
    let paused = Paused::pause(kfd).unwrap();
    let checkpoint = paused.checkpoint().unwrap();
    paused.unpause().unwrap();
    checkpoint
}

#[test]
fn a_process_moves_into_this_one() {
    // More BOs than descriptors go into one record.
    let mut plan: Vec<_> = (0..600).map(|n| BoPlan::vram(n % 2, 4096)).collect();
    plan.extend([BoPlan::vram(0, 5 << 20), BoPlan::gtt(1, 1 << 20)]);

    // An application on GPUs of this process.
    let gpus = Gpus::start(2);
    let source = SimHost::new(gpus.machine.clone()).unwrap();
    let application = source.process(Credentials::USER);
    let criu = source.process(Credentials::ROOT);
    source.trace(&criu, &application);
    let app = Application::start(&application, &plan).unwrap();
    app.fill(Fill::Random).unwrap();
    let fd = app.kfd().as_fd().try_clone_to_owned().unwrap();
    let mut image = checkpoint(&Kfd::adopt(&criu, fd).unwrap());
    let taken =
        image.bos.iter_mut().map(|bo| (bo.bucket.gpu_id, bo.bucket.size, bo.dma_buf.take()));
    let here: Arc<dyn Driver> = Arc::new(criu);
    let ids = source.gpu_ids().to_vec();
    let images = dump(&here, contents(&gpus.machine, &ids, taken.collect()));

    // Its state becomes the state of this process, on GPUs of the other.
    let kfd = Kfd::open(&*gpus.driver).unwrap();
    let renders = gpus.renders();
    let device = |(bucket, render): (&CriuDeviceBucket, &RenderNode)| CriuDeviceBucket {
        drm_fd: render.as_fd().as_raw_fd().cast_unsigned(),
        ..*bucket
    };
    let devices: Vec<_> = image.devices.iter().zip(&renders).map(device).collect();
    let buckets: Vec<_> = image.bos.iter().map(|bo| bo.bucket).collect();
    let restored = kfd.restore(&devices, &buckets, &image.private, image.info.objects).unwrap();
    let restored = restored.into_iter().map(|bo| (bo.bucket.gpu_id, bo.bucket.size, bo.dma_buf));
    restore(&gpus.driver, contents(&gpus.machine, &ids, restored.collect()), &images);
    Kfd::open(&*gpus.driver).unwrap().resume(std::process::id()).unwrap();

    // And is what it was.
    let mut again = checkpoint(&kfd);
    assert_eq!(again.info.objects, image.info.objects);
    let of = |bo: &vramstream::device::CheckpointedBo| (bo.bucket.addr, bo.bucket.size);
    assert!(again.bos.iter().map(of).eq(image.bos.iter().map(of)));
    let taken =
        again.bos.iter_mut().map(|bo| (bo.bucket.gpu_id, bo.bucket.size, bo.dma_buf.take()));
    assert!(dump(&gpus.driver, contents(&gpus.machine, &ids, taken.collect())) == images);
    let vram = |bo: &&vramstream::device::CheckpointedBo| bo.bucket.alloc_flags & flags::VRAM != 0;
    assert!(again.bos.iter().filter(vram).count() > 600);
    drop((kfd, renders, again));
    gpus.assert_tidy();
}

#[test]
fn only_the_tracer_of_a_process_checkpoints_it() {
    let gpus = Gpus::start(1);
    let kfd = Kfd::open(&*gpus.driver).unwrap();
    let run = |role| {
        let file = kfd.as_fd().try_clone_to_owned().unwrap();
        let output = gpus.other(role, file).wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let answer = text.lines().find_map(|line| line.strip_prefix("answer "));
        answer.expect("an answer").to_owned()
    };
    assert_eq!(run("stranger"), "EBADF");
    assert_eq!(run("tracer"), if Uid::effective().is_root() { "1 device" } else { "EACCES" });
    drop(kfd);
    gpus.assert_tidy();
}

#[test]
fn a_client_that_is_killed_leaves_nothing_behind() {
    let gpus = Gpus::start(1);
    let mut client = gpus.other("hoarder", Stdio::piped());
    let mut output = BufReader::new(client.stdout.take().unwrap()).lines();
    while output.next().unwrap().unwrap() != "answer has it all" {}
    client.kill().unwrap();
    client.wait().unwrap();
    // The daemon goes on.
    assert!(gpus.renders()[0].info().is_ok());
    gpus.assert_tidy();
}

#[test]
fn without_the_daemon_the_devices_are_gone() {
    let mut gpus = Gpus::start(1);
    let render = gpus.renders().remove(0);
    gpus.child.kill().unwrap();
    gpus.child.wait().unwrap();
    let errno = |error| match error {
        DeviceError::Call { errno, .. } => errno,
        other => panic!("{other}"),
    };
    assert_eq!(render.info().map_err(errno), Err(Errno::ENODEV));
    assert_eq!(render.map_memory(1, 4096).map(drop).map_err(errno), Err(Errno::ENODEV));
    let again = RenderNode::open(&*gpus.driver, Path::new("/dev/dri/renderD128"));
    assert_eq!(again.map(drop).map_err(errno), Err(Errno::ECONNREFUSED));
}

/// What the other processes of these tests do. Nothing where it is run as a test itself.
#[test]
fn the_other_process() {
    let Ok(role) = env::var("VRAMSTREAM_TEST_ROLE") else { return };
    let driver = SocketDriver::new(env::var_os("VRAMSTREAM_TEST_SOCKET").unwrap());
    let answer = match &*role {
        "stranger" => process_info(&driver),
        "tracer" => {
            ptrace::seize(getppid(), ptrace::Options::empty()).unwrap();
            process_info(&driver)
        }
        "hoarder" => {
            let render = RenderNode::open(&driver, Path::new("/dev/dri/renderD128")).unwrap();
            for _ in 0..4 {
                let handle = render.create(256 << 20, domain::VRAM).unwrap();
                render.map(handle, u64::from(handle) << 32, 256 << 20).unwrap();
            }
            render.new_context().unwrap();
            println!("answer has it all");
            std::io::stdout().flush().unwrap();
            // Until it is killed.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            panic!("nobody killed this process");
        }
        other => panic!("no role {other}"),
    };
    println!("answer {answer}");
}

/// Asks for the state of the process whose `/dev/kfd` is the standard input.
fn process_info(driver: &dyn Driver) -> String {
    let file = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let kfd = Kfd::adopt(driver, file).unwrap();
    match Paused::pause(&kfd) {
        Ok(paused) => {
            let devices = paused.info().devices;
            paused.unpause().unwrap();
            format!("{devices} device")
        }
        Err(DeviceError::Call { errno, .. }) => format!("{errno:?}"),
        Err(other) => panic!("{other}"),
    }
}
