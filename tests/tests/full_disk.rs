//! A disk that is full, at the first byte and at the last one: a message that says so, and nothing
//! left behind. The disk is a small tmpfs in a mount namespace of the test's own,
//! which takes no privilege where user namespaces are allowed.

#![allow(clippy::unwrap_used)] // helpers of a test, which clippy does not take for one

use std::{fs, path::Path, process::Command, time::Duration};

use vramstream::{ring::Ring, uring::Engine};
use vramstream_streamer::{
    Error,
    format::ImageId,
    payload::Payload,
    transport::{
        Destination, ShardWriter,
        file::{FileDestination, FileIo},
    },
};

const VARIABLE: &str = "VRAMSTREAM_TEST_TMPFS";
const DISK: usize = 4 << 20;

#[test]
fn a_full_disk_is_an_error_and_leaves_nothing() {
    if let Some(disk) = std::env::var_os(VARIABLE) {
        return on_a_disk_of_4_mib(Path::new(&disk));
    }
    let disk = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=4m none "$1" && shift && exec "$@""#;
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-ec", script, "sh"])
        .arg(disk.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_full_disk_is_an_error_and_leaves_nothing"])
        .arg("--nocapture")
        .env(VARIABLE, disk.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}

fn on_a_disk_of_4_mib(disk: &Path) {
    let page = 4096;
    for direct in [true, false] {
        for engine in [Engine::Auto, Engine::Plain] {
            let io = FileIo { direct, engine };
            // It fits to the last byte; one more does not; and not even the first one does.
            for (filler, len) in
                [(0, DISK), (0, DISK + 1), (DISK - 8 * page, 8 * page + 1), (DISK, 1)]
            {
                fs::write(disk.join("filler"), vec![1; filler]).unwrap();
                let dir = disk.join("image");
                let result = write(&dir, len, io);
                if filler + len <= DISK {
                    result.unwrap();
                    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
                    fs::remove_dir_all(&dir).unwrap();
                    continue;
                }
                let error = result.unwrap_err().report().to_string();
                assert!(error.contains("image/shard-000"), "{error}");
                assert!(error.contains("No space left on device"), "{error}");
                assert!(error.contains("free some space"), "{error}");
                assert!(!dir.exists(), "{io:?}, {filler}, {len}");
            }
        }
    }
}

/// Writes `len` bytes into two shards.
fn write(dir: &Path, len: usize, io: FileIo) -> Result<(), Error> {
    let mut destination = FileDestination::new(dir, 2, io);
    let mut shards = destination.open(ImageId([1; 16]))?;
    let ring = Ring::new(256 << 10, 4).unwrap();
    let mut left = len;
    let mut turn = 0;
    while left > 0 {
        let mut chunk = ring.take(Duration::from_secs(60)).unwrap();
        let len = left.min(chunk.len());
        chunk.fill(9);
        shards[turn].write_chunk(&[], Payload { chunk, len })?;
        left -= len;
        turn = 1 - turn;
    }
    shards.iter_mut().try_for_each(|shard| ShardWriter::finish(&mut **shard))?;
    destination.commit(&mut || Ok(()))
}
