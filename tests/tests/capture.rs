//! `capture` as a whole program, with a fake CRIU.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::symlink,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use vramstream_tests::{
    fake_criu::{CaptureClient, ImageWriter, Pages},
    images::{inventory, random_bytes},
    rounds::{Files, capture, capture_on, dump, files_of, plausible_files, start_capture},
    shards::{Worker, collect, collect_slowly},
    streamer::{Launch, Operation, Program, formats},
};

/// Captures, insists that it went well, and extracts. Without the inventory.
fn round(
    words: &[&str],
    shards: usize,
    work: impl FnOnce(&CaptureClient) -> io::Result<()>,
) -> io::Result<Files> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).shards(shards).args(words);
    let captured = capture_on(launch, |criu| {
        work(&criu)?;
        criu.finish()
    })?;
    captured.outcome.expect_success()?;
    let mut files = files_of(&captured.shards)?;
    assert_eq!(files.remove("inventory.img"), Some(inventory()));
    Ok(files)
}

/// The same in every format. The result is that of the last one; all must agree.
fn rounds(work: impl Fn(&CaptureClient) -> io::Result<()>) -> io::Result<Files> {
    let mut all = Vec::new();
    for &words in formats() {
        all.push(round(words, 1, &work)?);
    }
    assert!(all.windows(2).all(|two| two[0] == two[1]), "the formats differ");
    all.pop().ok_or_else(|| io::Error::other("no format"))
}

/// The same for an image `ghost.img` that is written twice. The native format must keep the last
/// one. A stream of the other format has no place for two: it must keep the last one as well, or
/// the capture must fail then and there, with the name.
fn rounds_of_ghost(
    work: impl Fn(&CaptureClient) -> io::Result<()>,
    right: impl Fn(&Files) -> bool,
) -> io::Result<()> {
    for &words in formats() {
        let dir = tempfile::tempdir()?;
        let launch = Launch::new(&Program::under_test()?, dir.path()).args(words);
        let mut seen = Ok(());
        let captured = capture_on(launch, |criu| {
            // Where the capture fails, CRIU may be told at any time.
            seen = work(&criu).and_then(|()| criu.finish());
            Ok(())
        })?;
        if !captured.outcome.success() && words.contains(&"criu-image-streamer") {
            captured.outcome.expect_failure(&["ghost.img"])?;
            continue;
        }
        captured.outcome.expect_success()?;
        seen?;
        assert!(right(&files_of(&captured.shards)?), "{words:?}");
    }
    Ok(())
}

fn one(name: &str, content: &[u8]) -> Files {
    Files::from([(name.to_owned(), content.to_vec())])
}

fn raise_descriptor_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard.min(16_384), hard)?)
}

#[test]
fn a_plausible_dump_arrives_whole() -> io::Result<()> {
    for &words in formats() {
        for shards in [1, 4, 8] {
            let dir = tempfile::tempdir()?;
            let files = plausible_files(32 << 20);
            let launch =
                Launch::new(&Program::under_test()?, dir.path()).shards(shards).args(words);
            let captured = capture_on(launch, |criu| dump(criu, &files))?;
            captured.outcome.expect_success()?;
            let mut back = files_of(&captured.shards)?;
            back.remove("inventory.img");
            assert!(back == files, "{words:?}, {shards} shards: the files differ");
        }
    }
    Ok(())
}

#[test]
fn three_thousand_images_open_at_once() -> io::Result<()> {
    raise_descriptor_limit()?;
    let script = "ulimit -S -n 1024; exec \"$0\" \"$@\"";
    let program = Program::under_test()?.through(&["sh", "-c", script]);
    let dir = tempfile::tempdir()?;
    let captured = capture_on(Launch::new(&program, dir.path()), |criu| {
        let mut open = Vec::new();
        for number in 0..3000 {
            open.push((number, criu.open(format!("image-{number}.img"))?));
        }
        for (number, image) in open.iter_mut().rev() {
            image.write_all(&random_bytes(*number, 100))?;
        }
        for (number, image) in &mut open {
            image.write_all(&random_bytes(*number + 1, 50))?;
        }
        drop(open);
        criu.finish()
    })?;
    captured.outcome.expect_success()?;
    let files = files_of(&captured.shards)?;
    assert_eq!(files.len(), 3001);
    for number in 0..3000 {
        let expected = [random_bytes(number, 100), random_bytes(number + 1, 50)].concat();
        assert_eq!(files.get(&format!("image-{number}.img")), Some(&expected));
    }
    Ok(())
}

#[test]
fn interleaved_writes_of_many_sizes_keep_apart() -> io::Result<()> {
    let sizes = [1_usize, 4095, 4096, 4097, 65_537, 1 << 20, (1 << 20) + 1, 5 << 20];
    let content = |index: usize| random_bytes(index as u64, sizes[index]);
    let files = rounds(|criu| {
        let mut open = Vec::new();
        for (index, _) in sizes.iter().enumerate() {
            open.push((criu.open(format!("{index}.img"))?, content(index), 0));
        }
        let dice = random_bytes(99, 4096);
        for &die in dice.iter().cycle() {
            let unfinished: Vec<_> =
                open.iter_mut().filter(|(_, bytes, done)| *done < bytes.len()).collect();
            let count = unfinished.len();
            let Some((image, bytes, done)) =
                unfinished.into_iter().nth(usize::from(die) % count.max(1))
            else {
                return Ok(());
            };
            let end = bytes.len().min(*done + 1 + usize::from(die) * 700);
            image.write_all(&bytes[*done..end])?;
            *done = end;
        }
        Ok(())
    })?;
    for (index, _) in sizes.iter().enumerate() {
        assert!(files[&format!("{index}.img")] == content(index), "image {index} differs");
    }
    Ok(())
}

#[test]
fn pages_by_reference_arrive() -> io::Result<()> {
    let bytes = random_bytes(3, 9 << 20);
    let pages = Pages::new(&bytes)?;
    let files = rounds(|criu| {
        let image = criu.open("pages-1.img")?.with_pieces_of(300_001);
        image.send_pages(&pages, 20 << 20)
    })?;
    let expected: Vec<u8> = bytes.iter().copied().cycle().take(20 << 20).collect();
    assert!(files["pages-1.img"] == expected);
    Ok(())
}

#[test]
fn small_pipes_do() -> io::Result<()> {
    let content = random_bytes(4, 1 << 20);
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).shard_pipe_size(4096);
    let captured = capture_on(launch, |criu| {
        let mut image = criu.open("pages-1.img")?;
        // The streamer may have made it larger already, and filled pipes cannot be made smaller.
        let _ = image.set_size(4096);
        image.write_all(&content)?;
        drop(image);
        criu.finish()
    })?;
    captured.outcome.expect_success()?;
    assert!(files_of(&captured.shards)?["pages-1.img"] == content);
    Ok(())
}

#[test]
fn an_image_of_no_bytes_is_an_image() -> io::Result<()> {
    assert_eq!(rounds(|criu| criu.send("empty.img", &[]))?, one("empty.img", &[]));
    Ok(())
}

#[test]
fn of_an_image_written_twice_the_last_counts() -> io::Result<()> {
    let (large, small) = (random_bytes(1, 1 << 20), random_bytes(2, 10));
    for (first, second) in [(&large, &small), (&small, &large)] {
        let right = |files: &Files| files.get("ghost.img") == Some(second);
        let back_to_back = |criu: &CaptureClient| {
            criu.send("ghost.img", first)?;
            criu.send("ghost.img", second)
        };
        rounds_of_ghost(back_to_back, right)?;
        let with_one_between = |criu: &CaptureClient| {
            criu.send("ghost.img", first)?;
            criu.send("other.img", &[7])?;
            criu.send("ghost.img", second)
        };
        rounds_of_ghost(with_one_between, |files| right(files) && files["other.img"] == [7])?;
    }
    Ok(())
}

#[test]
fn of_an_image_open_twice_the_last_to_end_counts() -> io::Result<()> {
    let (large, small) = (random_bytes(1, 1 << 20), random_bytes(2, 10));
    let finish = |mut image: ImageWriter, content: &[u8]| -> io::Result<()> {
        image.write_all(content)?;
        drop(image);
        // So that the two ends are seen in their order.
        sleep(Duration::from_millis(300));
        Ok(())
    };
    for (first, second) in [(&large, &small), (&small, &large)] {
        for in_order in [true, false] {
            let open_at_once = |criu: &CaptureClient| {
                let (one, two) = (criu.open("ghost.img")?, criu.open("ghost.img")?);
                let (one, two) = if in_order { (one, two) } else { (two, one) };
                finish(one, first)?;
                finish(two, second)
            };
            rounds_of_ghost(open_at_once, |files| files.get("ghost.img") == Some(second))?;
        }
    }
    Ok(())
}

#[test]
fn a_pipe_that_stays_open_is_not_waited_for() -> io::Result<()> {
    for with_inventory in [false, true] {
        let dir = tempfile::tempdir()?;
        let launch = Launch::new(&Program::under_test()?, dir.path());
        let (mut running, collectors, dir) = start_capture(launch)?;
        let criu = CaptureClient::connect(&dir)?;
        let mut image = criu.open("pages-1.img")?;
        image.write_all(&random_bytes(1, 100_000))?;
        let elsewhere = image.duplicate()?;
        drop(image);
        if with_inventory {
            criu.finish()?;
        } else {
            criu.die();
        }
        let begin = Instant::now();
        let outcome = running.wait_within(Duration::from_secs(10))?;
        outcome.expect_failure(&["pages-1.img", "inventory"])?;
        assert!(begin.elapsed() < Duration::from_secs(10));
        drop(elsewhere);
        for collector in collectors {
            collector.join()?;
        }
    }
    Ok(())
}

#[test]
fn external_files_come_along() -> io::Result<()> {
    let content = random_bytes(8, 3 << 20);
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path())
        .external("fs.tar")
        .external("meta.json")
        .shards(2);
    let mut running = launch.start(Operation::Capture)?;
    let collectors: Vec<_> = running.shards.drain(..).map(collect).collect();
    let mut external = running.external.drain(..);
    let (Some(tar), Some(meta)) = (external.next(), external.next()) else {
        return Err(io::Error::other("two external files"));
    };
    let tar = vramstream_tests::shards::feed(tar, content.clone());
    let meta = vramstream_tests::shards::feed(meta, b"{}".to_vec());
    drop(external);
    let criu = CaptureClient::connect(dir.path())?;
    criu.send("core-1.img", &[1, 2, 3])?;
    tar.join()?;
    meta.join()?;
    criu.finish()?;
    running.wait()?.expect_success()?;
    let shards = collectors.into_iter().map(Worker::join).collect::<io::Result<Vec<_>>>()?;
    let files = files_of(&shards)?;
    assert!(files["fs.tar"] == content);
    assert_eq!(files["meta.json"], b"{}");
    assert_eq!(files["core-1.img"], [1, 2, 3]);

    // And back: the one that is asked for goes to its descriptor and not into the directory.
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).external("fs.tar").shards(2);
    let mut running = launch.start(Operation::Extract)?;
    let feeders = vramstream_tests::shards::feed_all(std::mem::take(&mut running.shards), &shards);
    let external = running.external.pop().map(collect);
    running.wait()?.expect_success()?;
    for feeder in feeders {
        feeder.join()?;
    }
    let external = external.map(Worker::join).transpose()?;
    assert!(external == Some(content));
    assert!(!dir.path().join("fs.tar").exists());
    assert!(dir.path().join("meta.json").exists());
    Ok(())
}

#[test]
fn standard_output_is_the_shard_if_none_is_named() -> io::Result<()> {
    for progress_on_stderr in [false, true] {
        let dir = tempfile::tempdir()?;
        let launch = Launch::new(&Program::under_test()?, dir.path()).standard_shard();
        let launch = if progress_on_stderr { launch.progress_on_stderr() } else { launch };
        let captured = capture_on(launch, |criu| {
            criu.send("core-1.img", &[1, 2, 3])?;
            criu.finish()
        })?;
        captured.outcome.expect_success()?;
        assert_eq!(files_of(&captured.shards)?["core-1.img"], [1, 2, 3]);
    }
    Ok(())
}

#[test]
fn a_slow_shard_gets_less() -> io::Result<()> {
    let pages = Pages::random(5, 16 << 20)?;
    for &words in formats() {
        for count in [2, 4, 8] {
            let dir = tempfile::tempdir()?;
            let launch = Launch::new(&Program::under_test()?, dir.path()).shards(count).args(words);
            let mut running = launch.start(Operation::Capture)?;
            let mut shards = std::mem::take(&mut running.shards).into_iter();
            let slow = shards.next().map(|shard| collect_slowly(shard, 8 << 10));
            let fast: Vec<_> = shards.map(collect).collect();
            let criu = CaptureClient::connect(dir.path())?;
            criu.open("pages-1.img")?.send_pages(&pages, 64 << 20)?;
            criu.finish()?;
            running.wait()?.expect_success()?;
            let slow = slow.map(Worker::join).transpose()?.unwrap_or_default();
            let mut all = vec![slow];
            for shard in fast {
                all.push(shard.join()?);
            }
            let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
            let fair = lengths.iter().sum::<usize>() / count;
            assert!(lengths[0] < fair / 2, "{words:?}: the first is slow: {lengths:?}");
            assert!(files_of(&all)?.contains_key("pages-1.img"));
        }
    }
    Ok(())
}

#[test]
fn progress_is_told_in_order() -> io::Result<()> {
    for &words in formats() {
        let dir = tempfile::tempdir()?;
        let launch = Launch::new(&Program::under_test()?, dir.path()).shards(3).args(words);
        let mut running = launch.start(Operation::Capture)?;
        let collectors: Vec<_> = running.shards.drain(..).map(collect).collect();
        assert_eq!(running.line()?.as_deref(), Some("socket-init"));
        let criu = CaptureClient::connect(dir.path())?;
        criu.send("cpuinfo.img", &[0; 64])?;
        // Looking at the CPU is not yet a checkpoint.
        let early = running.line_at(Duration::from_millis(300));
        assert!(early.is_err(), "too early: {early:?}");
        criu.send("core-1.img", &random_bytes(1, 500_000))?;
        assert_eq!(running.line()?.as_deref(), Some("checkpoint-start"));
        criu.send("core-2.img", &[0; 64])?;
        criu.finish()?;
        let stats = running.line()?.unwrap_or_default();
        assert_eq!(running.line()?, None);
        running.wait()?.expect_success()?;
        let stats: serde_json::Value = serde_json::from_str(&stats)?;
        let mut sizes = Vec::new();
        for collector in collectors {
            sizes.push(collector.join()?.len() as u64);
        }
        let told: Vec<u64> = (0..3).filter_map(|n| stats["shards"][n]["size"].as_u64()).collect();
        assert_eq!(told, sizes, "{stats}");
        for number in 0..3 {
            assert!(stats["shards"][number]["transfer_duration_millis"].is_u64(), "{stats}");
        }
    }
    Ok(())
}

#[test]
fn options_may_stand_on_either_side() -> io::Result<()> {
    for after in [false, true] {
        let dir = tempfile::tempdir()?;
        let launch = Launch::new(&Program::under_test()?, &dir.path().join("new"));
        // A descriptor that is not open: the complaint must be about that.
        let words = ["--ext-file-fds", "x:999"];
        let launch = if after { launch.args_after(&words) } else { launch.args(&words) };
        launch.start(Operation::Capture)?.wait()?.expect_failure(&["999"])?;
    }
    Ok(())
}

#[test]
fn the_images_directory_may_be_named_after_the_subcommand() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let output = Command::new(Program::under_test()?.path())
        .args(["extract", "--images-dir"])
        .arg(dir.path().join("new"))
        .stdin(fs::File::open("/dev/null")?)
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("unexpected argument") && !text.contains("USAGE"), "{text}");
    assert!(!output.status.success(), "nothing is not an image");
    Ok(())
}

#[test]
fn it_has_a_version() -> io::Result<()> {
    let output = Command::new(Program::under_test()?.path()).arg("--version").output()?;
    assert!(output.status.success());
    assert!(!output.stdout.is_empty());
    Ok(())
}

#[test]
fn it_works_under_the_name_of_the_original() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let link = dir.path().join("criu-image-streamer");
    symlink(fs::canonicalize(Program::under_test()?.path())?, &link)?;
    let images = dir.path().join("images");
    let captured = capture_on(Launch::new(&Program::at(&link), &images), |criu| {
        criu.send("core-1.img", &[1, 2, 3])?;
        criu.finish()
    })?;
    captured.outcome.expect_success()?;
    assert_eq!(files_of(&captured.shards)?["core-1.img"], [1, 2, 3]);
    let output = Command::new(&link).arg("--version").output()?;
    assert!(output.status.success());
    Ok(())
}

#[test]
fn names_that_are_no_file_names_are_refused() -> io::Result<()> {
    let long = vec![b'a'; 300];
    let names: [&[u8]; 9] =
        [b"../x", b"/tmp/x", b"a/b", b"", b".", b"..", b"a\0b", b"\xff\xfe", &long];
    for name in names {
        let dir = tempfile::tempdir()?;
        let captured = capture(dir.path(), |criu| {
            // The streamer may hang up at any of these.
            let _ = criu.open(name).and_then(|mut image| image.write_all(&[1]));
            let _ = criu.finish();
            Ok(())
        })?;
        // What is not text cannot be shown, and need not be called a name.
        let words: &[&str] = if name.is_ascii() { &["name"] } else { &[] };
        captured.outcome.expect_failure(words)?;
    }
    Ok(())
}
