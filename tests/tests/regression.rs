//! Faults that were found once, each with its story, so that they do not come back.

use std::{
    fs::{self, File},
    io::{self, Write},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::Duration,
};

use rustix::process::Signal;
use vramstream_tests::{
    deadline::Deadline,
    fake_criu::{CaptureClient, ServeClient},
    images::random_bytes,
    rounds::{capture_on, dump, expect_served, files_in, image_of, plausible_files},
    shards::{collect, feed_all},
    streamer::{Launch, Operation, Program, Running},
};

/// No failure may take longer.
const SOON: Duration = Duration::from_secs(10);

/// What is in a directory, by name.
fn names_in(dir: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Waits until the directory has something in it.
fn wait_for_content(dir: &Path) -> io::Result<()> {
    let deadline = Deadline::after(SOON);
    while names_in(dir)?.is_empty() {
        if deadline.passed() {
            return Err(io::Error::other("nothing came into the directory"));
        }
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(100));
    Ok(())
}

/// An image of two shards, with something in both.
fn two_shards() -> io::Result<Vec<Vec<u8>>> {
    image_of(&plausible_files(8 << 20), 2)
}

/// A thread that reads a shard shares the extraction, and is left behind when it waits for bytes
/// that do not come: a signal then left the temporary directory and what was in it for ever.
#[test]
fn an_extraction_that_is_stopped_while_a_shard_stalls_leaves_nothing() -> io::Result<()> {
    let shards = two_shards()?;
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).shards(2);
    let mut running = launch.start(Operation::Extract)?;
    let stalled: Vec<File> =
        std::mem::take(&mut running.shards).into_iter().map(File::from).collect();
    for (mut pipe, shard) in stalled.iter().zip(&shards) {
        pipe.write_all(&shard[..shard.len() / 2])?;
    }
    wait_for_content(dir.path())?;
    running.signal(Signal::TERM)?;
    running.wait_within(SOON)?.expect_failure(&["SIGTERM"])?;
    assert_eq!(names_in(dir.path())?, Vec::<String>::new());
    Ok(())
}

/// The same where a shard is damaged: another thread, which waited for its shard, held the directory.
#[test]
fn an_extraction_that_fails_while_a_shard_stalls_leaves_nothing() -> io::Result<()> {
    let shards = two_shards()?;
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).shards(2);
    let mut running = launch.start(Operation::Extract)?;
    let mut pipes = std::mem::take(&mut running.shards).into_iter().map(File::from);
    let (mut stalled, mut cut) = (pipes.next().unwrap(), pipes.next().unwrap());
    stalled.write_all(&shards[0][..shards[0].len() / 2])?;
    wait_for_content(dir.path())?;
    cut.write_all(&shards[1][..shards[1].len() / 2])?;
    drop(cut);
    running.wait_within(SOON)?.expect_failure(&["ends"])?;
    assert_eq!(names_in(dir.path())?, Vec::<String>::new());
    Ok(())
}

/// A receiver, and where it listens.
fn receiver(dir: &Path, words: &[&str]) -> io::Result<(Running, String)> {
    let launch = Launch::new(&Program::under_test()?, dir).no_shards();
    let launch = launch.args_after(&["--listen", "127.0.0.1:0"]).args_after(words);
    let running = launch.start(Operation::Receive)?;
    let line = running.line()?.unwrap_or_default();
    let address = line.strip_prefix("listening ").map(ToOwned::to_owned);
    Ok((running, address.ok_or_else(|| io::Error::other(line))?))
}

/// A capture that sends to it.
fn sender(dir: &Path, address: &str) -> io::Result<Running> {
    let launch = Launch::new(&Program::under_test()?, dir).no_shards();
    let running = launch.args(&["--to", &format!("tcp://{address}")]).start(Operation::Capture)?;
    running.wait_for("socket-init")?;
    Ok(running)
}

/// The threads of a receiver's connections started before signals were taken over, and so a signal
/// killed the process: half an image and, later, CRIU's socket were left in the directory.
#[test]
fn a_receiver_that_is_stopped_leaves_nothing() -> io::Result<()> {
    for words in [&["--extract"][..], &[]] {
        for whole in [false, true] {
            if whole && words.len() == 1 {
                continue;
            }
            let (from, to) = (tempfile::tempdir()?, tempfile::tempdir()?);
            let (mut receiver, address) = receiver(to.path(), words)?;
            let mut sender = sender(from.path(), &address)?;
            let criu = CaptureClient::connect(from.path())?;
            criu.send("pages-1.img", &random_bytes(1, 8 << 20))?;
            if whole {
                criu.finish()?;
                receiver.wait_for("socket-init")?;
                sender.wait()?.expect_success()?;
            } else if words.is_empty() {
                thread::sleep(Duration::from_millis(500));
            } else {
                wait_for_content(to.path())?;
            }
            receiver.signal(Signal::TERM)?;
            receiver.wait_within(SOON)?.expect_failure(&["SIGTERM"])?;
            assert_eq!(names_in(to.path())?, Vec::<String>::new(), "{words:?} {whole}");
            if !whole {
                sender.wait_within(SOON)?.expect_failure(&["SIGTERM"])?;
            }
        }
    }
    Ok(())
}

/// A receiver that still waits for a sender has nothing to clean up, and ends at once.
#[test]
fn a_receiver_that_waits_is_stopped_at_once() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut receiver, _) = receiver(dir.path(), &[])?;
    receiver.signal(Signal::TERM)?;
    let ended = receiver.wait_within(Duration::from_secs(2))?;
    assert!(!ended.success());
    assert_eq!(names_in(dir.path())?, Vec::<String>::new());
    Ok(())
}

/// In criu-image-streamer's format a capture was over when the kernel had the bytes: a reader that
/// died with the end of the image still in its pipe cost the process that had been dumped.
#[test]
fn a_reader_that_dies_with_the_end_in_its_pipe_fails_the_capture() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path());
    let mut running =
        launch.args(&["--format", "criu-image-streamer"]).start(Operation::Capture)?;
    let shard = running.shards.pop();
    running.wait_for("socket-init")?;
    let criu = CaptureClient::connect(dir.path())?;
    criu.send("core-1.img", &random_bytes(1, 1000))?;
    criu.finish()?;
    thread::sleep(Duration::from_millis(500));
    assert!(running.alive()?, "nobody has read the image, and the capture was over");
    drop(shard);
    running.wait_within(SOON)?.expect_failure(&["write shard"])
}

/// The compression threads were waited for at the end without an eye on signals: with a reader that
/// had stopped to read, a capture could not be ended.
#[test]
fn a_capture_that_compresses_into_a_full_pipe_can_be_stopped() -> io::Result<()> {
    // The queue has to become full with the very last images, which are compressed: which number of
    // empty ones that takes depends on what the shard's thread has taken.
    for images in 6..=12 {
        let dir = tempfile::tempdir()?;
        let launch = Launch::new(&Program::under_test()?, dir.path());
        let mut running =
            launch.args(&["--memory", "1M", "--compress", "lz4"]).start(Operation::Capture)?;
        running.wait_for("socket-init")?;
        let criu = CaptureClient::connect(dir.path())?;
        // A little more than a pipe of 1 MiB holds: the shard's thread is stuck.
        for name in 0..36 {
            criu.send(&format!("pages-{name}.img"), &random_bytes(name, 31 << 10))?;
        }
        for name in 0..images {
            criu.send(&format!("empty-{name}.img"), &[])?;
        }
        criu.finish()?;
        thread::sleep(Duration::from_millis(300));
        running.signal(Signal::TERM)?;
        running.wait_within(SOON)?.expect_failure(&["SIGTERM"])?;
    }
    Ok(())
}

/// An external file came over a socket whose other end died: a reset looked like the end of the
/// file, and a part of it was committed as if it were whole.
#[test]
fn an_external_file_whose_connection_is_reset_fails_the_capture() -> io::Result<()> {
    for words in [&["--format", "native"], &["--format", "criu-image-streamer"]] {
        let dir = tempfile::tempdir()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut peer = TcpStream::connect(listener.local_addr()?)?;
        let (ours, _) = listener.accept()?;
        let launch = Launch::new(&Program::under_test()?, dir.path()).args(words);
        let mut running =
            launch.external_on("disk", OwnedFd::from(ours)).start(Operation::Capture)?;
        let _shard = collect(running.shards.remove(0));
        running.wait_for("socket-init")?;
        peer.write_all(&random_bytes(1, 100 << 10))?;
        CaptureClient::connect(dir.path())?.finish()?;
        thread::sleep(Duration::from_millis(300));
        // Closing with a linger time of nothing resets.
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO))?;
        drop(peer);
        running.wait_within(SOON)?.expect_failure(&["disk"])?;
    }
    Ok(())
}

/// The program under a kernel that answers these system calls with this error.
fn where_it_fails(call: &str, error: &str) -> io::Result<Program> {
    let inject = format!("inject={call}:error={error}");
    // -D: the child is the program itself, which signals go to.
    let strace = ["strace", "-D", "-f", "-qqq", "-o", "/dev/null", "-e", &inject];
    Ok(Program::under_test()?.through(&strace))
}

/// Some kernels and sandboxes do not splice, and say so in different ways: the bytes are copied then,
/// and are the same.
#[test]
fn where_the_kernel_does_not_splice_bytes_are_copied() -> io::Result<()> {
    let files = plausible_files(4 << 20);
    for error in ["EINVAL", "ENOSYS", "EOPNOTSUPP"] {
        let dir = tempfile::tempdir()?;
        let launch = Launch::new(&where_it_fails("splice", error)?, dir.path()).shards(2);
        let launch = launch.args(&["--format", "criu-image-streamer"]);
        let captured = capture_on(launch, |criu| dump(criu, &files))?;
        captured.outcome.expect_success()?;

        let launch = Launch::new(&where_it_fails("vmsplice", error)?, dir.path()).shards(2);
        let mut running = launch.start(Operation::Serve)?;
        let _feeders = feed_all(std::mem::take(&mut running.shards), &captured.shards);
        running.wait_for("socket-init")?;
        let criu = ServeClient::connect(dir.path())?;
        expect_served(&criu, &files)?;
        drop(criu);
        running.wait()?.expect_success()?;
        assert!(files_in(dir.path())?.is_empty());
    }
    Ok(())
}

/// Where the kernel does not splice, pieces were written that a pipe had no room for: with a reader
/// that had stopped to read, a capture could not be ended.
#[test]
fn a_capture_that_copies_into_a_full_pipe_can_be_stopped() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&where_it_fails("splice", "EINVAL")?, dir.path());
    let mut running =
        launch.args(&["--format", "criu-image-streamer"]).start(Operation::Capture)?;
    running.wait_for("socket-init")?;
    let criu = CaptureClient::connect(dir.path())?;
    let mut image = criu.open("pages-1.img")?.with_pieces_of(64 << 10);
    // More than both pipes hold; it fails when the capture has ended.
    let writer = thread::spawn(move || image.write_all(&vec![1; 8 << 20]));
    thread::sleep(Duration::from_millis(500));
    running.signal(Signal::TERM)?;
    running.wait_within(SOON)?.expect_failure(&["SIGTERM"])?;
    assert!(writer.join().is_ok_and(|written| written.is_err()));
    Ok(())
}
