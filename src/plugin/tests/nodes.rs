//! A container whose `/dev` came back as it was on the other host.

use std::{collections::BTreeSet, path::PathBuf, sync::Mutex};

use nix::errno::Errno;

use super::*;
use crate::{
    device::{DeviceFile, DeviceKind, Driver},
    plugin::FAILED,
};

/// The devices of a task that misses some nodes.
#[derive(Debug, Clone)]
struct Without {
    devices: SimProcess,
    missing: Arc<Mutex<BTreeSet<PathBuf>>>,
    made: Arc<Mutex<Vec<PathBuf>>>,
    /// Whether nodes can be made.
    answer: nix::Result<()>,
}

impl Driver for Without {
    fn open(&self, path: &Path) -> nix::Result<Box<dyn DeviceFile>> {
        if self.missing.lock().unwrap().contains(path) {
            return Err(Errno::ENOENT);
        }
        self.devices.open(path)
    }

    fn make_node(&self, path: &Path) -> nix::Result<()> {
        self.answer?;
        self.missing.lock().unwrap().remove(path);
        self.made.lock().unwrap().push(path.to_owned());
        Ok(())
    }

    fn adopt(&self, fd: OwnedFd) -> nix::Result<Box<dyn DeviceFile>> {
        self.devices.adopt(fd)
    }

    fn identify(&self, fd: BorrowedFd<'_>) -> nix::Result<Option<DeviceKind>> {
        self.devices.identify(fd)
    }
}

/// Restores the process of an application in a task without some nodes: the answer, the nodes that were
/// made, what CRIU was told.
fn restored(missing: &[&str], answer: nix::Result<()>) -> (i32, Vec<PathBuf>, String) {
    let (source, images) = (Place::on(KernelRelease::V7_2), tempfile::tempdir().unwrap());
    let criu = FakeHost::new(12, images.path());
    let app = App::start(&source);
    assert_eq!(source.dump(&criu, &app, &app.files()), 0);
    app.end(&source);

    let there = Place::other(KernelRelease::V7_2);
    let task = there.host.process(Credentials::ROOT);
    let missing = missing.iter().map(PathBuf::from).collect();
    let driver = Without {
        devices: task.clone(),
        missing: Arc::new(Mutex::new(missing)),
        made: Arc::default(),
        answer,
    };
    let system = System::simulated(there.dir.path()).with_driver(Arc::new(driver.clone()));
    let host = Box::new(criu.clone()) as Box<dyn Host>;
    let mut plugin = Plugin::start(host, system, Stage::Restore).unwrap();
    // (1 is /dev/kfd.)
    let kfd = plugin.restore_file(1);
    let answer = kfd.as_ref().err().copied().unwrap_or(0);
    task.abandon();
    drop((kfd, plugin));
    criu.end();
    let made = driver.made.lock().unwrap().clone();
    (answer, made, criu.said(Level::Error).join("\n"))
}

const NODES: [&str; 3] = ["/dev/dri/renderD150", "/dev/dri/renderD151", "/dev/kfd"];

#[test]
fn nodes_that_are_missing_are_made() {
    let (answer, made, said) = restored(&NODES, Ok(()));
    assert_eq!((answer, said.as_str()), (0, ""));
    assert_eq!(made, NODES.map(PathBuf::from));
}

#[test]
fn nodes_that_are_there_are_not_made() {
    let (answer, made, _) = restored(&[], Ok(()));
    assert_eq!((answer, made), (0, Vec::new()));
    let (answer, made, _) = restored(&NODES[1..2], Ok(()));
    assert_eq!((answer, made), (0, vec![NODES[1].into()]));
}

#[test]
fn where_none_can_be_made_the_node_is_named() {
    let (answer, _, said) = restored(&NODES[..1], Err(Errno::EPERM));
    assert_eq!(answer, FAILED);
    assert!(said.contains(NODES[0]) && said.contains("ENOENT"), "{said}");
    let (answer, _, said) = restored(&NODES[2..], Err(Errno::EPERM));
    assert_eq!(answer, FAILED);
    assert!(said.contains("/dev/kfd: open failed: ENOENT"), "{said}");
}
