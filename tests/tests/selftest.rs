//! `vramstream selftest`, the whole program: it needs no root, and what it prints is true.

use std::{io, process::Output};

use vramstream_tests::streamer::Program;

fn selftest(words: &[&str], environment: &[(&str, &str)]) -> io::Result<Output> {
    // Nobody needs to be root for it. And a hang is a failure that says so.
    let program = Program::under_test()?.as_nobody().through(&["timeout", "120"]);
    program.command().arg("selftest").args(words).envs(environment.iter().copied()).output()
}

#[test]
fn it_moves_a_process_and_says_what_it_saw() -> io::Result<()> {
    let output = selftest(&["--json"], &[])?;
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(report["gpus"], 2);
    let number = |name: &str| report[name].as_u64().unwrap_or_default();
    assert!(number("bytes") > 300 << 20, "{report}");
    // Zeros are not sent.
    assert!(number("sent_bytes") < number("bytes") * 2 / 3, "{report}");
    Ok(())
}

#[test]
fn it_keeps_to_the_limit_on_buffers() -> io::Result<()> {
    let output = selftest(&[], &[("KFD_MAX_BUFFER_SIZE", "64K")])?;
    assert!(output.status.success(), "{output:?}");
    Ok(())
}

#[test]
fn a_limit_that_cannot_be_is_refused_by_name() -> io::Result<()> {
    for limit in ["4095", "-1", "64 M", "lots"] {
        let output = selftest(&[], &[("KFD_MAX_BUFFER_SIZE", limit)])?;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("KFD_MAX_BUFFER_SIZE") && text.contains(limit), "{text}");
    }
    Ok(())
}
