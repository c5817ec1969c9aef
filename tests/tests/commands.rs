//! The commands as a person runs them, each with its way in and its way out.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

use vramstream_tests::{
    fake_criu::{CaptureClient, ServeClient},
    images::inventory,
    rounds::{Files, dump, expect_served, files_in, image_of, plausible_files, start_capture},
    streamer::{Launch, Operation, Program},
};

/// A plausible dump with what the fake CRIU adds to it.
fn files_with_inventory() -> Files {
    let mut files = plausible_files(12 << 20);
    files.insert("inventory.img".into(), inventory());
    files
}

/// Captures a plausible dump into files below `dir`, and gives the address of the image.
fn image_in_files(dir: &Path, words: &[&str]) -> io::Result<String> {
    let (image, sockets) = (dir.join("image"), tempfile::tempdir()?);
    let address = format!("file:{}", image.display());
    let launch = Launch::new(&Program::under_test()?, sockets.path()).no_shards();
    let (mut running, ..) = start_capture(launch.args(&["--to", &address]).args(words))?;
    dump(CaptureClient::connect(sockets.path())?, &plausible_files(12 << 20))?;
    running.wait()?.expect_success()?;
    Ok(address)
}

fn run(words: &[&str]) -> io::Result<Output> {
    Program::under_test()?.command().args(words).output()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn files_hold_an_image_in_every_codec() -> io::Result<()> {
    for codec in ["none", "lz4", "auto"] {
        let dir = tempfile::tempdir()?;
        let words = ["--shards", "3", "--compress", codec];
        let image = image_in_files(dir.path(), &words)?;
        assert_eq!(fs::read_dir(dir.path().join("image"))?.count(), 3, "{codec}");

        let out = dir.path().join("out");
        let out = out.to_string_lossy();
        stdout(&run(&["-D", &out, "--from", &image, "extract"])?);
        assert!(files_in(Path::new(&*out))? == files_with_inventory(), "{codec}: extract");

        let sockets = tempfile::tempdir()?;
        let launch = Launch::new(&Program::under_test()?, sockets.path()).no_shards();
        let mut running = launch.args(&["--from", &image]).start(Operation::Serve)?;
        running.wait_for("socket-init")?;
        let criu = ServeClient::connect(sockets.path())?;
        expect_served(&criu, &files_with_inventory())?;
        drop(criu);
        running.wait()?.expect_success()?;
    }
    Ok(())
}

#[test]
fn what_compresses_is_stored_small_and_comes_back_whole() -> io::Result<()> {
    // Larger than what serve checks whole before it gives the first byte; every word is its own.
    let words = (0..5_000_000_u32).flat_map(|n| (n / 7).to_le_bytes());
    let mut files = Files::from([("pages-1.img".to_owned(), words.collect())]);
    let raw: usize = files.values().map(Vec::len).sum();
    for codec in ["lz4", "auto"] {
        let (dir, sockets) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let image = dir.path().join("image");
        let address = format!("file:{}", image.display());
        let launch = Launch::new(&Program::under_test()?, sockets.path()).no_shards();
        let launch = launch.args(&["--to", &address, "--compress", codec]);
        let (mut running, ..) = start_capture(launch)?;
        let criu = CaptureClient::connect(sockets.path())?;
        criu.send("pages-1.img", &files["pages-1.img"])?;
        criu.finish()?;
        running.wait()?.expect_success()?;
        let mut stored = 0;
        for shard in fs::read_dir(&image)? {
            stored += shard?.metadata()?.len();
        }
        assert!(stored < raw as u64 * 3 / 4, "{codec}: {raw} bytes took {stored}");
        files.insert("inventory.img".into(), inventory());

        let out = dir.path().join("out");
        stdout(&run(&["-D", &out.to_string_lossy(), "--from", &address, "extract"])?);
        assert!(files_in(&out)? == files, "{codec}: extract");
        let launch = Launch::new(&Program::under_test()?, sockets.path()).no_shards();
        let mut running = launch.args(&["--from", &address]).start(Operation::Serve)?;
        running.wait_for("socket-init")?;
        let criu = ServeClient::connect(sockets.path())?;
        expect_served(&criu, &files)?;
        drop(criu);
        running.wait()?.expect_success()?;

        // The same from a stream, where it is kept compressed until CRIU asks.
        let launch = Launch::new(&Program::under_test()?, sockets.path());
        let (mut running, collectors, _) = start_capture(launch.args(&["--compress", codec]))?;
        let criu = CaptureClient::connect(sockets.path())?;
        criu.send("pages-1.img", &files["pages-1.img"])?;
        criu.finish()?;
        running.wait()?.expect_success()?;
        let shards: Vec<Vec<u8>> = collectors
            .into_iter()
            .map(vramstream_tests::shards::Worker::join)
            .collect::<io::Result<_>>()?;
        let (mut running, _feeders) = vramstream_tests::rounds::serve(sockets.path(), &shards)?;
        running.wait_for("socket-init")?;
        let criu = ServeClient::connect(sockets.path())?;
        assert!(criu.read("pages-1.img")?.as_ref() == files.get("pages-1.img"), "{codec}: stream");
        drop(criu);
        running.wait()?.expect_success()?;
    }
    Ok(())
}

#[test]
fn an_image_is_looked_at_without_root_or_criu() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    image_in_files(dir.path(), &["--compress", "lz4"])?;
    let image = dir.path().join("image");
    let image = image.to_string_lossy();
    let whole = files_with_inventory();
    let bytes: usize = whole.values().map(Vec::len).sum();

    assert!(stdout(&run(&["verify", &image])?).contains("complete and intact"));
    let verified: serde_json::Value =
        serde_json::from_str(&stdout(&run(&["verify", "--json", &image])?))?;
    assert_eq!(verified["raw_bytes"], bytes);

    let table = stdout(&run(&["inspect", &image])?);
    assert!(table.contains("pages-1.img") && table.contains("vramstream"), "{table}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&run(&["inspect", "--json", &image])?))?;
    assert_eq!(json["files"].as_array().map(Vec::len), Some(whole.len()), "{json}");

    // The same from a stream: what the index says is what the frames say.
    let shards = image_of(&plausible_files(1 << 20), 1)?;
    let stream = dir.path().join("stream.vst");
    fs::write(&stream, &shards[0])?;
    let piped = Program::under_test()?
        .command()
        .args(["inspect", "--json"])
        .stdin(
            Command::new("cat")
                .arg(&stream)
                .stdout(std::process::Stdio::piped())
                .spawn()?
                .stdout
                .ok_or(io::ErrorKind::BrokenPipe)?,
        )
        .output()?;
    let piped: serde_json::Value = serde_json::from_str(&stdout(&piped))?;
    let indexed: serde_json::Value =
        serde_json::from_str(&stdout(&run(&["inspect", "--json", &stream.to_string_lossy()])?))?;
    assert_eq!(piped["files"], indexed["files"]);
    Ok(())
}

#[test]
fn a_damaged_image_is_not_verified() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    image_in_files(dir.path(), &["--shards", "1"])?;
    let shard = dir.path().join("image/shard-0000-of-0001.vst");
    let good = fs::read(&shard)?;
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 0x10;
    fs::write(&shard, &bad)?;
    let image = dir.path().join("image");
    let output = run(&["verify", &image.to_string_lossy()])?;
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("damaged"), "{output:?}");
    Ok(())
}

#[test]
fn what_is_received_is_served_or_extracted() -> io::Result<()> {
    for extract in [false, true] {
        let (source, target) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let launch = Launch::new(&Program::under_test()?, target.path()).no_shards();
        let words: &[&str] = if extract {
            &["--listen", "127.0.0.1:0", "--extract"]
        } else {
            &["--listen", "127.0.0.1:0"]
        };
        let mut receive = launch.args_after(words).start(Operation::Receive)?;
        let line = receive.line()?.unwrap_or_default();
        let address =
            line.strip_prefix("listening ").ok_or_else(|| io::Error::other(line.clone()))?;

        let launch = Launch::new(&Program::under_test()?, source.path()).no_shards();
        let to = format!("tcp://{address}");
        let (mut capture, ..) = start_capture(launch.args(&["--to", &to, "--connections", "3"]))?;
        dump(CaptureClient::connect(source.path())?, &plausible_files(12 << 20))?;
        capture.wait()?.expect_success()?;
        if extract {
            receive.wait()?.expect_success()?;
            assert!(files_in(target.path())? == files_with_inventory());
        } else {
            receive.wait_for("socket-init")?;
            let criu = ServeClient::connect(target.path())?;
            expect_served(&criu, &files_with_inventory())?;
            drop(criu);
            receive.wait()?.expect_success()?;
        }
    }
    Ok(())
}

#[test]
fn options_that_mean_nothing_are_refused() -> io::Result<()> {
    for words in [
        &["serve", "--to", "file:/x"][..],
        &["capture", "--from", "file:/x"],
        &["receive", "--listen", "127.0.0.1:0", "--from", "file:/x"],
        &["extract", "--tcp-listen-remap", "80:81"],
    ] {
        let output = run(&[&["-D", "/nowhere"], words].concat())?;
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("means nothing"), "{output:?}");
    }
    Ok(())
}

#[test]
fn events_are_json_for_those_who_ask() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).args(&["--json"]);
    let (mut running, ..) = start_capture(launch)?;
    dump(CaptureClient::connect(dir.path())?, &plausible_files(1 << 20))?;
    let outcome = running.wait()?;
    outcome.expect_success()?;
    let events: Vec<serde_json::Value> =
        outcome.stderr.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let summary = events.last().ok_or(io::ErrorKind::NotFound)?;
    assert_eq!(summary["event"], "summary", "{summary}");
    for figure in ["files", "raw_bytes", "stored_bytes", "gb_per_second", "cpu_seconds"] {
        assert!(summary[figure].as_f64().is_some_and(|n| n > 0.0), "{figure}: {summary}");
    }
    assert!(events.iter().any(|event| event["name"] == "pages-1.img"));

    let launch = Launch::new(&Program::under_test()?, dir.path()).args(&["--json"]);
    let (mut running, ..) = start_capture(launch)?;
    CaptureClient::connect(dir.path())?.die();
    let outcome = running.wait()?;
    assert!(!outcome.success());
    assert!(outcome.stderr.contains(r#""event":"error""#), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn nobody_listens() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let launch = Launch::new(&Program::under_test()?, dir.path()).no_shards();
    let to = format!("tcp://127.0.0.1:{port}");
    let mut capture = launch.args(&["--to", &to]).start(Operation::Capture)?;
    capture.wait()?.expect_failure(&[&format!("127.0.0.1:{port}")])
}

/// Runs the gate as CRIU does: by its own name, without arguments, with CRIU's environment.
fn gate(dir: &Path, stage: &str) -> io::Result<std::process::Child> {
    let link = dir.join("vramstream-commit-gate");
    if !link.exists() {
        symlink(Program::under_test()?.path(), &link)?;
    }
    Command::new(&link)
        .env("CRTOOLS_SCRIPT_ACTION", stage)
        .env("CRTOOLS_IMAGE_DIR", dir)
        .stderr(std::process::Stdio::piped())
        .spawn()
}

#[test]
fn the_gate_waits_for_the_commit() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).shards(1);
    let mut capture = launch.start(Operation::Capture)?;
    let shard = capture.shards.remove(0);
    capture.wait_for("socket-init")?;
    assert!(gate(dir.path(), "pre-dump")?.wait()?.success(), "not its stage");

    let criu = CaptureClient::connect(dir.path())?;
    criu.send("core-1.img", &[7; 5000])?;
    // As if somebody ran it by hand: too early is not wrong.
    let mut gate = gate(dir.path(), "post-dump")?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    // CRIU keeps its connection open while its script runs.
    criu.send("inventory.img", &inventory())?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(gate.try_wait()?.is_none(), "nobody has read the shard yet");
    let collected = vramstream_tests::shards::collect(shard);
    assert!(gate.wait()?.success());
    drop(criu);
    capture.wait()?.expect_success()?;
    assert!(!collected.join()?.is_empty());
    Ok(())
}

#[test]
fn the_gate_stays_shut() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let refused = gate(dir.path(), "post-dump")?.wait_with_output()?;
    assert_eq!(refused.status.code(), Some(1), "no capture: {refused:?}");

    let launch = Launch::new(&Program::under_test()?, dir.path()).shards(1);
    let mut capture = launch.start(Operation::Capture)?;
    let shard = capture.shards.remove(0);
    capture.wait_for("socket-init")?;
    let criu = CaptureClient::connect(dir.path())?;
    criu.send("core-1.img", &[7; 5000])?;
    criu.send("inventory.img", &inventory())?;
    let gate = gate(dir.path(), "post-dump")?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    // The consumer dies with all of it in its pipe.
    drop(shard);
    let refused = gate.wait_with_output()?;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("pipe"), "{refused:?}");
    capture.wait()?.expect_failure(&["pipe"])
}

#[test]
fn the_directory_is_clean_afterwards() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut running, _collectors, _) =
        start_capture(Launch::new(&Program::under_test()?, dir.path()))?;
    CaptureClient::connect(dir.path())?.finish()?;
    running.wait()?.expect_success()?;
    assert_eq!(fs::read_dir(dir.path())?.count(), 0);
    Ok(())
}
