//! Images that are not what they were, or not those of the process.

use std::{fs::OpenOptions, os::unix::fs::FileExt, path::Path};

use vramstream::{
    device::sim::{BoPlan, Fault},
    handoff::{Direction, Pending},
};
use vramstream_streamer::{
    format::Codec,
    rig::{Source, State},
};
use vramstream_tests::fake_criu::{CaptureClient, ServeClient};

use crate::support::*;

fn dumped(source: &Source, out: &Path) -> State {
    let dir = tempfile::tempdir().unwrap();
    let capture = start_capture(dir.path(), source.driver(), files(out), &How::default());
    let criu = CaptureClient::connect(dir.path()).unwrap();
    let (state, contents) = checkpoint(source);
    let prepared = prepare(&source.driver(), Direction::Dump, contents, None);
    hand_over(dir.path(), prepared.job).unwrap().wait().unwrap();
    criu.finish().unwrap();
    capture.join().unwrap().unwrap();
    state
}

/// Restores: what the plugin is told, and what serve ends with.
fn refused(
    state: &State,
    out: &Path,
    kept: Kept,
    change: impl FnOnce(&mut vramstream::handoff::Job),
) -> (String, String) {
    let gpus = u32::try_from(state.gpus()).unwrap();
    let (target, places) = target(state, gpus);
    let dir = tempfile::tempdir().unwrap();
    let serve = start_serve(dir.path(), target.driver(), image(out, kept));
    let criu = ServeClient::connect(dir.path()).unwrap();
    let mut prepared = prepare(&target.driver(), Direction::Restore, places, Some(2 << 20));
    change(&mut prepared.job);
    let outcome = hand_over(dir.path(), prepared.job).and_then(Pending::wait);
    let told_plugin = reason(outcome);
    let told_user = told(serve.join().unwrap());
    drop(criu);
    assert_tidy(target.host());
    (told_plugin, told_user)
}

#[test]
fn a_damaged_byte_of_the_contents_fails_the_restore() {
    let (source, out) = (source(2), tempfile::tempdir().unwrap());
    let state = dumped(&source, out.path());
    let name = format!("amdgpu-pages-{ID}-{:04x}.img", source.host().gpu_ids()[1]);
    let image = open_image(out.path());
    let chunks: Vec<_> = image.file(&name).unwrap().chunks().collect();
    let chunk = chunks.iter().rev().find(|chunk| chunk.record.header.codec == Codec::Raw).unwrap();
    let record = chunk.record;
    let (shard, _) = std::fs::read_dir(out.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .filter_map(|path| {
            // The prologue has the number of the shard.
            let bytes = std::fs::read(&path).ok()?;
            let prologue = vramstream_streamer::format::Prologue::decode(
                bytes.first_chunk::<{ vramstream_streamer::format::PROLOGUE_BYTES }>()?,
            );
            Some((path, prologue.ok()?.shard))
        })
        .find(|(_, shard)| *shard == chunk.shard)
        .unwrap();
    let at = record.frame_at
        + record.frame_len
        + u64::from(record.header.pad)
        + u64::from(record.header.raw_len) / 2;
    let file = OpenOptions::new().read(true).write(true).open(shard).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    let (plugin, user) = refused(&state, out.path(), Kept::InFiles, |_| {});
    assert!(plugin.contains("damaged") && plugin.contains(&name), "{plugin}");
    assert_eq!(plugin, user);
}

#[test]
fn bos_that_are_not_those_of_the_image() {
    let (source, out) = (source(2), tempfile::tempdir().unwrap());
    let state = dumped(&source, out.path());
    for kept in [Kept::InFiles, Kept::InMemory] {
        let (plugin, user) = refused(&state, out.path(), kept, |job| drop(job.gpus[1].bos.pop()));
        assert!(
            plugin.contains("does not fit") && plugin.contains("bytes of contents"),
            "{plugin}"
        );
        assert_eq!(plugin, user);
    }
}

#[test]
fn a_size_that_is_not_that_of_what_follows() {
    let source = source_with(1, &[BoPlan::vram(0, 64 << 10)]);
    let (state, contents) = checkpoint(&source);
    let bytes = contents[0].bytes().unwrap();
    let name = format!("amdgpu-pages-{ID}-{:04x}.img", contents[0].gpu_id);
    drop(contents);
    for (wrong, zeros) in [(bytes + 4096, false), (0, true)] {
        let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let capture =
            start_capture(dir.path(), source.driver(), files(out.path()), &How::default());
        let criu = CaptureClient::connect(dir.path()).unwrap();
        let filler = if zeros { 0 } else { 7 };
        let mut content = vec![filler; 8 + usize::try_from(bytes).unwrap()];
        content[..8].copy_from_slice(&wrong.to_le_bytes());
        criu.send(&name, &content).unwrap();
        criu.finish().unwrap();
        capture.join().unwrap().unwrap();
        for kept in [Kept::InFiles, Kept::InMemory] {
            let (plugin, _) = refused(&state, out.path(), kept, |_| {});
            assert!(plugin.contains(&format!("announces {wrong} bytes")), "{plugin}");
        }
    }
}

#[test]
fn a_gpu_that_fails_in_the_restore_is_the_cause() {
    let (source, out) = (source(2), tempfile::tempdir().unwrap());
    let state = dumped(&source, out.path());
    let (target, places) = target(&state, 2);
    let dir = tempfile::tempdir().unwrap();
    let serve = start_serve(dir.path(), target.driver(), image(out.path(), Kept::InMemory));
    let criu = ServeClient::connect(dir.path()).unwrap();
    let prepared = prepare(&target.driver(), Direction::Restore, places, Some(1 << 20));
    target.host().plan(Fault::call("CS").on_gpu(0).nth(3).answers(nix::errno::Errno::ENODEV));
    let outcome = hand_over(dir.path(), prepared.job).and_then(Pending::wait);
    let plugin = reason(outcome);
    assert!(plugin.contains("renderD128") && plugin.contains("CS failed"), "{plugin}");
    assert_eq!(told(serve.join().unwrap()), plugin);
    drop(criu);
    assert_tidy(target.host());
}

#[test]
fn a_plugin_that_dies_while_it_is_restored_ends_the_serve() {
    let (source, out) = (source(1), tempfile::tempdir().unwrap());
    let state = dumped(&source, out.path());
    let (target, places) = target(&state, 1);
    let dir = tempfile::tempdir().unwrap();
    // It waits for a copy that does not end for a while.
    target
        .host()
        .plan(Fault::call("WAIT_CS").takes(std::time::Duration::from_millis(500)).always());
    let serve = start_serve(dir.path(), target.driver(), image(out.path(), Kept::InFiles));
    let criu = ServeClient::connect(dir.path()).unwrap();
    let prepared = prepare(&target.driver(), Direction::Restore, places, Some(64 << 10));
    drop(hand_over(dir.path(), prepared.job).unwrap());
    let error = told(serve.join().unwrap());
    assert!(error.contains("the CRIU plugin ended or gave up"), "{error}");
    drop(criu);
    assert_tidy(target.host());
}
