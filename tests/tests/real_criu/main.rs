//! The streamer between real CRIU and real processes.
//!
//! Needs root and a Debian machine; `scripts/criu-setup` fetches CRIU. With VRAMSTREAM_SKIP_CRIU=1
//! these tests do nothing, and say so.
//!
//! Each case runs with every CRIU version, one case at a time on the whole machine.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use vramstream_tests::real::criu::{Criu, versions};
use vramstream_tests::real::host::{ADDRESSES, Link, Machine, Scratch};
use vramstream_tests::real::process::Process;
use vramstream_tests::real::streamer::{Start, Streamer, program};
use vramstream_tests::real::workload::{Kind, Workload};
use vramstream_tests::real::{Result, wait_for};

mod broken_dumps;
mod frameworks;
mod plugin;

const WORKLOAD: &str = env!("CARGO_BIN_EXE_vramstream-workload");
const MIB: u64 = 1 << 20;
/// For what takes no longer than the data takes to move.
const LONG: Duration = Duration::from_secs(120);
/// For a streamer to be there, and for one to end whose work is done.
const SHORT: Duration = Duration::from_secs(10);
/// For noticing that the other host is gone.
const CUT: Duration = Duration::from_secs(15);

const TREE: Kind = Kind::Tree(50);
const LARGE: Kind = Kind::Memory(2048 * MIB);

/// Runs `case` with each CRIU version, unless these tests are switched off.
fn with_each_criu(mut case: impl FnMut(&Criu) -> Result<()>) -> Result<()> {
    if skipped() {
        println!("skipped: VRAMSTREAM_SKIP_CRIU=1");
        return Ok(());
    }
    if !geteuid().is_root() {
        return Err("CRIU needs root: run as root, or set VRAMSTREAM_SKIP_CRIU=1".into());
    }
    let _machine = Machine::acquire()?;
    for criu in versions()? {
        let start = Instant::now();
        if let Err(error) = case(&criu) {
            // Printed here, because a test that returns an error shows it as one escaped line.
            eprintln!("with CRIU {}: {error}", criu.version);
            return Err(format!("failed with CRIU {}", criu.version).into());
        }
        println!("CRIU {}: {:.1?}", criu.version, start.elapsed());
    }
    Ok(())
}

/// Whether these tests are switched off.
fn skipped() -> bool {
    std::env::var_os("VRAMSTREAM_SKIP_CRIU").is_some_and(|value| value == "1")
}

/// The folders of one dump and restore.
struct Case {
    scratch: Scratch,
    /// Where CRIU and the capture meet.
    source: PathBuf,
    /// Where CRIU and the serve meet.
    destination: PathBuf,
}

impl Case {
    fn new() -> Result<Self> {
        let scratch = Scratch::new()?;
        let (source, destination) = (scratch.dir("a")?, scratch.dir("b")?);
        Ok(Self { scratch, source, destination })
    }

    fn workload(&self, kind: Kind, criu: &Criu) -> Result<Workload> {
        Workload::start(WORKLOAD, kind, criu, &self.scratch)
    }

    fn capture(&self, args: &[&str]) -> Start<'_> {
        Start::new(&self.source, args)
    }

    fn serve(&self, args: &[&str]) -> Start<'_> {
        Start::new(&self.destination, args)
    }

    /// Has `criu` dump `workload` to `capture`, and waits for the end of both, which must be good.
    fn dump(&self, criu: &Criu, workload: &mut Workload, capture: &mut Streamer) -> Result<()> {
        capture.ready(SHORT)?;
        criu.dump(workload, &self.source, &[])?.end(LONG)??;
        capture.succeeds(LONG)?;
        workload.gone()
    }

    /// Has `criu` restore `workload` from `serve`, and looks whether it goes on.
    fn restore(&self, criu: &Criu, workload: &mut Workload, serve: &mut Streamer) -> Result<()> {
        serve.ready(LONG)?;
        criu.restore(workload, &self.destination, LONG)?;
        serve.succeeds(SHORT)?;
        workload.goes_on()
    }

    /// The name of an image in the folder `name`.
    fn image(&self, name: &str) -> String {
        format!("file:{}", self.scratch.join(name).display())
    }

    /// Fails if `image` can be served.
    fn not_published(&self, image: &str) -> Result<()> {
        self.serve(&["serve", "--from", image]).start()?.fails(SHORT).map(drop)
    }
}

/// Dump and restore through a pipe from one streamer to the other, as with criu-image-streamer.
fn through_a_pipe(criu: &Criu, kind: Kind) -> Result<()> {
    let case = Case::new()?;
    let mut workload = case.workload(kind, criu)?;
    let mut capture = case.capture(&["capture"]).stdout(Stdio::piped()).start()?;
    let shard = capture.process.stdout()?;
    let mut serve = case.serve(&["serve"]).stdin(shard).start()?;
    case.dump(criu, &mut workload, &mut capture)?;
    case.restore(criu, &mut workload, &mut serve)
}

#[test]
fn counter_through_a_pipe() -> Result<()> {
    with_each_criu(|criu| through_a_pipe(criu, Kind::Counter))
}

#[test]
fn tree_through_a_pipe() -> Result<()> {
    with_each_criu(|criu| through_a_pipe(criu, TREE))
}

#[test]
fn memory_through_a_pipe() -> Result<()> {
    with_each_criu(|criu| through_a_pipe(criu, LARGE))
}

/// Several times, because CRIU does not read to their ends the images that it has tools like `ip`
/// and nft read: whether the streamer meets a closed pipe is a matter of luck.
#[test]
fn namespaces_through_a_pipe() -> Result<()> {
    with_each_criu(|criu| (0..10).try_for_each(|_| through_a_pipe(criu, Kind::Namespaces)))
}

#[test]
fn two_shards_by_number() -> Result<()> {
    with_each_criu(|criu| {
        let case = Case::new()?;
        let mut workload = case.workload(Kind::Memory(64 * MIB), criu)?;
        let fifos = [case.scratch.join("10"), case.scratch.join("11")];
        for fifo in &fifos {
            mkfifo(fifo, Mode::S_IRUSR | Mode::S_IWUSR)?;
        }
        // Opening waits for the other side, so both sides open in the same order.
        let [ten, eleven] = fifos.each_ref().map(|fifo| fifo.display());
        let mut capture = case
            .capture(&["--shard-fds", "10,11", "capture"])
            .redirect(format!("10>'{ten}' 11>'{eleven}'"))
            .start()?;
        let mut serve = case
            .serve(&["--shard-fds", "10,11", "serve"])
            .redirect(format!("10<'{ten}' 11<'{eleven}'"))
            .start()?;
        case.dump(criu, &mut workload, &mut capture)?;
        case.restore(criu, &mut workload, &mut serve)
    })
}

/// The process stays as it is when the dump is told to leave it running.
#[test]
fn leave_running() -> Result<()> {
    with_each_criu(|criu| {
        let case = Case::new()?;
        let workload = case.workload(TREE, criu)?;
        let mut capture = case.capture(&["capture"]).stdout(Stdio::piped()).start()?;
        let reader = Reader::start(capture.process.stdout()?, None);
        capture.ready(SHORT)?;
        criu.dump(&workload, &case.source, &["--leave-running"])?.end(LONG)??;
        capture.succeeds(SHORT)?;
        assert!(reader.end()? > 0);
        workload.goes_on()
    })
}

fn through_a_folder(criu: &Criu, kind: Kind) -> Result<()> {
    let case = Case::new()?;
    let mut workload = case.workload(kind, criu)?;
    let image = case.image("image");
    let mut capture = case.capture(&["capture", "--to", &image, "--shards", "4"]).start()?;
    case.dump(criu, &mut workload, &mut capture)?;
    let mut serve = case.serve(&["serve", "--from", &image]).start()?;
    case.restore(criu, &mut workload, &mut serve)
}

#[test]
fn all_through_a_folder() -> Result<()> {
    with_each_criu(|criu| {
        let kinds = [Kind::Counter, TREE, Kind::Memory(512 * MIB), Kind::Namespaces];
        kinds.into_iter().try_for_each(|kind| through_a_folder(criu, kind))
    })
}

/// The streamers of two hosts joined by a link: the sending one, not started, and the receiving one.
fn two_hosts<'a>(link: &Link, case: &'a Case) -> Result<(Start<'a>, Streamer)> {
    let address = format!("{}:7070", ADDRESSES[1]);
    let mut receive =
        case.serve(&["receive", "--listen", &address]).under(link.enter(1)).start()?;
    receive.says("listening", SHORT)?;
    let to = format!("tcp://{address}");
    let capture = case.capture(&["capture", "--to", &to, "--connections", "4"]);
    Ok((capture.under(link.enter(0)), receive))
}

fn between_hosts(criu: &Criu, kind: Kind) -> Result<()> {
    let case = Case::new()?;
    let link = Link::new(10_000)?;
    let mut workload = case.workload(kind, criu)?;
    let (capture, mut receive) = two_hosts(&link, &case)?;
    case.dump(criu, &mut workload, &mut capture.start()?)?;
    case.restore(criu, &mut workload, &mut receive)
}

#[test]
fn counter_between_hosts() -> Result<()> {
    with_each_criu(|criu| between_hosts(criu, Kind::Counter))
}

#[test]
fn tree_between_hosts() -> Result<()> {
    with_each_criu(|criu| between_hosts(criu, TREE))
}

#[test]
fn memory_between_hosts() -> Result<()> {
    with_each_criu(|criu| between_hosts(criu, LARGE))
}

#[test]
fn namespaces_between_hosts() -> Result<()> {
    with_each_criu(|criu| between_hosts(criu, Kind::Namespaces))
}

#[test]
fn a_cut_link_fails_both_hosts_and_spares_the_process() -> Result<()> {
    with_each_criu(|criu| {
        let case = Case::new()?;
        // Slow enough for the cut to come well before the end.
        let link = Link::new(800)?;
        let workload = case.workload(Kind::Memory(1024 * MIB), criu)?;
        let (capture, mut receive) = two_hosts(&link, &case)?;
        let mut capture = capture.start()?;
        capture.ready(SHORT)?;
        let mut dump = criu.dump(&workload, &case.source, &[])?;
        wait_for("the memory to be on its way", LONG, || {
            Ok((link.sent()? > 100 * MIB).then_some(()))
        })?;
        link.cut()?;
        let cut = Instant::now();
        capture.fails(CUT)?;
        receive.fails(CUT.saturating_sub(cut.elapsed()))?;
        let ended = dump.end(CUT.saturating_sub(cut.elapsed()))?;
        assert!(ended.is_err(), "CRIU thinks that it has dumped");
        workload.goes_on()
    })
}

/// Reads a shard to its end in a thread of its own.
struct Reader {
    thread: JoinHandle<std::io::Result<u64>>,
}

impl Reader {
    fn start(mut shard: ChildStdout, mut copy: Option<File>) -> Self {
        let thread = spawn(move || {
            let mut buffer = vec![0; 1 << 20];
            let mut total = 0;
            loop {
                let read = shard.read(&mut buffer)?;
                if read == 0 {
                    return Ok(total);
                }
                if let Some(copy) = &mut copy {
                    copy.write_all(&buffer[..read])?;
                }
                total += read as u64;
            }
        });
        Self { thread }
    }

    /// How many bytes there were.
    fn end(self) -> Result<u64> {
        Ok(self.thread.join().map_err(|_| "the reader panicked")??)
    }
}

/// An action script for CRIU that waits for the commit, and leaves a mark in the scratch folder when
/// CRIU has sent everything.
fn gate(case: &Case) -> Result<String> {
    let script = case.scratch.join("gate.sh");
    let text = format!(
        "#!/bin/sh\n\
         if [ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ]; then : > '{}'; fi\n\
         exec '{}' commit-gate -D '{}'\n",
        case.scratch.join("mark").display(),
        program()?.display(),
        case.source.display()
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script.display().to_string())
}

/// A dump that goes well with `script` as the gate, and the restore.
fn gated(criu: &Criu, script: impl Fn(&Case) -> Result<String>) -> Result<()> {
    let case = Case::new()?;
    let script = script(&case)?;
    let mut workload = case.workload(Kind::Memory(64 * MIB), criu)?;
    let image = case.image("image");
    let mut capture = case.capture(&["capture", "--to", &image]).start()?;
    capture.ready(SHORT)?;
    criu.dump(&workload, &case.source, &["--action-script", &script])?.end(LONG)??;
    capture.succeeds(SHORT)?;
    workload.gone()?;
    let mut serve = case.serve(&["serve", "--from", &image]).start()?;
    case.restore(criu, &mut workload, &mut serve)
}

#[test]
fn the_gate_opens_on_commit() -> Result<()> {
    with_each_criu(|criu| gated(criu, gate))
}

/// CRIU gives its action script no arguments: under this name the program needs none.
#[test]
fn the_gate_opens_on_commit_under_its_own_name() -> Result<()> {
    with_each_criu(|criu| {
        gated(criu, |case| {
            let link = case.scratch.join("vramstream-commit-gate");
            symlink(program()?, &link)?;
            Ok(link.display().to_string())
        })
    })
}

/// CRIU has sent everything when the shard's reader goes away: only the gate can save the process.
#[test]
fn the_gate_stays_shut_when_the_reader_dies_late() -> Result<()> {
    with_each_criu(|criu| {
        let case = Case::new()?;
        // More than the shard's pipe holds, less than the streamer keeps in memory.
        let workload = case.workload(Kind::Memory(16 * MIB), criu)?;
        let mut capture = case.capture(&["capture"]).stdout(Stdio::piped()).start()?;
        let shard = capture.process.stdout()?;
        capture.ready(SHORT)?;
        let mut dump = criu.dump(&workload, &case.source, &["--action-script", &gate(&case)?])?;
        let mark = case.scratch.join("mark");
        wait_for("CRIU's post-dump stage", SHORT, || Ok(mark.exists().then_some(())))?;
        drop(shard);
        capture.fails(SHORT)?;
        let ended = dump.end(SHORT)?;
        assert!(ended.is_err(), "CRIU has killed the process, and there is no image of it");
        workload.goes_on()
    })
}

#[test]
fn a_full_disk_fails_the_dump_and_spares_the_process() -> Result<()> {
    with_each_criu(|criu| {
        let case = Case::new()?;
        case.scratch.small_disk("disk", 100 * MIB)?;
        let workload = case.workload(Kind::Memory(128 * MIB), criu)?;
        let image = case.image("disk/image");
        let mut capture = case.capture(&["capture", "--to", &image]).start()?;
        capture.ready(SHORT)?;
        let mut dump = criu.dump(&workload, &case.source, &["--action-script", &gate(&case)?])?;
        let message = capture.fails(LONG)?;
        assert!(message.contains("No space left"), "{message}");
        assert!(dump.end(SHORT)?.is_err(), "CRIU thinks that it has dumped");
        case.not_published(&image)?;
        workload.goes_on()
    })
}
