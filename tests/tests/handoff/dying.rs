//! Plugins, streamers and GPUs that fail on the way.

use nix::errno::Errno;
use vramstream::{
    device::sim::Fault,
    gpu::Render,
    handoff::{Direction, HandoffError, Pending},
};
use vramstream_tests::fake_criu::{CaptureClient, ServeClient};

use crate::{sinks::Gated, support::*};

/// What is in a directory of an image that was not published.
fn assert_nothing(out: &std::path::Path) {
    let left: Vec<_> =
        std::fs::read_dir(out).map(|dir| dir.flatten().collect()).unwrap_or_default();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_plugin_that_asks_for_nothing_changes_nothing() {
    let (source, dir, out) =
        (source(1), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let capture = start_capture(dir.path(), source.driver(), files(out.path()), &How::default());
    let criu = CaptureClient::connect(dir.path()).unwrap();
    drop(connect(dir.path()));
    criu.finish().unwrap();
    assert_eq!(capture.join().unwrap().unwrap().files, 1);
}

#[test]
fn a_plugin_that_dies_in_the_handover_ends_the_capture() {
    let (source, dir, out) =
        (source(2), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = out.path().join("image");
    let capture = start_capture(dir.path(), source.driver(), files(&out), &How::default());
    let criu = CaptureClient::connect(dir.path()).unwrap();
    let (_, contents) = checkpoint(&source);
    let mut prepared = prepare(&source.driver(), Direction::Dump, contents, None);
    // The second GPU makes the client give up.
    prepared.job.gpus[1].node = Render::At("/dev/dri/renderD129".into());
    let error = hand_over(dir.path(), prepared.job).unwrap_err();
    assert!(matches!(error, HandoffError::NotOpen { .. }), "{error}");
    let error = told(capture.join().unwrap());
    assert!(error.contains("the CRIU plugin ended or gave up while it handed over"), "{error}");
    assert!(criu.finish().is_err() || !out.exists());
    assert_nothing(&out);
    assert_tidy(source.host());
}

#[test]
fn a_plugin_that_dies_while_its_contents_are_copied_ends_the_capture() {
    let (source, dir) = (source(1), tempfile::tempdir().unwrap());
    let (sink, gate) = Gated::new();
    let capture = start_capture(
        dir.path(),
        source.driver(),
        Box::new(sink),
        &How { memory: 1 << 20, ..How::default() },
    );
    let criu = CaptureClient::connect(dir.path()).unwrap();
    let (_, contents) = checkpoint(&source);
    let prepared = prepare(&source.driver(), Direction::Dump, contents, None);
    let pending = hand_over(dir.path(), prepared.job).unwrap();
    gate.wait_until_reached();
    drop(pending);
    let error = told({
        // The sink is stuck until the capture has noticed: it notices without it.
        let released = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            gate.open();
        });
        let outcome = capture.join().unwrap();
        released.join().unwrap();
        outcome
    });
    assert!(error.contains("the CRIU plugin ended or gave up while its GPU contents"), "{error}");
    drop(criu);
    assert_tidy(source.host());
}

#[test]
fn a_sink_that_fails_is_told_to_the_plugin_that_waits() {
    let (source, dir) = (source(2), tempfile::tempdir().unwrap());
    let (sink, gate) = Gated::new();
    let how = How { memory: 1 << 20, ..How::default() };
    let capture = start_capture(dir.path(), source.driver(), Box::new(sink), &how);
    let criu = CaptureClient::connect(dir.path()).unwrap();
    let (_, contents) = checkpoint(&source);
    let prepared = prepare(&source.driver(), Direction::Dump, contents, None);
    let pending = hand_over(dir.path(), prepared.job).unwrap();
    gate.wait_until_reached();
    gate.fail();
    assert!(reason(pending.wait()).contains("No space left"));
    let error = told(capture.join().unwrap());
    assert!(error.contains("No space left"), "{error}");
    drop(criu);
    assert_tidy(source.host());
}

#[test]
fn criu_that_fails_is_told_to_the_plugin_that_waits() {
    let (source, dir) = (source(1), tempfile::tempdir().unwrap());
    let (sink, gate) = Gated::new();
    let how = How { memory: 1 << 20, ..How::default() };
    let capture = start_capture(dir.path(), source.driver(), Box::new(sink), &how);
    let criu = CaptureClient::connect(dir.path()).unwrap();
    let (_, contents) = checkpoint(&source);
    let prepared = prepare(&source.driver(), Direction::Dump, contents, None);
    let pending = hand_over(dir.path(), prepared.job).unwrap();
    gate.wait_until_reached();
    criu.die();
    let waiting = std::thread::spawn(move || pending.wait());
    std::thread::sleep(std::time::Duration::from_millis(100));
    gate.open();
    assert!(reason(waiting.join().unwrap()).contains("inventory.img"));
    assert!(told(capture.join().unwrap()).contains("inventory.img"));
    assert_tidy(source.host());
}

#[test]
fn a_gpu_that_fails_ends_the_capture_and_is_the_cause() {
    let (source, dir, out) =
        (source(2), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = out.path().join("image");
    source.host().plan(Fault::call("CS").on_gpu(1).nth(2).answers(Errno::EIO));
    let capture = start_capture(dir.path(), source.driver(), files(&out), &How::default());
    let criu = CaptureClient::connect(dir.path()).unwrap();
    let (_, contents) = checkpoint(&source);
    let prepared = prepare(&source.driver(), Direction::Dump, contents, Some(1 << 20));
    let pending = hand_over(dir.path(), prepared.job).unwrap();
    assert!(reason(pending.wait()).contains("CS failed"));
    let error = told(capture.join().unwrap());
    assert!(error.contains("CS failed") && error.contains("renderD129"), "{error}");
    drop(criu);
    assert_nothing(&out);
    assert_tidy(source.host());
}

#[test]
fn contents_that_are_handed_over_twice_end_the_capture() {
    let (source, dir, out) =
        (source(1), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = out.path().join("image");
    let capture = start_capture(dir.path(), source.driver(), files(&out), &How::default());
    let criu = CaptureClient::connect(dir.path()).unwrap();
    for again in [false, true] {
        let (_, contents) = checkpoint(&source);
        let prepared = prepare(&source.driver(), Direction::Dump, contents, None);
        let outcome = hand_over(dir.path(), prepared.job).and_then(Pending::wait);
        if again {
            assert!(reason(outcome).contains("handed over again"));
        } else {
            outcome.unwrap();
        }
    }
    assert!(told(capture.join().unwrap()).contains("handed over again"));
    drop(criu);
    assert_nothing(&out);
}

#[test]
fn a_job_the_wrong_way_is_refused() {
    let (source, dir, out) =
        (source(1), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let capture = start_capture(
        dir.path(),
        source.driver(),
        files(&out.path().join("image")),
        &How::default(),
    );
    let criu = CaptureClient::connect(dir.path()).unwrap();
    let (_, contents) = checkpoint(&source);
    let prepared = prepare(&source.driver(), Direction::Restore, contents, None);
    assert!(reason(hand_over(dir.path(), prepared.job)).contains("vramstream serve"));
    assert!(told(capture.join().unwrap()).contains("this is a capture"));
    drop(criu);
}

#[test]
fn a_dump_at_a_serve_is_refused() {
    let (source, out) = (source(1), tempfile::tempdir().unwrap());
    empty_image(out.path());
    let dir = tempfile::tempdir().unwrap();
    let serve = start_serve(dir.path(), source.driver(), image(out.path(), Kept::InFiles));
    let criu = ServeClient::connect(dir.path()).unwrap();
    let (_, contents) = checkpoint(&source);
    let prepared = prepare(&source.driver(), Direction::Dump, contents, None);
    assert!(reason(hand_over(dir.path(), prepared.job)).contains("vramstream capture"));
    assert!(told(serve.join().unwrap()).contains("serves an image"));
    drop(criu);
}

/// An image that has no GPU in it.
fn empty_image(out: &std::path::Path) {
    let (source, dir) = (source(1), tempfile::tempdir().unwrap());
    let capture = start_capture(dir.path(), source.driver(), files(out), &How::default());
    CaptureClient::connect(dir.path()).unwrap().finish().unwrap();
    capture.join().unwrap().unwrap();
}

#[test]
fn contents_that_are_not_in_the_image() {
    let (source, out) = (source(1), tempfile::tempdir().unwrap());
    empty_image(out.path());
    let (state, _) = checkpoint(&source);
    let (target, places) = target(&state, 1);
    let dir = tempfile::tempdir().unwrap();
    let serve = start_serve(dir.path(), target.driver(), image(out.path(), Kept::InFiles));
    let criu = ServeClient::connect(dir.path()).unwrap();
    let prepared = prepare(&target.driver(), Direction::Restore, places, None);
    assert!(reason(hand_over(dir.path(), prepared.job)).contains("is not in the image"));
    assert!(told(serve.join().unwrap()).contains("amdgpu-pages-7-"));
    drop(criu);
    assert_tidy(target.host());
}
