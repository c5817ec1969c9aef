//! Dma-bufs that a process has open.

use std::fs;

use super::*;
use crate::{
    image::{DmabufNode, KfdImage},
    plugin::{FAILED, NOT_OURS},
};

struct Bufs {
    app: App,
    kfds: OwnedFd,
    renders: OwnedFd,
}

fn start(place: &Place) -> Bufs {
    let mut app = App::start(place);
    let kfds = app.program.export(&app.program.bos()[1]).unwrap();
    let other = app.other(0);
    made(&other, vram(4096), &[]);
    let handle = made(&other, vram(8 << 10), &pattern(5, 8 << 10));
    let renders = other.export(handle).unwrap();
    app.dma_bufs = 2;
    Bufs { app, kfds, renders }
}

fn images() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn restored_and_checked(place: &Place, criu: &FakeHost, ids: &[u32], kfd_va: u64) {
    let restored = place.restore(criu, ids);
    let restored = restored.unwrap_or_else(|_| panic!("{:?}", criu.said(Level::Error)));
    let at = |id| ids.iter().position(|&of| of == id).unwrap();
    restored.run(place);
    let probe = RenderNode::open(&restored.task, &place.host.machine().gpus[0].render_node());
    let probe = probe.unwrap();
    let handle = probe.import(restored.files[at(11)].as_fd()).unwrap();
    assert_eq!(read(&probe, handle, 8 << 10), pattern(5, 8 << 10));
    // It is the render node's BO, and no copy.
    write(&restored.render(at(4)), 2, b"changed");
    assert_eq!(read(&probe, handle, 7), b"changed");
    probe.close(handle).unwrap();
    let second = RenderNode::open(&restored.task, &place.host.machine().gpus[1].render_node());
    let second = second.unwrap();
    let handle = second.import(restored.files[at(10)].as_fd()).unwrap();
    place.host.write_bo(restored.task.pid(), kfd_va, 0, b"of kfd").unwrap();
    assert_eq!(read(&second, handle, 6), b"of kfd");
    second.close(handle).unwrap();
    drop((probe, second));
    restored.end(place);
}

#[test]
fn dma_bufs_are_of_the_same_bos_again_in_whatever_order_files_come() {
    for first in [false, true] {
        for streams in [false, true] {
            let (place, images) = (Place::on(KernelRelease::V7_2), images());
            let criu = if streams {
                FakeHost::streaming(15, images.path())
            } else {
                FakeHost::new(15, images.path())
            };
            let Bufs { app, kfds, renders } = start(&place);
            let kfd_va = app.program.bos()[1].va;
            let mut files = app.files();
            files.extend([(kfds.as_fd(), 10), (renders.as_fd(), 11)]);
            let mut ids = vec![1, 2, 3, 4, 5, 10, 11];
            if first {
                files.rotate_right(2);
                ids.rotate_right(2);
            }
            assert_eq!(place.dump(&criu, &app, &files), 0, "{:?}", criu.said(Level::Error));
            if !streams {
                let node = |id: u32| {
                    let name = format!("amdgpu-dmabuf_{id}.img");
                    let bytes = fs::read(images.path().join(&name)).unwrap();
                    DmabufNode::read(&name, &mut bytes.as_slice()).unwrap().gem_handle
                };
                let bytes = fs::read(images.path().join("amdgpu-kfd-1.img")).unwrap();
                let image = KfdImage::read("kfd", &mut bytes.as_slice()).unwrap();
                let bo = image.bos.iter().find(|bo| bo.addr == kfd_va).unwrap();
                assert_eq!((Some(node(10)), node(11)), (bo.handle, 2));
            }
            drop((kfds, renders));
            app.end(&place);
            restored_and_checked(&Place::other(KernelRelease::V7_2), &criu, &ids, kfd_va);
        }
    }
}

#[test]
fn an_older_criu_shows_dma_bufs_to_others() {
    let (place, images) = (Place::on(KernelRelease::V7_2), images());
    let Bufs { app, kfds, renders } = start(&place);
    for hooks in [12, 13] {
        let criu = FakeHost::new(hooks, images.path());
        assert_eq!(place.dump(&criu, &app, &[(kfds.as_fd(), 10)]), NOT_OURS);
        assert_eq!(criu.inventory(), 0);
    }
    drop((kfds, renders));
    app.end(&place);
}

#[test]
fn a_dma_buf_of_nobody_is_refused() {
    let (place, images) = (Place::on(KernelRelease::V7_2), images());
    let mut app = App::start(&place);
    let stranger = place.host.process(Credentials::USER);
    let node = RenderNode::open(&stranger, &place.host.machine().gpus[0].render_node()).unwrap();
    let handle = made(&node, vram(4096), &[]);
    let dma_buf = node.export(handle).unwrap();
    app.dma_bufs = 1;
    let criu = FakeHost::new(15, images.path());
    let mut files = app.files();
    files.push((dma_buf.as_fd(), 10));
    assert_eq!(place.dump(&criu, &app, &files), FAILED);
    assert_said(&criu, &["amdgpu-dmabuf_10.img", "of no BO of this dump"]);
    // A file that is no dma-buf is nothing of ours.
    let other = tempfile::tempfile().unwrap();
    let criu = FakeHost::new(15, images.path());
    assert_eq!(place.dump(&criu, &app, &[(other.as_fd(), 10)]), NOT_OURS);
    stranger.abandon();
    drop((node, dma_buf));
    app.end(&place);
}
