//! Failures of what is around the program: full disks, missing permissions, few descriptors.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
    time::Duration,
};

use nix::unistd::geteuid;
use vramstream_tests::{
    fake_criu::CaptureClient,
    images::random_bytes,
    rounds::{Files, capture_on, extract_on, files_of, image_of},
    streamer::{Launch, Operation, Program},
};

use super::SOON;

/// A file system of a given size that only the program sees.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn new() -> io::Result<Self> {
        let disk = SmallDisk { dir: tempfile::tempdir()? };
        fs::create_dir(disk.path())?;
        Ok(disk)
    }

    /// Where the program finds it.
    fn path(&self) -> PathBuf {
        self.dir.path().join("small")
    }

    /// The program under test, with so much room there.
    fn program(&self, kibibytes: u64) -> io::Result<Program> {
        let script = format!(
            "mount -t tmpfs -o size={kibibytes}k small {target} || exit 99; \
             \"$0\" \"$@\"; status=$?; find {target} -type f > {listing}; exit $status",
            target = self.path().display(),
            listing = self.dir.path().join("listing").display(),
        );
        let new = if geteuid().is_root() { "-m" } else { "-Urm" };
        Ok(Program::under_test()?.through(&["unshare", new, "sh", "-c", &script]))
    }

    /// The files that the program left there.
    fn left(&self) -> io::Result<String> {
        fs::read_to_string(self.dir.path().join("listing"))
    }
}

const FULL: &[&str] = &["no space", "enospc", "full"];

/// Captures 16 MiB into files on a disk of this size, and gives back what is left there.
fn capture_onto(kibibytes: u64) -> io::Result<String> {
    let (disk, sockets) = (SmallDisk::new()?, tempfile::tempdir()?);
    let to = format!("file:{}", disk.path().join("image").display());
    let launch = Launch::new(&disk.program(kibibytes)?, sockets.path());
    let mut running = launch.no_shards().args(&["--to", &to]).start(Operation::Capture)?;
    // With no room at all it may refuse before it listens.
    if running.wait_for_within("socket-init", SOON).is_ok() {
        let criu = CaptureClient::connect_within(sockets.path(), SOON)?;
        // CRIU may be told at any of these.
        let _ = criu
            .open("pages-1.img")
            .and_then(|mut image| image.write_all(&random_bytes(1, 16 << 20)))
            .and_then(|()| criu.finish());
    }
    running.wait_within(SOON)?.expect_failure(FULL)?;
    disk.left()
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
fn extracting_onto_a_full_disk_leaves_nothing_that_looks_restorable() -> io::Result<()> {
    let files = Files::from([("pages-1.img".to_owned(), random_bytes(1, 16 << 20))]);
    let shards = image_of(&files, 2)?;
    for kibibytes in [4, 8 << 10, 16 << 10] {
        let disk = SmallDisk::new()?;
        let launch = Launch::new(&disk.program(kibibytes)?, &disk.path());
        extract_on(launch, &shards)?.expect_failure(FULL)?;
        let left = disk.left()?;
        assert!(!left.contains("inventory.img"), "{kibibytes} KiB: left behind: {left}");
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
