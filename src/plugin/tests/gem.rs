//! BOs of render nodes.

use std::{fs, path::Path};

use nix::errno::Errno;

use super::*;
use crate::{
    abi::amdgpu::create,
    device::sim::Fault,
    plugin::{FAILED, NEW_OFFSET, NOT_OURS},
};

const MIB: u64 = 1 << 20;
/// An address where the application has memory of KFD too, but not in the same address space.
const VA: u64 = 0x10_0000_0000;

/// An application whose render nodes have BOs of all kinds.
fn start(place: &Place) -> App {
    let app = App::start(place);
    let (compute, other, second) = (app.render(0), app.other(0), app.render(1));
    let kfd_bo = &app.program.bos()[0];

    // In the address space of KFD, with gaps between the handles.
    let first = made(&compute, vram(8 << 10), &pattern(1, 8 << 10));
    let gaps = [made(&compute, vram(4096), &[]), made(&compute, vram(4096), &[])];
    let gtt = GemCreateIn { domains: domain::GTT, alignment: 64 << 10, ..vram(12 << 10) };
    let gtt = made(&compute, gtt, &pattern(2, 12 << 10));
    gaps.into_iter().for_each(|handle| compute.close(handle).unwrap());
    let imported = compute.import(app.program.export(kfd_bo).unwrap().as_fd()).unwrap();
    assert_eq!((first, gtt, imported), (1, 4, 2));
    let hidden = GemCreateIn { domain_flags: create::NO_CPU_ACCESS, ..vram(4096) };
    assert_eq!(made(&compute, hidden, &[]), 3);
    made(&compute, vram(MIB), &pattern(3, 1 << 20));
    made(&compute, vram(8 << 10), &[]);
    compute.close(5).unwrap();
    mapped(&compute, first, VA, 8 << 10, 0);
    mapped(&compute, first, VA + MIB, 4096, 4096);
    mapped(&compute, imported, VA + 2 * MIB, 64 << 10, 0);

    // In an address space of its own, at the same addresses and at KFD's; one BO is the other file's.
    let shared = other.import(compute.export(first).unwrap().as_fd()).unwrap();
    let own = made(&other, vram(2 * MIB), &pattern(4, 2 << 20));
    mapped(&other, own, VA, MIB, MIB);
    mapped(&other, shared, kfd_bo.va, 8 << 10, 0);

    // Of another GPU: a BO of a render node, and one of KFD.
    second.import(compute.export(gtt).unwrap().as_fd()).unwrap();
    second.import(app.program.export(kfd_bo).unwrap().as_fd()).unwrap();
    app
}

/// What there is of all files: those of KFD, and the others.
fn all(renders: [RenderNode; 4]) -> Vec<Vec<Described>> {
    renders.iter().map(described).collect()
}

fn of_app(app: &App) -> [RenderNode; 4] {
    [app.render(0), app.render(1), app.other(0), app.other(1)]
}

fn of_task(restored: &Restored, order: [usize; 4]) -> [RenderNode; 4] {
    order.map(|at| restored.render(at))
}

fn check_contents(place: &Place, restored: &Restored, order: [usize; 4], kfd_va: u64) {
    let [compute, _, other, _] = of_task(restored, order);
    assert_eq!(read(&compute, 1, 8 << 10), pattern(1, 8 << 10));
    assert_eq!(read(&compute, 4, 12 << 10), pattern(2, 12 << 10));
    assert_eq!(read(&other, 2, 2 << 20), pattern(4, 2 << 20));
    // What was one BO is one.
    write(&other, 1, b"by the other file");
    assert_eq!(read(&compute, 1, 17), b"by the other file");
    // And what is KFD's is KFD's: its file may not have it mapped for the CPU, but can copy.
    let dma_buf = compute.export(2).unwrap();
    let mut found = [0; 8];
    place.host.read_bo(restored.task.pid(), kfd_va, 0, &mut found).unwrap();
    place.host.write_bo(restored.task.pid(), kfd_va, 0, b"from kfd").unwrap();
    let copier = crate::gpu::Contents {
        gpu_id: 0,
        node: place.host.machine().gpus[0].render_node().into(),
        bos: vec![crate::gpu::Bo { size: 64 << 10, dma_buf }],
    };
    assert!(copied(place, copier).starts_with(b"from kfd"));
}

/// The contents of BOs.
fn copied(place: &Place, contents: crate::gpu::Contents) -> Vec<u8> {
    use std::sync::Mutex;
    struct Take(Arc<Mutex<Vec<u8>>>);
    impl crate::gpu::Drain for Take {
        type Error = std::convert::Infallible;
        fn chunk(
            &mut self,
            _: u64,
            chunk: crate::ring::Chunk,
            len: usize,
        ) -> Result<(), Self::Error> {
            self.0.lock().unwrap().extend_from_slice(&chunk[..len]);
            Ok(())
        }
        fn end(&mut self, _: u64) -> Result<(), Self::Error> {
            Ok(())
        }
    }
    let bytes = Arc::new(Mutex::default());
    let driver: Arc<dyn crate::device::Driver> = Arc::new(place.host.process(Credentials::ROOT));
    let ring = crate::ring::Ring::new(64 << 10, 8).unwrap();
    let jobs = vec![crate::gpu::DumpJob { contents, drain: Take(Arc::clone(&bytes)) }];
    let options = crate::gpu::Options::default();
    crate::gpu::dump(&driver, &ring, jobs, options, &mut || Ok(())).unwrap();
    std::mem::take(&mut *bytes.lock().unwrap())
}

fn images() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn all_bos_come_back_on_other_gpus_with_their_handles_contents_and_mappings() {
    for (hooks, streams) in [(12, false), (15, true), (15, false)] {
        let (place, images) = (Place::on(KernelRelease::V7_2), images());
        let criu = if streams {
            FakeHost::streaming(hooks, images.path())
        } else {
            FakeHost::new(hooks, images.path())
        };
        let app = start(&place);
        let before = all(of_app(&app));
        let kfd_va = app.program.bos()[0].va;
        assert_eq!(place.dump(&criu, &app, &app.files()), 0, "{:?}", criu.said(Level::Error));
        assert_eq!(criu.inventory(), 1);
        // Nothing of the application has changed.
        assert_eq!(all(of_app(&app)), before);
        app.end(&place);

        let there = Place::other(KernelRelease::V7_2);
        let open = descriptors();
        let restored = there.restore(&criu, &[1, 2, 3, 4, 5]);
        let restored = restored.unwrap_or_else(|_| panic!("{:?}", criu.said(Level::Error)));
        let order = [1, 2, 3, 4];
        assert_eq!(all(of_task(&restored, order)), before);
        restored.run(&there);
        check_contents(&there, &restored, order, kfd_va);
        restored.end(&there);
        drop(there);
        if cfg!(not(miri)) && std::env::var_os("NEXTEST").is_some() {
            assert!(descriptors() <= open, "descriptors are left");
        }
    }
}

#[test]
fn render_nodes_may_come_before_kfd() {
    let (place, images) = (Place::on(KernelRelease::V7_2), images());
    let criu = FakeHost::new(12, images.path());
    let app = start(&place);
    let before = all(of_app(&app));
    let kfd_va = app.program.bos()[0].va;
    let mut files = app.files();
    files.rotate_left(1);
    assert_eq!(place.dump(&criu, &app, &files), 0, "{:?}", criu.said(Level::Error));
    app.end(&place);
    let there = Place::other(KernelRelease::V7_2);
    let restored = there.restore(&criu, &[2, 3, 4, 5, 1]);
    let restored = restored.unwrap_or_else(|_| panic!("{:?}", criu.said(Level::Error)));
    let order = [0, 1, 2, 3];
    assert_eq!(all(of_task(&restored, order)), before);
    restored.run(&there);
    check_contents(&there, &restored, order, kfd_va);
    restored.end(&there);
}

/// The file of the second render node has no BOs, and yet is no other's.
#[test]
fn files_are_apart_that_were_apart() {
    let (place, images) = (Place::on(KernelRelease::V7_2), images());
    let criu = FakeHost::new(12, images.path());
    let app = App::start(&place);
    assert_eq!(place.dump(&criu, &app, &app.files()), 0);
    app.end(&place);
    let restored = place.restore(&criu, &[1, 2, 3, 4, 5]).ok().unwrap();
    made(&restored.render(3), vram(4096), &[]);
    assert_eq!(restored.render(1).bos().unwrap().unwrap().len(), 0);
    let kfds = place.host.bos(restored.task.pid()).into_iter().find(|bo| bo.size == 64 << 10);
    let kfd_va = kfds.unwrap().va;
    let plain = GemVmEntry { addr: kfd_va, size: 4096, offset: 0, flags: 0xe };
    restored.render(3).map_as(1, &plain).unwrap();
    let handle = made(&restored.render(1), vram(4096), &[]);
    assert!(restored.render(1).map_as(handle, &plain).is_err());
    restored.end(&place);
}

#[test]
fn a_kernel_that_does_not_tell_of_bos_is_as_before() {
    let (place, images) = (Place::on(KernelRelease::V6_12), images());
    let criu = FakeHost::new(12, images.path());
    let app = App::start(&place);
    made(&app.other(0), vram(4096), &[]);
    assert_eq!(place.dump(&criu, &app, &app.files()), 0);
    app.end(&place);
    let names: Vec<_> =
        fs::read_dir(images.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1 + 2 + 4 + 1, "{names:?}");
    let restored = place.restore(&criu, &[1, 2, 3, 4, 5]).ok().unwrap();
    // Both are the file that KFD was given.
    let handle = made(&restored.render(1), vram(4096), &pattern(7, 4096));
    assert_eq!(read(&restored.render(3), handle, 4096), pattern(7, 4096));
    restored.end(&place);
}

/// As CRIU's own plugin writes them: without our records, and with nothing in the size.
#[test]
fn images_without_records_are_restored_as_far_as_they_say() {
    let (place, images) = (Place::on(KernelRelease::V7_2), images());
    let criu = FakeHost::new(12, images.path());
    let app = App::start(&place);
    let render = app.render(0);
    made(&render, vram(8 << 10), &pattern(1, 8 << 10));
    mapped(&render, 1, VA, 8 << 10, 0);
    let before = described(&render);
    assert_eq!(place.dump(&criu, &app, &app.files()), 0);
    app.end(&place);
    drop(render);
    remove(images.path(), "vramstream-");
    let pages = images.path().join("amdgpu-drm-pages-2-128-0000.img");
    let mut bytes = fs::read(&pages).unwrap();
    bytes[..8].copy_from_slice(&[0x5a; 8]);
    fs::write(&pages, bytes).unwrap();
    let restored = place.restore(&criu, &[1, 2]).ok().unwrap();
    assert_eq!(described(&restored.render(1)), before);
    assert_eq!(read(&restored.render(1), 1, 8 << 10), pattern(1, 8 << 10));
    assert!(criu.said(Level::Warning)[0].contains("amdgpu-renderD-2.img"));
    restored.end(&place);
}

fn remove(dir: &Path, prefix: &str) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with(prefix) {
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn mappings_are_found_in_the_files_that_have_them() {
    let (place, images) = (Place::on(KernelRelease::V7_2), images());
    let criu = FakeHost::new(12, images.path());
    let app = start(&place);
    let kfds = app.program.bos()[0].mmap_offset;
    let compute = app.render(0).mmap_offset(4).unwrap();
    let other = app.other(0).mmap_offset(2).unwrap();
    assert_eq!(place.dump(&criu, &app, &app.files()), 0);
    app.end(&place);
    let there = Place::other(KernelRelease::V7_2);
    let mut restored = there.restore(&criu, &[1, 2, 3, 4, 5]).ok().unwrap();
    let path = "/dev/dri/renderD128";
    // Each is given a file, since CRIU makes none from that of another.
    let first = restored.plugin.restore_mapping(path, kfds);
    let second = restored.plugin.restore_mapping(path, compute + 4096);
    assert_eq!((first.answer, second.answer), (NEW_OFFSET, NEW_OFFSET));
    assert!(first.file.is_some() && second.file.is_some());
    let place_now = restored.render(1).mmap_offset(4).unwrap();
    assert_eq!(second.offset, Some(place_now + 4096));
    // Right after those of one file of the node, one of its other file.
    let other = restored.plugin.restore_mapping(path, other);
    // All files of a process are the same to KFD.
    assert!(restored.plugin.restore_mapping("/dev/kfd", 2 << 62).file.is_none());
    let node = RenderNode::adopt(&restored.task, Path::new("given"), other.file.unwrap()).unwrap();
    let memory = node.node().map(other.offset.unwrap(), 2 << 20).unwrap();
    let mut bytes = vec![0; 2 << 20];
    memory.read(0, &mut bytes);
    assert!(bytes == pattern(4, 2 << 20));
    drop((first, second, node, memory));
    restored.end(&there);
}

const DUMP_CALLS: [&str; 9] = [
    "open",
    "VERSION",
    "GEM_LIST_HANDLES",
    "GEM_OP",
    "GEM_MMAP",
    "PRIME_HANDLE_TO_FD",
    "PRIME_FD_TO_HANDLE",
    "GEM_WAIT_IDLE",
    "mmap",
];
/// Not each call of hundreds.
const SOME: [u64; 8] = [1, 2, 3, 5, 9, 19, 42, 1000];
const RESTORE_CALLS: [&str; 10] = [
    "open",
    "VERSION",
    "GEM_CREATE",
    "GEM_CLOSE",
    "GEM_OP",
    "GEM_VA",
    "GEM_MMAP",
    "PRIME_HANDLE_TO_FD",
    "PRIME_FD_TO_HANDLE",
    "CS",
];

/// `Place::dump` sees that nothing is left.
#[test]
fn a_call_that_fails_fails_the_dump_and_leaves_nothing() {
    let place = Place::on(KernelRelease::V7_2);
    let app = start(&place);
    for call in DUMP_CALLS {
        for nth in SOME {
            let (images, fault) = (images(), Fault::call(call).nth(nth).answers(Errno::EIO));
            let planned = place.host.plan(fault);
            let criu = FakeHost::new(15, images.path());
            let answer = place.dump(&criu, &app, &app.files());
            let hits = planned.hits();
            planned.release();
            if hits == 0 {
                assert_eq!((answer, nth > 1), (0, true), "{call}");
                break;
            }
            assert_eq!(answer, FAILED, "{call} {nth}");
            assert_said(&criu, &["EIO"]);
        }
    }
    // The second checkpoint, which tells which BOs are KFD's.
    let images = images();
    let planned = place.host.plan(Fault::call("CRIU_OP").nth(3).answers(Errno::EIO));
    let criu = FakeHost::new(12, images.path());
    assert_eq!((place.dump(&criu, &app, &app.files()), planned.hits()), (FAILED, 1));
    app.end(&place);
}

#[test]
fn a_call_that_fails_fails_the_restore_and_leaves_nothing() {
    let (place, images) = (Place::on(KernelRelease::V7_2), images());
    let criu = FakeHost::new(15, images.path());
    let app = start(&place);
    assert_eq!(place.dump(&criu, &app, &app.files()), 0);
    app.end(&place);
    for call in RESTORE_CALLS {
        for nth in SOME {
            let there = Place::other(KernelRelease::V7_2);
            let planned = there.host.plan(Fault::call(call).nth(nth).answers(Errno::EIO));
            let criu = FakeHost::new(15, images.path());
            let restored = there.restore(&criu, &[1, 2, 3, 4, 5]);
            match restored {
                Err(answer) => {
                    assert_eq!((planned.hits(), answer), (1, FAILED), "{call} {nth}");
                    assert!(!criu.said(Level::Error).is_empty());
                }
                Ok(restored) => {
                    if planned.hits() > 0 {
                        // What copies leave is released with their file.
                        there.host.take_complaints();
                    }
                    restored.end(&there);
                    if planned.hits() == 0 {
                        assert!(nth > 1, "{call}");
                        break;
                    }
                    assert!(["GEM_CLOSE", "GEM_VA"].contains(&call), "{call} {nth}");
                }
            }
        }
    }
}

#[test]
fn damage_is_named() {
    let (place, images) = (Place::on(KernelRelease::V7_2), images());
    let criu = FakeHost::new(12, images.path());
    let app = start(&place);
    assert_eq!(place.dump(&criu, &app, &app.files()), 0);
    app.end(&place);
    for name in [
        "amdgpu-renderD-2.img",
        "vramstream-renderD-2.img",
        "amdgpu-drm-pages-2-128-0000.img",
        "amdgpu-drm-pages-4-128-0001.img",
        "vramstream-shared-1.img",
    ] {
        let path = images.path().join(name);
        let good = fs::read(&path).unwrap();
        for what in ["flipped", "short"] {
            let mut bad = good.clone();
            if what == "short" {
                bad.truncate(good.len() - 1);
            } else {
                *bad.last_mut().unwrap() ^= 0x10;
            }
            fs::write(&path, bad).unwrap();
            let criu = FakeHost::new(12, images.path());
            assert_eq!(place.restore(&criu, &[1, 2, 3, 4, 5]).err(), Some(FAILED), "{name} {what}");
            if name != "vramstream-shared-1.img" {
                assert_said(&criu, &[name]);
            }
        }
        fs::remove_file(&path).unwrap();
        let criu = FakeHost::new(12, images.path());
        // Without its image CRIU asks another plugin for the file.
        let answer = if name == "amdgpu-renderD-2.img" { NOT_OURS } else { FAILED };
        let restored = place.restore(&criu, &[1, 2, 3, 4, 5]);
        assert_eq!(restored.err(), Some(answer), "{name}");
        fs::write(&path, good).unwrap();
    }
}

/// Many BOs are copied in several goes.
#[test]
fn there_may_be_many_bos() {
    let (place, images) = (Place::on(KernelRelease::V7_2), images());
    let criu = FakeHost::new(12, images.path());
    let app = App::start(&place);
    let render = app.other(1);
    for number in 0..150 {
        made(&render, vram(4096 + 4096 * u64::from(number % 3)), &pattern(number, 4096));
    }
    (1..=150).step_by(7).for_each(|handle| render.close(handle).unwrap());
    let before = described(&render);
    drop(render);
    assert_eq!(place.dump(&criu, &app, &app.files()), 0);
    app.end(&place);
    let there = Place::other(KernelRelease::V7_2);
    let restored = there.restore(&criu, &[1, 5]).ok().unwrap();
    let render = restored.render(1);
    assert_eq!(described(&render), before);
    for bo in before {
        let number = u8::try_from(bo.0 - 1).unwrap();
        assert_eq!(read(&render, bo.0, 4096), pattern(number, 4096));
    }
    drop(render);
    restored.end(&there);
}
