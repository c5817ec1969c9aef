//! `vramstream bench`, the whole program: every sink both ways, what it says, and what it leaves
//! behind when something fails.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use vramstream_tests::streamer::Program;

/// Nothing here may hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run that takes next to no time.
fn run(words: &[&str]) -> io::Result<Output> {
    let program = Program::under_test()?;
    let small = ["-q", "bench", "run", "--runs", "1", "--vram", "3M", "--ring", "256K"];
    program.command().args(small).args(words).output()
}

fn report(words: &[&str]) -> io::Result<Value> {
    let program = Program::under_test()?;
    let small = ["--json", "bench", "run", "--runs", "2", "--vram", "3M", "--ring", "256K"];
    let output = program.command().args(small).args(words).output()?;
    assert!(output.status.success(), "{words:?}: {output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What it said when it failed, which it did with this status.
fn refusal(output: &Output, status: i32) -> String {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn file_sink(dir: &Path) -> String {
    format!("file:{}", dir.display())
}

#[test]
fn every_sink_works_both_ways_and_leaves_nothing() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    for sink in ["null", "pipe", "tcp", &file_sink(dir.path())] {
        for direction in ["dump", "restore", "both"] {
            if (sink, direction) == ("null", "both") {
                continue;
            }
            let words = ["--sink", sink, "--direction", direction, "--gpus", "2"];
            let output = run(&words)?;
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{words:?}: {output:?}");
            assert!(said.contains("GB/s") && said.contains("bound"), "{said}");
            assert_eq!(fs::read_dir(dir.path())?.count(), 0, "{words:?}");
        }
    }
    Ok(())
}

#[test]
fn all_contents_compressions_and_bos_go_through() -> io::Result<()> {
    for contents in ["random", "bf16", "zeros", "half-zeros"] {
        for (compress, bos) in [("none", "mixed"), ("lz4", "4K"), ("auto", "1M")] {
            let words = ["--contents", contents, "--compress", compress, "--bos", bos];
            let words = [&words[..], &["--sink", "pipe", "--direction", "both"]].concat();
            let output = run(&words)?;
            assert!(output.status.success(), "{words:?}: {output:?}");
        }
    }
    Ok(())
}

#[test]
fn json_has_the_figures() -> io::Result<()> {
    let json = report(&["--gpus", "3", "--sink", "pipe"])?;
    let number = |name: &str| json[name].as_f64().unwrap_or(f64::NAN);
    assert_eq!(json["bytes"], 3 * (3 << 20));
    assert_eq!((number("gpus"), number("ring_bytes")), (3.0, f64::from(256 << 10)));
    assert!(number("rate") > 0.0 && (number("rate") / number("rate_per_gpu") - 3.0).abs() < 1e-6);
    assert!(number("cpu_per_gb") > 0.0 && number("peak_bytes") > 0.0);
    let parts: Vec<_> = json["bound"]["parts"].as_array().into_iter().flatten().collect();
    let names: Vec<_> = parts.iter().filter_map(|part| part["name"].as_str()).collect();
    assert_eq!(names, ["checksums", "copies out", "sink"]);
    let share = number("rate") / json["bound"]["rate"].as_f64().unwrap_or(f64::NAN);
    assert!((number("share") - share).abs() < 1e-6);
    let runs: Vec<_> = json["runs"].as_array().into_iter().flatten().collect();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!(run["bytes"], json["bytes"]);
        assert_eq!(run["gpus"].as_array().map(Vec::len), Some(3));
        // Random bytes are stored as they are, with a little around them.
        assert!(run["stored_bytes"].as_u64() > run["bytes"].as_u64());
    }
    Ok(())
}

#[test]
fn a_slow_sink_is_the_bound() -> io::Result<()> {
    let json = report(&["--sink-rate", "10M"])?;
    assert_eq!(json["bound"]["by"], "sink");
    let rate = json["rate"].as_f64().unwrap_or(f64::NAN);
    // It never takes more; how much less depends on what else this machine does.
    assert!(rate <= f64::from(10 << 20) * 1.01, "{rate}");
    Ok(())
}

#[test]
fn a_sweep_is_a_table_and_a_drawing() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let plot = dir.path().join("plot.svg");
    let words = ["-q", "bench", "sweep", "--over", "gpus", "--runs", "1", "--vram", "1M"];
    let output = Program::under_test()?.command().args(words).arg("--plot").arg(&plot).output()?;
    assert!(output.status.success(), "{output:?}");
    let table = String::from_utf8_lossy(&output.stdout);
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let firsts: Vec<_> = table.lines().filter_map(first).collect();
    assert_eq!(firsts, ["GPUs", "1", "2", "4", "8"], "{table}");
    let svg = fs::read_to_string(plot)?;
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("each GPU") && svg.matches("<polyline").count() >= 3);
    Ok(())
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_done() -> io::Result<()> {
    for (words, named) in [
        (&["--gpus", "0"][..], "--gpus"),
        (&["--gpus", "65"], "--gpus"),
        (&["--vram", "5000"], "--vram"),
        (&["--vram", "much"], "--vram"),
        (&["--bos", "6000"], "--bos"),
        (&["--contents", "noise"], "--contents"),
        (&["--profile", "gfx1"], "--profile"),
        (&["--sink", "file:"], "--sink"),
        (&["--sink-rate", "0"], "--sink-rate"),
        (&["--ring", "4K"], "--ring"),
        (&["--direction", "both"], "--sink null"),
    ] {
        let said = refusal(&run(words)?, 2);
        assert!(said.contains(named), "{words:?}: {said}");
    }
    let said = refusal(&run(&["--to", "file:/tmp/x"])?, 1);
    assert!(said.contains("--to means nothing to bench"), "{said}");
    Ok(())
}

#[test]
fn more_memory_than_there_is_is_refused() -> io::Result<()> {
    let said = refusal(&run(&["--gpus", "64", "--vram", "1024G"])?, 1);
    assert!(said.contains("--vram"), "{said}");
    Ok(())
}

#[test]
fn a_directory_that_cannot_be_used_is_named() -> io::Result<()> {
    // Nobody may make a directory there, root included.
    for dir in ["/sys", "/nowhere/at/all"] {
        let said = refusal(&run(&["--sink", &format!("file:{dir}")])?, 1);
        assert!(said.contains(dir), "{said}");
    }
    Ok(())
}

#[test]
fn a_full_disk_is_named() -> io::Result<()> {
    let disk = tempfile::tempdir()?;
    let at = disk.path().display();
    let mount = format!("mount -t tmpfs -o size=1m none {at} && exec \"$0\" \"$@\"");
    let program = Program::under_test()?.through(&[
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-ec",
        &mount,
    ]);
    let words = ["-q", "bench", "run", "--runs", "1", "--vram", "3M", "--sink"];
    let output = program.command().args(words).arg(file_sink(disk.path())).output()?;
    let said = refusal(&output, 1);
    assert!(said.contains(&at.to_string()) && said.contains("free some space"), "{said}");
    Ok(())
}

#[test]
fn a_program_that_is_killed_publishes_nothing() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let words = ["-q", "bench", "run", "--vram", "16M", "--sink-rate", "1M", "--sink"];
    let program = Program::under_test()?;
    let mut running =
        program.command().args(words).arg(file_sink(dir.path())).stderr(Stdio::null()).spawn()?;
    let deadline = Instant::now() + PATIENCE;
    let image = loop {
        if let Some(image) = image_begun(dir.path())? {
            break image;
        }
        assert!(Instant::now() < deadline && running.try_wait()?.is_none());
        std::thread::sleep(Duration::from_millis(5));
    };
    running.kill()?;
    running.wait()?;
    let verify = program.command().arg("verify").arg(&image).output()?;
    let said = refusal(&verify, 1);
    assert!(said.contains("has not completed"), "{said}");
    Ok(())
}

/// The directory of an image that has a file.
fn image_begun(dir: &Path) -> io::Result<Option<PathBuf>> {
    for scratch in fs::read_dir(dir)? {
        let image = scratch?.path().join("image");
        if image.is_dir() && fs::read_dir(&image)?.next().is_some() {
            return Ok(Some(image));
        }
    }
    Ok(None)
}
