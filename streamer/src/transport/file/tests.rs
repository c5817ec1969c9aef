//! Directories, whole: what is written is read back, and nothing else is ever there.

use std::{
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use proptest::prelude::*;
use vramstream::ring::Ring;

use super::*;
use crate::{
    error::Error,
    payload::Payload,
    transport::{Destination, Origin, ShardWriter},
};

const ID: ImageId = ImageId([0xab; 16]);

/// A memory file system and a disk, as far as this machine has both.
fn tempdir(memory: bool) -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if memory && shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap()
}

fn all_io() -> impl Iterator<Item = FileIo> {
    [true, false]
        .into_iter()
        .flat_map(|direct| [Engine::Auto, Engine::Plain].map(|engine| FileIo { direct, engine }))
}

fn payload(ring: &Ring, bytes: &[u8]) -> Payload {
    let mut chunk = ring.take(std::time::Duration::from_secs(60)).unwrap();
    chunk[..bytes.len()].copy_from_slice(bytes);
    Payload { chunk, len: bytes.len() }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn report(error: &Error) -> String {
    error.report().to_string()
}

/// Opens and writes `text` into every shard, without finishing.
fn begun(dir: &Path, shards: u32) -> (FileDestination, Vec<Box<dyn ShardWriter>>) {
    let mut destination = FileDestination::new(dir, shards, FileIo::default());
    let mut writers = destination.open(ID).unwrap();
    for writer in &mut writers {
        writer.write(b"text").unwrap();
    }
    (destination, writers)
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize),
    /// Length of the head and of the payload, and whether the payload is to be aligned.
    Chunk(usize, usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![0usize..5000, 60_000usize..70_000, Just(65536), 120_000usize..300_000];
    prop_oneof![
        (0usize..150_000).prop_map(Step::Write),
        (0usize..100, len, any::<bool>())
            .prop_map(|(head, len, align)| Step::Chunk(head, len, align)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Any writes, on memory and on disk, direct or not, with io_uring or without.
    #[test]
    fn what_is_written_is_read_back(
        steps in prop::collection::vec(step(), 0..25),
        memory: bool,
        direct: bool,
        plain: bool,
        seed: u8,
    ) {
        let dir = tempdir(memory);
        let engine = if plain { Engine::Plain } else { Engine::Auto };
        let mut destination = FileDestination::new(dir.path(), 1, FileIo { direct, engine });
        let mut writers = destination.open(ID).unwrap();
        let writer = &mut writers[0];
        let ring = Ring::new(300 << 10, 4).unwrap();
        let mut expected: Vec<u8> = Vec::new();
        let mut next = u32::from(seed);
        let mut bytes = |len: usize| -> Vec<u8> {
            std::iter::repeat_with(|| {
                next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                next.to_be_bytes()[0]
            }).take(len).collect()
        };
        for step in steps {
            match step {
                Step::Write(len) => {
                    let bytes = bytes(len);
                    writer.write(&bytes).unwrap();
                    expected.extend(&bytes);
                }
                Step::Chunk(head, len, align) => {
                    let pad = match writer.payload_alignment().filter(|_| align) {
                        Some(to) => (expected.len() + head).next_multiple_of(to as usize) - expected.len(),
                        None => head,
                    };
                    let (head, body) = (bytes(pad), bytes(len));
                    writer.write_chunk(&head, payload(&ring, &body)).unwrap();
                    expected.extend(&head);
                    expected.extend(&body);
                    // Idle writers keep no more than half of the ring.
                    prop_assert!(ring.free() >= 2);
                }
            }
        }
        writer.finish().unwrap();
        prop_assert_eq!(ring.free(), 4);
        destination.commit(&mut || Ok(())).unwrap();
        prop_assert_eq!(names(dir.path()), ["shard-0000-of-0001.vst"]);
        let mut back = Vec::new();
        let mut readers = FileOrigin::new(dir.path()).open().unwrap();
        prop_assert!(readers[0].file().is_some());
        readers[0].read_to_end(&mut back).unwrap();
        prop_assert!(back == expected);
    }
}

#[test]
fn nothing_is_visible_before_the_commit_and_all_of_it_after() {
    for io in all_io() {
        let parent = tempdir(false);
        let dir = parent.path().join("image");
        let mut destination = FileDestination::new(&dir, 3, io);
        assert_eq!(destination.shards(), 3);
        let mut writers = destination.open(ID).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        for (number, writer) in writers.iter_mut().enumerate() {
            writer.write(&[b'0' + u8::try_from(number).unwrap()]).unwrap();
            assert!(matches!(destination.commit(&mut || Ok(())), Err(Error::DumpIncomplete(_))));
            writer.finish().unwrap();
            assert!(names(&dir).iter().all(|name| name.starts_with(".vramstream-abab")));
        }
        let error = report(&FileOrigin::new(&dir).open().err().unwrap());
        assert!(error.contains("has not completed"), "{error}");
        destination.commit(&mut || Ok(())).unwrap();
        assert!(destination.commit(&mut || Ok(())).is_err());
        drop(destination);
        let mut readers = FileOrigin::new(&dir).open().unwrap();
        let mut all = String::new();
        for reader in &mut readers {
            reader.read_to_string(&mut all).unwrap();
        }
        assert_eq!(all, "012");
        assert_eq!(readers[1].describe(), dir.join("shard-0001-of-0003.vst").to_str().unwrap());
        assert_eq!(names(&dir).len(), 3);
    }
}

#[test]
fn giving_up_leaves_nothing() {
    for (abort, existed) in [(true, true), (true, false), (false, true), (false, false)] {
        let parent = tempdir(true);
        let dir = parent.path().join("image");
        if existed {
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("notes.txt"), "mine").unwrap();
        }
        let (mut destination, mut writers) = begun(&dir, 2);
        writers[0].finish().unwrap();
        if abort {
            destination.abort("on purpose");
        } else {
            drop(destination);
        }
        // A writer that has not heard of it yet does no harm.
        let _ = writers[1].write(b"more");
        let _ = writers[1].finish();
        drop(writers);
        assert_eq!(dir.exists(), existed);
        if existed {
            assert_eq!(names(&dir), ["notes.txt"]);
        }
    }
}

#[test]
fn one_capture_at_a_time() {
    let parent = tempdir(false);
    let dir = parent.path().join("image");
    let first = begun(&dir, 1);
    let refused = FileDestination::new(&dir, 1, FileIo::default()).open(ImageId([1; 16]));
    let error = report(&refused.err().unwrap());
    assert!(error.contains("another capture") && error.contains("image"), "{error}");
    assert_eq!(names(&dir).len(), 1);
    drop(first);
    let (mut second, mut writers) = begun(&dir, 1);
    writers[0].finish().unwrap();
    second.commit(&mut || Ok(())).unwrap();
    // The lock goes with the destination, and then the image itself is what refuses.
    let third = |id| FileDestination::new(&dir, 1, FileIo::default()).open(id).err().unwrap();
    assert!(report(&third(ID)).contains("another capture"));
    drop(second);
    let error = report(&third(ID));
    assert!(
        error.contains("there is an image already") && error.contains("0000-of-0001"),
        "{error}"
    );
    assert_eq!(fs::read(dir.join("shard-0000-of-0001.vst")).unwrap(), b"text");
}

#[test]
fn what_a_dead_capture_left_is_removed() {
    let dir = tempdir(false);
    let leftover = temporary_name(ImageId([7; 16]), 3);
    for name in [&leftover, ".vramstream-keep", "notes.tmp"] {
        fs::write(dir.path().join(name), "x").unwrap();
    }
    drop(begun(dir.path(), 1));
    assert_eq!(names(dir.path()), [".vramstream-keep", "notes.tmp"]);
}

#[test]
fn a_commit_that_fails_half_way_is_undone() {
    for taken in 0..3 {
        let dir = tempdir(false);
        let (mut destination, mut writers) = begun(dir.path(), 3);
        for writer in &mut writers {
            writer.finish().unwrap();
        }
        let name = shard_name(taken, 3);
        fs::write(dir.path().join(&name), "not ours").unwrap();
        let error = report(&destination.commit(&mut || Ok(())).unwrap_err());
        assert!(error.contains("publish") && error.contains(&name), "{error}");
        drop(destination);
        assert_eq!(names(dir.path()), std::slice::from_ref(&name));
        assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"not ours");
    }
}

#[test]
fn directories_that_are_no_image_say_why() {
    let refusal = |files: &[&str]| {
        let dir = tempdir(false);
        for file in files {
            fs::write(dir.path().join(file), "").unwrap();
        }
        report(&FileOrigin::new(dir.path()).open().err().unwrap())
    };
    for (files, part) in [
        (&[][..], "no file in it is called like shard-0000-of-0004.vst"),
        (&["inventory.img"], "CRIU's image files themselves"),
        (&["shard-0.vst"], "shard-0.vst is not the name"),
        (&["shard-0000-of-0000.vst"], "is not the name"),
        (&["shard-0000-of-0002.vst"], "there is no shard-0001-of-0002.vst"),
        (&["shard-0000-of-0002.vst", "shard-0000-of-0001.vst"], "more than one image"),
    ] {
        let error = refusal(files);
        assert!(error.contains(part), "{files:?}: {error}");
    }
    let error = report(&FileOrigin::new("/nonexistent/x").open().err().unwrap());
    assert!(error.contains("/nonexistent/x"), "{error}");
    let error = report(
        &FileDestination::new("/nonexistent/x", 1, FileIo::default()).open(ID).err().unwrap(),
    );
    assert!(error.contains("/nonexistent/x"), "{error}");
}

/// A disk that is full, at the first byte and at the last one, as a limit on the size of files. The
/// limit is a process's own, so this runs itself again as a child.
#[test]
fn a_file_that_cannot_grow_is_an_error_and_leaves_nothing() {
    const VARIABLE: &str = "VRAMSTREAM_TEST_FULL_DISK";
    const LEN: usize = 1_000_001;
    if let Some(dir) = std::env::var_os(VARIABLE) {
        let dir = PathBuf::from(dir);
        // A signal that is blocked kills nobody, and the write fails with EFBIG.
        let mut signals = nix::sys::signal::SigSet::empty();
        signals.add(nix::sys::signal::Signal::SIGXFSZ);
        signals.thread_block().unwrap();
        let signalled = || {
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:")).unwrap();
            u64::from_str_radix(pending.trim(), 16).unwrap() != 0
        };
        for io in all_io() {
            for limit in [0, LEN - 1, LEN + 4096] {
                use nix::sys::resource::{Resource, setrlimit};
                let hard = nix::sys::resource::getrlimit(Resource::RLIMIT_FSIZE).unwrap().1;
                setrlimit(Resource::RLIMIT_FSIZE, limit as u64, hard).unwrap();
                let mut destination = FileDestination::new(&dir, 1, io);
                let mut writers = destination.open(ID).unwrap();
                let ring = Ring::new(256 << 10, 4).unwrap();
                let written = [9; LEN].chunks(256 << 10).try_for_each(|bytes| {
                    let head = vec![8; writers[0].payload_alignment().unwrap_or(0) as usize];
                    writers[0].write_chunk(&head[..0], payload(&ring, bytes))
                });
                let result = written.and_then(|()| writers[0].finish());
                if limit > LEN {
                    result.unwrap();
                    // Nothing was tried past the limit that need not be.
                    assert!(!signalled(), "{io:?}");
                    continue;
                }
                let error = report(&result.unwrap_err());
                assert!(error.contains("shard-0000-of-0001.vst at byte"), "{error}");
                assert!(error.contains("File too large"), "{error}");
                assert!(destination.commit(&mut || Ok(())).is_err());
                drop((destination, writers));
                assert_eq!(ring.free(), 4);
                assert!(!dir.exists(), "{io:?}, {limit}");
                while signalled() {
                    signals.wait().unwrap();
                }
            }
        }
        return;
    }
    for memory in [true, false] {
        let parent = tempdir(memory);
        let name = std::thread::current().name().unwrap().to_owned();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            .env(VARIABLE, parent.path().join("image"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    }
}
