//! Whole rounds with the program under test: a dump into shards, and back.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use crate::{
    fake_criu::{CaptureClient, ServeClient},
    images::{self, random_bytes},
    shards::{Worker, collect_all, feed_all},
    streamer::{Launch, Operation, Outcome, Program, Running},
};

/// Images by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The consumers of a capture's shards.
pub type Collectors = Vec<Worker<Vec<u8>>>;

/// What a capture left.
#[derive(Debug)]
pub struct Captured {
    /// The bytes of each shard.
    pub shards: Vec<Vec<u8>>,
    /// How the program ended.
    pub outcome: Outcome,
}

/// Captures what `dump` does as CRIU, on one shard. The dump ends the connection itself.
pub fn capture(
    dir: &Path,
    dump: impl FnOnce(CaptureClient) -> io::Result<()>,
) -> io::Result<Captured> {
    capture_on(Launch::new(&Program::under_test()?, dir), dump)
}

/// The same with more shards or other options.
pub fn capture_on(
    launch: Launch,
    dump: impl FnOnce(CaptureClient) -> io::Result<()>,
) -> io::Result<Captured> {
    let (mut running, collectors, dir) = start_capture(launch)?;
    dump(CaptureClient::connect(&dir)?)?;
    let outcome = running.wait()?;
    let shards = collectors.into_iter().map(Worker::join).collect::<io::Result<_>>()?;
    Ok(Captured { shards, outcome })
}

/// Starts a capture and the consumers of its shards, and waits until it listens.
pub fn start_capture(launch: Launch) -> io::Result<(Running, Collectors, PathBuf)> {
    let dir = launch.dir().to_owned();
    let mut running = launch.start(Operation::Capture)?;
    let collectors = collect_all(std::mem::take(&mut running.shards));
    running.wait_for("socket-init")?;
    Ok((running, collectors, dir))
}

/// Captures these files and the inventory, and insists that it went well.
pub fn image_of(files: &Files, shards: usize) -> io::Result<Vec<Vec<u8>>> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).shards(shards);
    let captured = capture_on(launch, |criu| {
        for (name, content) in files {
            criu.send(name, content)?;
        }
        criu.finish()
    })?;
    captured.outcome.expect_success()?;
    Ok(captured.shards)
}

/// Starts to serve these shards.
pub fn serve(dir: &Path, shards: &[Vec<u8>]) -> io::Result<(Running, Vec<Worker<()>>)> {
    serve_on(Launch::new(&Program::under_test()?, dir), shards)
}

/// The same with more options.
pub fn serve_on(launch: Launch, shards: &[Vec<u8>]) -> io::Result<(Running, Vec<Worker<()>>)> {
    let mut running = launch.shards(shards.len()).start(Operation::Serve)?;
    let feeders = feed_all(std::mem::take(&mut running.shards), shards);
    Ok((running, feeders))
}

/// Extracts these shards into `dir`.
pub fn extract(dir: &Path, shards: &[Vec<u8>]) -> io::Result<Outcome> {
    extract_on(Launch::new(&Program::under_test()?, dir), shards)
}

/// The same with more options.
pub fn extract_on(launch: Launch, shards: &[Vec<u8>]) -> io::Result<Outcome> {
    let mut running = launch.shards(shards.len()).start(Operation::Extract)?;
    // A program that refuses stops reading; its exit status says more than the broken pipe.
    let _feeders = feed_all(std::mem::take(&mut running.shards), shards);
    running.wait()
}

/// Extracts these shards, insists that it went well, and reads what came of it.
pub fn files_of(shards: &[Vec<u8>]) -> io::Result<Files> {
    let dir = tempfile::tempdir()?;
    extract(dir.path(), shards)?.expect_success()?;
    files_in(dir.path())
}

/// The plain files of a directory.
pub fn files_in(dir: &Path) -> io::Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
        }
    }
    Ok(files)
}

/// Asks as CRIU for each of these files and compares.
pub fn expect_served(criu: &ServeClient, files: &Files) -> io::Result<()> {
    for (name, content) in files {
        match criu.read(name)? {
            Some(served) if &served == content => {}
            Some(served) => {
                let text = format!("{name}: {} bytes, not the {}", served.len(), content.len());
                return Err(io::Error::other(text));
            }
            None => return Err(io::Error::other(format!("{name}: said not to exist"))),
        }
    }
    Ok(())
}

/// A plausible dump: `pages` bytes of memory over four processes, half of it zero, and the small
/// images around it. Without the inventory, which [`CaptureClient::finish`] writes.
pub fn plausible_files(pages: usize) -> Files {
    let mut files = Files::new();
    for name in ["cpuinfo", "pstree", "seccomp", "files", "mountpoints-12", "netns-10", "tmpfs-1"] {
        files.insert(format!("{name}.img"), random_bytes(name.len() as u64, 60 * name.len()));
    }
    for process in 1..=4_usize {
        for kind in ["core", "mm", "ids", "fs", "fdinfo"] {
            let content = random_bytes(process as u64, 200 + 37 * process);
            files.insert(format!("{kind}-{process}.img"), content);
        }
        let pagemap = random_bytes(7, 24 * process);
        files.insert(
            format!("pagemap-{process}.img"),
            images::image(images::PAGEMAP_MAGIC, &[pagemap]),
        );
        let mut memory = random_bytes(process as u64, pages / 8);
        memory.resize(pages / 4, 0);
        files.insert(format!("pages-{process}.img"), memory);
    }
    files.insert("empty.img".to_owned(), Vec::new());
    files
}

/// Dumps these files as CRIU does: `cpuinfo.img` first, each `pagemap` open together with its
/// `pages` and written in turns, the rest around them, `inventory.img` last.
pub fn dump(criu: CaptureClient, files: &Files) -> io::Result<()> {
    let get = |name: &str| files.get(name).map_or(&[][..], Vec::as_slice);
    criu.send("cpuinfo.img", get("cpuinfo.img"))?;
    for (name, content) in files {
        let Some(process) = name.strip_prefix("pages-") else {
            if name != "cpuinfo.img" && !name.starts_with("pagemap-") {
                criu.send(name, content)?;
            }
            continue;
        };
        let pagemap = get(&format!("pagemap-{process}")).to_vec();
        let mut map = criu.open(format!("pagemap-{process}"))?;
        let mut pages = criu.open(name)?;
        let mut maps = pagemap.chunks(pagemap.len() / 3 + 1);
        for piece in content.chunks(content.len() / 3 + 1) {
            map.write_all(maps.next().unwrap_or_default())?;
            pages.write_all(piece)?;
        }
        for rest in maps {
            map.write_all(rest)?;
        }
    }
    criu.finish()
}
