//! Failures of what is around the program: full disks, missing permissions, few descriptors.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{PermissionsExt, chown},
    time::Duration,
};

use nix::unistd::geteuid;
use vramstream_tests::{
    fake_criu::CaptureClient,
    images::random_bytes,
    rounds::{capture_on, files_of},
    streamer::{Launch, Operation, Program},
};

use super::SOON;

/// Captures 16 MiB into files on a file system of this size, which only the program sees, and
/// gives back what it left there.
fn capture_onto(kibibytes: u64) -> io::Result<String> {
    let dir = tempfile::tempdir()?;
    let (target, listing) = (dir.path().join("small"), dir.path().join("listing"));
    fs::create_dir(&target)?;
    let script = format!(
        "mount -t tmpfs -o size={kibibytes}k small {target} || exit 99; \
         \"$0\" \"$@\"; status=$?; find {target} -type f > {listing}; exit $status",
        target = target.display(),
        listing = listing.display(),
    );
    let new = if geteuid().is_root() { "-m" } else { "-Urm" };
    let program = Program::under_test()?.through(&["unshare", new, "sh", "-c", &script]);
    let to = format!("file:{}", target.join("image").display());
    let launch = Launch::new(&program, dir.path()).no_shards().args(&["--to", &to]);
    let mut running = launch.start(Operation::Capture)?;
    // With no room at all it may refuse before it listens.
    if running.wait_for_within("socket-init", SOON).is_ok() {
        let criu = CaptureClient::connect_within(dir.path(), SOON)?;
        // CRIU may be told at any of these.
        let _ = criu
            .open("pages-1.img")
            .and_then(|mut image| image.write_all(&random_bytes(1, 16 << 20)))
            .and_then(|()| criu.finish());
    }
    running.wait_within(SOON)?.expect_failure(&["no space", "enospc", "full"])?;
    fs::read_to_string(listing)
}

#[test]
fn a_full_disk_publishes_nothing() -> io::Result<()> {
    // Room for nothing, for half, for all but the last bytes.
    for kibibytes in [4, 8 << 10, 16 << 10] {
        let left = capture_onto(kibibytes)?;
        assert!(left.trim().is_empty(), "{kibibytes} KiB: left behind: {left}");
    }
    Ok(())
}

#[test]
fn a_directory_without_permission_is_named() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let (allowed, denied) = (dir.path().join("allowed"), dir.path().join("denied"));
    fs::create_dir(&allowed)?;
    fs::create_dir(&denied)?;
    fs::set_permissions(&denied, fs::Permissions::from_mode(0o500))?;
    // A copy where anybody can run it.
    let copy = dir.path().join("program");
    fs::copy(Program::under_test()?.path(), &copy)?;
    let mut program = Program::at(&copy);
    if geteuid().is_root() {
        program = program.as_nobody();
        chown(&allowed, Some(65_534), Some(65_534))?;
    }
    let captured = capture_on(Launch::new(&program, &allowed), CaptureClient::finish)?;
    captured.outcome.expect_success()?;
    for images in [&denied, &denied.join("new")] {
        let mut running = Launch::new(&program, images).start(Operation::Capture)?;
        let outcome = running.wait_within(Duration::from_secs(10))?;
        outcome.expect_failure(&["denied"])?;
        assert!(outcome.stderr.to_lowercase().contains("permission"), "{}", outcome.stderr);
    }
    Ok(())
}

#[test]
fn few_descriptors_are_enough_for_many_images() -> io::Result<()> {
    let program = Program::under_test()?.with_descriptors(64);
    for at_once in [1, 40] {
        let dir = tempfile::tempdir()?;
        let captured = capture_on(Launch::new(&program, dir.path()), |criu| {
            let mut open = std::collections::VecDeque::new();
            for number in 0..3000_u64 {
                let mut image = criu.open(format!("image-{number}.img"))?;
                image.write_all(&random_bytes(number, 100))?;
                open.push_back(image);
                if open.len() == at_once {
                    open.pop_front();
                }
            }
            drop(open);
            criu.finish()
        })?;
        captured.outcome.expect_success()?;
        let files = files_of(&captured.shards)?;
        assert_eq!(files.len(), 3001, "{at_once} at once");
        for number in 0..3000 {
            let expected = random_bytes(number, 100);
            assert_eq!(files.get(&format!("image-{number}.img")), Some(&expected));
        }
    }
    Ok(())
}
