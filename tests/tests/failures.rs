//! What goes wrong, with whole programs: nothing is published, nothing hangs, and the message
//! names the cause.

use std::{
    fs, io,
    io::Write,
    os::unix::{fs::symlink, net::UnixListener},
    path::Path,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use vramstream_tests::{
    fake_criu::{CaptureClient, Pages, ServeClient, wire::CAPTURE_SOCKET},
    images::random_bytes,
    legacy::Stream,
    rounds::{
        Files, capture_on, expect_served, extract, extract_on, files_in, files_of, image_of,
        plausible_files, serve, start_capture,
    },
    shards::Worker,
    streamer::{Launch, Operation, Outcome, Program, formats},
};

mod native;
mod surroundings;

/// No failure may take longer to be told.
const SOON: Duration = Duration::from_secs(10);

/// What these shards hold must not pass for an image: not when extracted, not when served.
fn expect_no_image(shards: &[Vec<u8>]) -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let begin = Instant::now();
    extract(dir.path(), shards)?.expect_failure(&[])?;
    let left = files_in(dir.path())?;
    assert!(!left.contains_key("inventory.img"), "looks restorable: {:?}", left.keys());
    expect_not_served(shards, &Files::new())?;
    assert!(begin.elapsed() < 2 * SOON);
    Ok(())
}

/// Serving these shards must fail before or while CRIU reads. A program that keeps the socket
/// closed is as good as one that hangs up.
fn expect_not_served(shards: &[Vec<u8>], files: &Files) -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut running, _feeders) = serve(dir.path(), shards)?;
    if running.wait_for_within("socket-init", SOON).is_ok() {
        let criu = ServeClient::connect_within(dir.path(), SOON)?;
        let all = expect_served(&criu, files).and_then(|()| criu.read("inventory.img"));
        assert!(!matches!(all, Ok(Some(_))), "CRIU was served all of a bad image");
    }
    running.wait_within(SOON)?.expect_failure(&[])
}

#[test]
fn a_dump_that_dies_is_not_an_image() -> io::Result<()> {
    let pages = Pages::random(1, 16 << 20)?;
    for &words in formats() {
        for percent in [0, 10, 50, 99, 100] {
            let dir = tempfile::tempdir()?;
            let launch = Launch::new(&Program::under_test()?, dir.path()).args(words);
            let begin = Instant::now();
            let captured = capture_on(launch, |criu| {
                if percent > 0 {
                    criu.send("core-1.img", &[1; 1000])?;
                    criu.open("pages-1.img")?.send_pages(&pages, (64 << 20) / 100 * percent)?;
                }
                criu.die();
                Ok(())
            })?;
            captured.outcome.expect_failure(&["inventory"])?;
            assert!(begin.elapsed() < SOON);
            expect_no_image(&captured.shards)?;
        }
    }
    Ok(())
}

#[test]
fn a_dump_cut_in_its_inventory_is_not_an_image() -> io::Result<()> {
    let inventory = vramstream_tests::images::inventory();
    for cut in [0, 4, 8, 12, inventory.len() - 1] {
        let dir = tempfile::tempdir()?;
        let captured = capture_on(Launch::new(&Program::under_test()?, dir.path()), |criu| {
            criu.send("core-1.img", &[1; 1000])?;
            criu.send("inventory.img", &inventory[..cut])?;
            criu.die();
            Ok(())
        })?;
        captured.outcome.expect_failure(&["inventory"])?;
        expect_no_image(&captured.shards)?;
    }
    Ok(())
}

#[test]
fn a_client_that_never_comes_to_the_point_fails_the_capture() -> io::Result<()> {
    let torn: [&[u8]; 4] = [&[5], &[200, 0, 0, 0, 1], &[0xff; 64], &[0, 0, 0, 0x80]];
    for bytes in torn {
        let dir = tempfile::tempdir()?;
        let captured = capture_on(Launch::new(&Program::under_test()?, dir.path()), |criu| {
            criu.socket().write_all(bytes)
        })?;
        captured.outcome.expect_failure(&[])?;
        expect_no_image(&captured.shards)?;
    }
    Ok(())
}

#[test]
fn a_consumer_that_dies_fails_the_dump() -> io::Result<()> {
    let pages = Pages::random(1, 16 << 20)?;
    for &words in formats() {
        for shards in [1, 2] {
            let dir = tempfile::tempdir()?;
            let launch =
                Launch::new(&Program::under_test()?, dir.path()).shards(shards).args(words);
            let mut running = launch.start(Operation::Capture)?;
            let mut ends = std::mem::take(&mut running.shards);
            let dies = ends.pop();
            let _others = vramstream_tests::shards::collect_all(ends);
            running.wait_for("socket-init")?;
            let criu = CaptureClient::connect_within(dir.path(), SOON)?;
            let image = criu.open("pages-1.img")?;
            image.send_pages(&pages, 1 << 16)?;
            drop(dies);
            let begin = Instant::now();
            // CRIU must see it: an error on the pipe or on the socket, not silence.
            let seen = image.send_pages(&pages, 1 << 30).and_then(|()| criu.finish());
            assert!(seen.is_err(), "CRIU was not told");
            running.wait_within(SOON)?.expect_failure(&["shard", "pipe", "fd"])?;
            assert!(begin.elapsed() < SOON);
        }
    }
    Ok(())
}

#[test]
fn a_signal_aborts_the_capture() -> io::Result<()> {
    for signal in [Signal::TERM, Signal::INT] {
        for &words in formats() {
            let dir = tempfile::tempdir()?;
            let launch = Launch::new(&Program::under_test()?, dir.path()).args(words);
            let (mut running, collectors, dir) = start_capture(launch)?;
            let criu = CaptureClient::connect_within(&dir, SOON)?;
            criu.send("core-1.img", &[1; 1000])?;
            let mut image = criu.open("pages-1.img")?;
            image.write_all(&random_bytes(1, 5 << 20))?;
            running.signal(signal)?;
            running.wait_within(SOON)?.expect_failure(&["sig", "interrupt", "terminat"])?;
            let shards =
                collectors.into_iter().map(Worker::join).collect::<io::Result<Vec<_>>>()?;
            expect_no_image(&shards)?;
        }
    }
    Ok(())
}

#[test]
fn a_killed_capture_leaves_no_image() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path());
    let (mut running, collectors, dir) = start_capture(launch)?;
    let criu = CaptureClient::connect_within(&dir, SOON)?;
    criu.open("pages-1.img")?.write_all(&random_bytes(1, 5 << 20))?;
    running.signal(Signal::KILL)?;
    assert!(!running.wait_within(SOON)?.success());
    let shards = collectors.into_iter().map(Worker::join).collect::<io::Result<Vec<_>>>()?;
    expect_no_image(&shards)
}

/// A small image of two shards and another dump of the same.
fn two_dumps() -> io::Result<[Vec<Vec<u8>>; 2]> {
    let files = plausible_files(4 << 20);
    Ok([image_of(&files, 2)?, image_of(&files, 2)?])
}

#[test]
fn damaged_sets_of_shards_are_refused() -> io::Result<()> {
    let [dump, other] = two_dumps()?;
    let (first, second) = (&dump[0], &dump[1]);
    let cut = |shard: &Vec<u8>, length: usize| shard[..length].to_vec();
    for length in [first.len() - 1, first.len() - 40, first.len() / 2, 70, 64, 10, 0] {
        expect_no_image(&[cut(first, length), second.clone()])?;
        expect_no_image(&[second.clone(), cut(first, length)])?;
    }
    expect_no_image(std::slice::from_ref(first))?;
    expect_no_image(std::slice::from_ref(second))?;
    expect_no_image(&[first.clone(), first.clone()])?;
    expect_no_image(&[first.clone(), second.clone(), second.clone()])?;
    expect_no_image(&[first.clone(), other[1].clone()])?;
    expect_no_image(&[[&first[..], &[0]].concat(), second.clone()])?;
    // In the other order they are as good as before.
    assert_eq!(files_of(&[second.clone(), first.clone()])?, files_of(&dump)?);
    Ok(())
}

#[test]
fn one_bit_is_enough() -> io::Result<()> {
    let [dump, _] = two_dumps()?;
    let shard = &dump[0];
    let end = shard.len();
    // Prologue, first header, payloads, index, trailer.
    for at in [3, 12, 40, 66, 75, end / 4, end / 2, end / 4 * 3, end - 45, end - 30, end - 5] {
        let mut flipped = shard.clone();
        flipped[at] ^= 0x10;
        let refused = expect_no_image(&[flipped, dump[1].clone()]);
        refused.map_err(|error| io::Error::other(format!("byte {at} of {end}: {error}")))?;
    }
    Ok(())
}

#[test]
fn nothing_is_not_an_image() -> io::Result<()> {
    expect_no_image(&[Vec::new()])?;
    expect_no_image(&[random_bytes(1, 100_000)])?;
    expect_no_image(&[vec![0; 100_000]])
}

/// Extracts a stream with a hostile name into a directory within another, where nothing may change.
fn expect_name_refused(name: &[u8], shard: Vec<u8>) -> io::Result<()> {
    let outer = tempfile::tempdir()?;
    let inner = outer.path().join("images");
    fs::create_dir(&inner)?;
    let outcome = extract(&inner, &[shard])?;
    let shown = name.escape_ascii();
    // What is not text cannot be shown, and need not be called a name.
    let words: &[&str] = if name.is_ascii() { &["name"] } else { &[] };
    outcome.expect_failure(words).map_err(|error| io::Error::other(format!("{shown}: {error}")))?;
    let around: Vec<_> = fs::read_dir(outer.path())?.collect::<io::Result<_>>()?;
    assert_eq!(around.len(), 1, "{shown}: something outside was touched");
    assert_eq!(files_in(&inner)?.len(), 0, "{shown}: something was left");
    assert!(!Path::new("/tmp/vramstream-hostile").exists());
    Ok(())
}

#[test]
fn hostile_names_are_refused() -> io::Result<()> {
    let long = vec![b'a'; 300];
    let names: [&[u8]; 9] = [
        b"../x",
        b"/tmp/vramstream-hostile",
        b"a/b",
        b"",
        b".",
        b"..",
        b"a\0b",
        b"x/../../y",
        &long,
    ];
    for name in names {
        let stream = Stream::new().file(name, b"hostile").file(b"inventory.img", b"x");
        expect_name_refused(name, stream.end_of_image())?;
        expect_name_refused(name, native::image(name, b"hostile"))?;
    }
    expect_name_refused(b"\xff", Stream::new().file(b"\xff", b"hostile").end_of_image())
}

#[test]
fn a_link_in_the_directory_is_not_followed() -> io::Result<()> {
    let outer = tempfile::tempdir()?;
    let inner = outer.path().join("images");
    let victim = outer.path().join("victim");
    fs::create_dir(&inner)?;
    fs::write(&victim, b"precious")?;
    symlink(&victim, inner.join("core-1.img"))?;
    let files = Files::from([("core-1.img".to_owned(), b"new".to_vec())]);
    // Refused or replaced: both are right.
    let _ = extract(&inner, &image_of(&files, 1)?)?;
    assert_eq!(fs::read(&victim)?, b"precious");
    Ok(())
}

/// Must end soon, in order, and with little memory.
fn expect_cheap_refusal(what: &str, shard: Vec<u8>) -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let begin = Instant::now();
    let outcome: Outcome = extract(dir.path(), &[shard])?;
    outcome.expect_failure(&[]).map_err(|error| io::Error::other(format!("{what}: {error}")))?;
    assert!(begin.elapsed() < SOON, "{what}: slow");
    assert!(outcome.peak_memory < 400 << 20, "{what}: {} bytes", outcome.peak_memory);
    Ok(())
}

#[test]
fn absurd_lengths_cost_nothing() -> io::Result<()> {
    for length in [10_241_u32, 1 << 31, (1 << 31) - 1, u32::MAX] {
        let bare = Stream::new().raw(&length.to_le_bytes()).raw(&[0; 100]).bytes();
        expect_cheap_refusal(&format!("a marker of {length}"), bare)?;
        let data = Stream::new().name(b"a").data_of_length(length, &[0; 100]).bytes();
        expect_cheap_refusal(&format!("data of {length}"), data)?;
        expect_cheap_refusal(&format!("a header of {length}"), native::long_header(length))?;
        expect_cheap_refusal(&format!("a chunk of {length}"), native::long_chunk(length))?;
    }
    for length in [1 << 31, 1 << 62, u64::MAX] {
        expect_cheap_refusal(&format!("a file of {length}"), native::long_file(length))?;
        expect_cheap_refusal(&format!("a chunk at {length}"), native::far_chunk(length))?;
    }
    Ok(())
}

#[test]
fn a_million_files_are_served_or_refused_but_not_fatal() -> io::Result<()> {
    let mut stream = Stream::new();
    for number in 0..1_000_000 {
        stream = stream.file(format!("f{number}").as_bytes(), b"");
    }
    let shards = [stream.end_of_image()];
    let dir = tempfile::tempdir()?;
    let (mut running, _feeders) = serve(dir.path(), &shards)?;
    if running.wait_for("socket-init").is_ok() {
        let criu = ServeClient::connect(dir.path())?;
        assert_eq!(criu.read("f999999")?, Some(Vec::new()));
        drop(criu);
        running.wait()?.expect_success()?;
    } else {
        running.wait()?.expect_failure(&["files", "many"])?;
    }
    assert!(running.wait()?.peak_memory < 1 << 30);
    Ok(())
}

#[test]
fn two_captures_in_one_directory_do_not_mix() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let program = Program::under_test()?;
    let (mut first, collectors, path) = start_capture(Launch::new(&program, dir.path()))?;
    let mut second = Launch::new(&program, dir.path()).start(Operation::Capture)?;
    drop(std::mem::take(&mut second.shards));
    second.wait_within(SOON)?.expect_failure(&[".sock", "another program is listening"])?;
    // The first goes on as if nothing had been.
    let criu = CaptureClient::connect(&path)?;
    criu.send("core-1.img", &[1, 2, 3])?;
    criu.finish()?;
    first.wait()?.expect_success()?;
    let shards = collectors.into_iter().map(Worker::join).collect::<io::Result<Vec<_>>>()?;
    assert_eq!(files_of(&shards)?["core-1.img"], [1, 2, 3]);
    Ok(())
}

#[test]
fn a_stale_socket_is_replaced() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    drop(UnixListener::bind(dir.path().join(CAPTURE_SOCKET))?);
    let captured = capture_on(Launch::new(&Program::under_test()?, dir.path()), |criu| {
        criu.send("core-1.img", &[1, 2, 3])?;
        criu.finish()
    })?;
    captured.outcome.expect_success()?;
    assert_eq!(files_of(&captured.shards)?["core-1.img"], [1, 2, 3]);
    Ok(())
}

#[test]
fn a_wrong_descriptor_is_refused_by_number() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    for fds in ["998", "998,998", "-1", "x", ""] {
        let launch = Launch::new(&Program::under_test()?, dir.path()).no_shards();
        let mut running = launch.args(&[format!("--shard-fds={fds}")]).start(Operation::Capture)?;
        running.wait_within(SOON)?.expect_failure(&["998", "shard"])?;
    }
    Ok(())
}

#[test]
fn an_external_file_does_not_take_an_image_s_place() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).external("core-1.img");
    let (mut running, _collectors, _) = start_capture(launch)?;
    let criu = CaptureClient::connect(dir.path())?;
    // It may be refused before it is written.
    let _ = criu.send("core-1.img", b"CRIU's");
    let _ = criu.finish();
    running.external.clear();
    running.wait()?.expect_failure(&["core-1.img"])
}

#[test]
fn external_files_that_hold_an_image_s_name_are_refused() -> io::Result<()> {
    let files = Files::from([("core-1.img".to_owned(), b"new".to_vec())]);
    let shards = image_of(&files, 1)?;
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).external("../core-1.img");
    extract_on(launch, &shards)?.expect_failure(&["../core-1.img", "name"])
}
