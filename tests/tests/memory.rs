//! What the programs promise about memory, held by the kernel: under a limit on data, a program that
//! needs more than it promised fails, whatever it thinks of itself.

use std::{fs::File, io};

use vramstream_tests::{
    fake_criu::{CaptureClient, Pages, ServeClient},
    images::random_bytes,
    rounds::{image_of, plausible_files, serve_on},
    shards::discard,
    streamer::{Launch, Operation, Outcome, Program},
};

const MIB: u64 = 1 << 20;

/// The program, with so much memory for its data: heap, stacks, anonymous mappings.
fn limited(bytes: u64) -> io::Result<Program> {
    Ok(Program::under_test()?.through(&["prlimit", &format!("--data={bytes}")]))
}

/// Captures so much memory, with these words.
fn captured(program: &Program, bytes: u64, words: &[&str]) -> io::Result<Outcome> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(program, dir.path()).args(words);
    let (mut running, collectors) = if words.contains(&"--to") {
        let running = launch.no_shards().start(Operation::Capture)?;
        running.wait_for("socket-init")?;
        (running, Vec::new())
    } else {
        let mut running = launch.start(Operation::Capture)?;
        running.wait_for("socket-init")?;
        let collectors = running.shards.drain(..).map(discard).collect();
        (running, collectors)
    };
    let pages = Pages::new(&random_bytes(3, 16 << 20))?;
    let criu = CaptureClient::connect(dir.path())?;
    criu.open("pages-1.img")?.send_pages(&pages, bytes)?;
    criu.finish()?;
    let outcome = running.wait_within(std::time::Duration::from_secs(60))?;
    for collector in collectors {
        collector.join()?;
    }
    outcome.expect_success()?;
    Ok(outcome)
}

#[test]
fn capture_needs_the_same_whatever_the_size() -> io::Result<()> {
    // A quarter for the ring, threads and buffers for the rest.
    let program = limited(96 * MIB)?;
    for words in [&["--memory", "96M"][..], &["--memory", "96M", "--compress", "lz4"]] {
        let small = captured(&program, 64 * MIB, words)?.peak_memory;
        let large = captured(&program, 1024 * MIB, words)?.peak_memory;
        assert!(large <= small + small / 10, "{words:?}: {small} bytes, then {large}");
        assert!(large < 96 * MIB, "{words:?}: {large} bytes");
    }
    Ok(())
}

#[test]
fn capture_into_files_needs_the_same_whatever_the_size() -> io::Result<()> {
    let disk = tempfile::tempdir()?;
    let program = limited(96 * MIB)?;
    let peak = |name: &str, bytes| {
        let to = format!("file:{}", disk.path().join(name).display());
        let words = ["--memory", "96M", "--to", &to, "--shards", "2"];
        captured(&program, bytes, &words).map(|outcome| outcome.peak_memory)
    };
    let (small, large) = (peak("small", 64 * MIB)?, peak("large", 512 * MIB)?);
    assert!(large <= small + small / 10, "{small} bytes, then {large}");
    Ok(())
}

#[test]
fn a_ring_of_a_few_pages_does() -> io::Result<()> {
    captured(&limited(64 * MIB)?, 64 * MIB, &["--memory", "1M"]).map(drop)
}

#[test]
fn an_image_larger_than_memory_is_served_from_files() -> io::Result<()> {
    let (disk, sockets) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let image = format!("file:{}", disk.path().join("image").display());
    captured(&Program::under_test()?, 512 * MIB, &["--to", &image])?;
    let launch = Launch::new(&limited(64 * MIB)?, sockets.path()).no_shards();
    let mut running = launch.args(&["--from", &image]).start(Operation::Serve)?;
    running.wait_for("socket-init")?;
    let criu = ServeClient::connect(sockets.path())?;
    let mut pages = criu.open("pages-1.img")?.ok_or(io::ErrorKind::NotFound)?;
    let bytes = io::copy(&mut pages, &mut File::options().write(true).open("/dev/null")?)?;
    assert_eq!(bytes, 512 * MIB);
    drop((pages, criu));
    let outcome = running.wait()?;
    outcome.expect_success()?;
    assert!(outcome.peak_memory < 64 * MIB, "{}", outcome.peak_memory);
    Ok(())
}

#[test]
fn a_stream_that_does_not_fit_is_refused_in_words() -> io::Result<()> {
    let shards = image_of(&plausible_files(64 << 20), 1)?;
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).args(&["--memory-limit", "16M"]);
    let (mut running, _feeders) = serve_on(launch, &shards)?;
    let outcome = running.wait()?;
    outcome.expect_failure(&["--memory-limit"])?;
    assert!(outcome.peak_memory < 96 * MIB, "{}", outcome.peak_memory);
    Ok(())
}

#[test]
fn zeros_take_no_memory() -> io::Result<()> {
    let files = [("pages-1.img".to_owned(), vec![0; 256 << 20])].into();
    let shards = image_of(&files, 1)?;
    assert!(shards[0].len() < 1 << 20, "{}", shards[0].len());
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).args(&["--memory-limit", "8M"]);
    let (mut running, _feeders) = serve_on(launch, &shards)?;
    running.wait_for("socket-init")?;
    let criu = ServeClient::connect(dir.path())?;
    assert!(criu.read("pages-1.img")?.is_some_and(|pages| pages == vec![0; 256 << 20]));
    drop(criu);
    let outcome = running.wait()?;
    outcome.expect_success()?;
    assert!(outcome.peak_memory < 64 * MIB, "{}", outcome.peak_memory);
    Ok(())
}
