//! What is handed over in a dump is what is handed over in the restore.

use std::{
    io::{Read, Write},
    path::Path,
};

use vramstream::{
    device::sim::BoPlan,
    handoff::{Direction, Pending},
    stage::Compression,
};
use vramstream_streamer::{
    rig::{Source, State},
    transport::pipe::PipeDestination,
};
use vramstream_tests::{
    fake_criu::{CaptureClient, ServeClient},
    images::random_bytes,
};

use crate::support::*;

/// Captures a process, and CRIU's own images while its contents are on their way.
fn dump(source: &Source, out: &Path, how: &How, cap: Option<u64>) -> State {
    let dir = tempfile::tempdir().unwrap();
    let capture = start_capture(dir.path(), source.driver(), files(out), how);
    let criu = CaptureClient::connect(dir.path()).unwrap();
    criu.send("core-1.img", b"before").unwrap();
    let (state, contents) = checkpoint(source);
    let prepared = prepare(&source.driver(), Direction::Dump, contents, cap);
    let mut open = criu.open("pages-1.img").unwrap();
    let pages = random_bytes(5, 3 << 20);
    let (first, second) = pages.split_at(1 << 20);
    open.write_all(first).unwrap();
    let pending = hand_over(dir.path(), prepared.job).unwrap();
    open.write_all(second).unwrap();
    pending.wait().unwrap();
    drop(open);
    criu.finish().unwrap();
    let captured = capture.join().unwrap().unwrap();
    assert_eq!(captured.files as usize, 3 + state.gpus());
    assert_tidy(source.host());
    assert!(!dir.path().join("vramstream-gpu.sock").exists());
    state
}

/// Serves an image to the same process on another machine, with CRIU's images while its contents
/// are on their way.
fn restore(source: &Source, state: &State, image_dir: &Path, kept: Kept, cap: Option<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let gpus = u32::try_from(state.gpus()).unwrap();
    let (target, places) = target(state, gpus);
    let serve = start_serve(dir.path(), target.driver(), image(image_dir, kept));
    let criu = ServeClient::connect(dir.path()).unwrap();
    let prepared = prepare(&target.driver(), Direction::Restore, places, cap);
    let pending = hand_over(dir.path(), prepared.job).unwrap();
    assert_eq!(criu.read("core-1.img").unwrap().unwrap(), b"before");
    assert!(criu.read("pages-1.img").unwrap().unwrap() == random_bytes(5, 3 << 20));
    pending.wait().unwrap();
    let same = target.compare(source).unwrap();
    assert!(same > 0);
    target.resume().unwrap();
    drop(criu);
    serve.join().unwrap().unwrap();
    assert_tidy(target.host());
}

fn round_trip(gpus: u32, how: &How, cap: Option<u64>) {
    let (source, out) = (source(gpus), tempfile::tempdir().unwrap());
    let state = dump(&source, out.path(), how, cap);
    for kept in [Kept::InFiles, Kept::InMemory] {
        restore(&source, &state, out.path(), kept, cap);
    }
}

#[test]
fn one_gpu() {
    round_trip(1, &How::default(), None);
}

#[test]
fn two_gpus_compressed() {
    round_trip(2, &How { compression: Compression::Lz4, ..How::default() }, None);
}

#[test]
fn eight_gpus() {
    round_trip(8, &How::default(), Some(16 << 20));
}

/// Eight chunks for all: those of CRIU's images that are not full, and for up to eight GPUs.
#[test]
fn small_rings_go_round() {
    let how = How { memory: 2 << 20, ..How::default() };
    for (gpus, cap) in [(1, None), (8, None), (8, Some(32 << 10))] {
        let (source, dir) = (source(gpus), tempfile::tempdir().unwrap());
        let shard = tempfile::tempfile().unwrap();
        let destination = PipeDestination::new(vec![("shard".into(), shard.into())]);
        let capture = start_capture(dir.path(), source.driver(), Box::new(destination), &how);
        let criu = CaptureClient::connect(dir.path()).unwrap();
        let (_, contents) = checkpoint(&source);
        let prepared = prepare(&source.driver(), Direction::Dump, contents, cap);
        let mut idle: Vec<_> =
            (0..20).map(|n| criu.open(format!("idle-{n}.img")).unwrap()).collect();
        idle.iter_mut().for_each(|image| image.write_all(b"idle").unwrap());
        let pending = hand_over(dir.path(), prepared.job).unwrap();
        criu.send("pages-1.img", &random_bytes(5, 1 << 20)).unwrap();
        pending.wait().unwrap();
        drop(idle);
        criu.finish().unwrap();
        assert_eq!(capture.join().unwrap().unwrap().files, 22 + gpus);
        assert_tidy(source.host());
    }
    let (source, out) = (source(2), tempfile::tempdir().unwrap());
    let state = dump(&source, out.path(), &How::default(), None);
    for kept in [Kept::InFiles, Kept::InMemory] {
        restore(&source, &state, out.path(), kept, Some(8 << 10));
    }
}

#[test]
fn two_processes_at_the_same_time() {
    let (one, two) = (source(2), source(1));
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let drivers = all([one.driver(), two.driver()]);
    let capture = start_capture(dir.path(), drivers, files(out.path()), &How::default());
    let criu = CaptureClient::connect(dir.path()).unwrap();
    let ((state_one, contents_one), (state_two, contents_two)) =
        (checkpoint(&one), checkpoint(&two));
    let first = prepare(&one.driver(), Direction::Dump, contents_one, None);
    let mut second = prepare(&two.driver(), Direction::Dump, contents_two, None);
    second.job.kfd_id = 8;
    let first_pending = hand_over(dir.path(), first.job).unwrap();
    let second_pending = hand_over(dir.path(), second.job).unwrap();
    second_pending.wait().unwrap();
    first_pending.wait().unwrap();
    criu.finish().unwrap();
    assert_eq!(capture.join().unwrap().unwrap().files, 4);

    let ((to_one, places_one), (to_two, places_two)) =
        (target(&state_one, 2), target(&state_two, 1));
    let dir = tempfile::tempdir().unwrap();
    let drivers = all([to_one.driver(), to_two.driver()]);
    let serve = start_serve(dir.path(), drivers, image(out.path(), Kept::InFiles));
    let criu = ServeClient::connect(dir.path()).unwrap();
    let first = prepare(&to_one.driver(), Direction::Restore, places_one, None);
    let mut second = prepare(&to_two.driver(), Direction::Restore, places_two, None);
    second.job.kfd_id = 8;
    let pendings = [second.job, first.job].map(|job| hand_over(dir.path(), job).unwrap());
    pendings.into_iter().for_each(|pending: Pending| pending.wait().unwrap());
    to_one.compare(&one).unwrap();
    to_two.compare(&two).unwrap();
    drop(criu);
    serve.join().unwrap().unwrap();
}

/// CRIU's own plugin writes the same file through a pipe, and reads it from one.
#[test]
fn the_files_are_those_of_criu_s_plugin() {
    let (source, out, by_pipe) =
        (source(1), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = dump(&source, out.path(), &How::default(), None);
    let gpu_id = source.host().gpu_ids()[0];
    let name = format!("amdgpu-pages-{ID}-{gpu_id:04x}.img");

    let dir = tempfile::tempdir().unwrap();
    let serve = start_serve(dir.path(), source.driver(), image(out.path(), Kept::InFiles));
    let criu = ServeClient::connect(dir.path()).unwrap();
    let mut content = Vec::new();
    criu.open(&name).unwrap().unwrap().read_to_end(&mut content).unwrap();
    drop(criu);
    serve.join().unwrap().unwrap();
    let (head, contents) = content.split_at(8);
    assert_eq!(u64::from_le_bytes(head.try_into().unwrap()), contents.len() as u64);
    assert!(contents.len() > 5 << 20 && contents.iter().any(|&byte| byte != 0));

    let how = How { compression: Compression::Lz4, ..How::default() };
    let capture = start_capture(dir.path(), source.driver(), files(by_pipe.path()), &how);
    let criu = CaptureClient::connect(dir.path()).unwrap();
    criu.send("core-1.img", b"before").unwrap();
    criu.send("pages-1.img", &random_bytes(5, 3 << 20)).unwrap();
    criu.send(&name, &content).unwrap();
    criu.finish().unwrap();
    capture.join().unwrap().unwrap();
    for kept in [Kept::InFiles, Kept::InMemory] {
        // The image's chunks are larger than those of the ring, too.
        for cap in [None, Some(64 << 10)] {
            restore(&source, &state, by_pipe.path(), kept, cap);
        }
    }
}

/// As many as a test in one process can have where the limit on open files is 20 000.
#[test]
fn nine_thousand_bos() {
    let (_, hard) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let source = source_with(1, &vec![BoPlan::vram(0, 8192); 9000]);
    let out = tempfile::tempdir().unwrap();
    let state = dump(&source, out.path(), &How::default(), None);
    restore(&source, &state, out.path(), Kept::InFiles, None);
}
