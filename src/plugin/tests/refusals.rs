//! What cannot be restored is refused when it is dumped, and named.

use memmap2::MmapMut;

use super::*;
use crate::{abi::amdgpu::create, plugin::FAILED};

/// Dumps an application after something was done to it: all that was said.
fn refused(change: impl FnOnce(&Place, &App) -> Vec<Box<dyn std::any::Any>>) -> String {
    refused_by(FakeHost::new, change)
}

fn refused_by(
    criu: impl FnOnce(usize, &Path) -> FakeHost,
    change: impl FnOnce(&Place, &App) -> Vec<Box<dyn std::any::Any>>,
) -> String {
    let (place, images) = (Place::on(KernelRelease::V7_2), tempfile::tempdir().unwrap());
    let app = App::start(&place);
    let kept = change(&place, &app);
    let criu = criu(12, images.path());
    assert_eq!(place.dump(&criu, &app, &app.files()), FAILED);
    drop(kept);
    app.end(&place);
    criu.said(Level::Error).join("\n")
}

#[track_caller]
fn assert_names(said: &str, what: &[&str]) {
    what.iter().for_each(|what| assert!(said.contains(what), "{what:?} is not in: {said}"));
}

#[test]
fn memory_of_the_process() {
    let said = refused(|_, app| {
        let memory = MmapMut::map_anon(4096).unwrap();
        let address = memory.as_ptr().expose_provenance() as u64;
        app.program.user_gem(1, address, 4096).unwrap();
        vec![Box::new(memory)]
    });
    assert_names(&said, &["amdgpu-renderD-3.img", "renderD129", "BO 1", "GEM_USERPTR"]);
}

#[test]
fn what_cannot_be_shared_or_is_nowhere() {
    let always = create::VM_ALWAYS_VALID;
    let always = GemCreateIn { domain_flags: always, ..vram(4096) };
    let said = refused(|_, app| {
        made(&app.other(0), always, &[]);
        Vec::new()
    });
    assert_names(&said, &["amdgpu-renderD-4.img", "BO 1", "VM_ALWAYS_VALID"]);
    let said = refused(|_, app| {
        made(&app.render(0), GemCreateIn { domains: domain::CPU, ..vram(4096) }, &[]);
        Vec::new()
    });
    assert_names(&said, &["amdgpu-renderD-2.img", "BO 1", "neither in VRAM nor in GTT"]);
}

#[test]
fn a_bo_of_a_stranger() {
    let said = refused(|place, app| {
        let stranger = place.host.process(Credentials::USER);
        let node = place.host.machine().gpus[1].render_node();
        let node = RenderNode::open(&stranger, &node).unwrap();
        let handle = made(&node, vram(4096), &[]);
        app.render(0).import(node.export(handle).unwrap().as_fd()).unwrap();
        stranger.abandon();
        vec![Box::new(node)]
    });
    assert_names(&said, &["amdgpu-renderD-2.img", "BO 1", "of no BO that was dumped before"]);
}

#[test]
fn a_bo_of_another_process_on_kfd() {
    let (place, images) = (Place::on(KernelRelease::V7_2), tempfile::tempdir().unwrap());
    let (one, two) = (App::start(&place), App::start(&place));
    let dma_buf = one.program.export(&one.program.bos()[0]).unwrap();
    two.render(0).import(dma_buf.as_fd()).unwrap();
    drop(dma_buf);
    let checkpointer = place.host.process(Credentials::ROOT);
    place.host.trace(&checkpointer, &one.process);
    place.host.trace(&checkpointer, &two.process);
    for swapped in [false, true] {
        let criu = FakeHost::new(12, images.path());
        let mut plugin = place.plugin(&criu, &checkpointer, Stage::Dump);
        let mut order: Vec<_> = one.files().into_iter().take(2).collect();
        let more = two.files().into_iter().take(2).map(|(fd, id)| (fd, id + 10));
        if swapped {
            order.splice(0..0, more);
        } else {
            order.extend(more);
        }
        let answers: Vec<_> = order.iter().map(|&(fd, id)| plugin.dump_file(fd, id)).collect();
        plugin.finish(true);
        assert!(answers.contains(&FAILED), "{answers:?}");
        let said = criu.said(Level::Error).join("\n");
        assert_names(&said, &["amdgpu-renderD-12.img", "cannot be restored"]);
        criu.end();
        assert_eq!(place.host.left_stopped(), []);
    }
    one.process.abandon();
    two.process.abandon();
    drop((one, two));
    assert_eq!(place.host.check(), []);
}

#[test]
fn a_handle_that_takes_too_long_to_reach() {
    use crate::plugin::gpus::MOST_HANDLES;
    let (place, images) = (Place::on(KernelRelease::V7_2), tempfile::tempdir().unwrap());
    let criu = FakeHost::new(12, images.path());
    let app = App::start(&place);
    made(&app.render(0), vram(4096), &[]);
    assert_eq!(place.dump(&criu, &app, &app.files()), 0);
    app.end(&place);
    let path = images.path().join("amdgpu-renderD-2.img");
    let bytes = std::fs::read(&path).unwrap();
    let mut image = crate::image::RenderNode::read("x", &mut bytes.as_slice()).unwrap();
    std::fs::remove_file(images.path().join("vramstream-renderD-2.img")).unwrap();
    for handle in [0, MOST_HANDLES + 1] {
        image.bos[0].handle = handle;
        let mut bytes = Vec::new();
        image.write("x", &mut bytes).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let criu = FakeHost::new(12, images.path());
        assert_eq!(place.restore(&criu, &[1, 2]).err(), Some(FAILED));
        assert_said(&criu, &["amdgpu-renderD-2.img", &format!("BO {handle}")]);
    }
}

/// Who else is of a BO is known when all descriptors were seen, and a streamer may be gone by then.
#[test]
fn what_is_shared_by_a_criu_that_streams_and_has_no_late_hook() {
    let said = refused_by(FakeHost::streaming, |_, app| {
        let shared = app.program.export(&app.program.bos()[0]).unwrap();
        app.render(0).import(shared.as_fd()).unwrap();
        Vec::new()
    });
    assert_names(&said, &["amdgpu-kfd-1.img", "BO 0", "a CRIU after 4.2"]);
}
