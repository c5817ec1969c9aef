//! VRAM larger than what its copier may use, with the limit held by the kernel. The GPUs are
//! simulated in another process, so that their memory does not count.

use std::{
    io::{self, BufRead, BufReader},
    process::{Command, Stdio},
};

const MIB: u64 = 1 << 20;

/// Fills and dumps so much VRAM: the copier's peak memory.
fn copied(gpus: u32, vram: &str, bo: &str, cap: &str, data_limit: u64) -> io::Result<u64> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("gpus.sock");
    let mut machine = Command::new(env!("CARGO_BIN_EXE_simulated-gpus"))
        .arg(&socket)
        .args([&gpus.to_string(), vram, "gfx90a"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut output = BufReader::new(machine.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
    output.read_line(&mut String::new())?;
    let copier = Command::new("prlimit")
        .arg(format!("--data={data_limit}"))
        .arg(env!("CARGO_BIN_EXE_gpu-copier"))
        .arg(&socket)
        .args([&gpus.to_string(), vram, bo])
        .env("KFD_MAX_BUFFER_SIZE", cap)
        .output()?;
    drop(machine.stdin.take());
    let complaints = io::read_to_string(output)?;
    machine.wait()?;
    assert!(copier.status.success(), "{copier:?}");
    assert_eq!(complaints, "");
    String::from_utf8_lossy(&copier.stdout).trim().parse().map_err(io::Error::other)
}

#[test]
fn eight_gib_of_vram_go_through_64_mib() -> io::Result<()> {
    let peak = copied(1, "8G", "2G", "64M", 96 * MIB)?;
    assert!(peak < 96 * MIB, "{peak}");
    Ok(())
}

#[test]
fn the_limit_is_for_all_gpus_together() -> io::Result<()> {
    let peak = copied(8, "64M", "16M", "8M", 56 * MIB)?;
    assert!(peak < 40 * MIB, "{peak}");
    Ok(())
}
