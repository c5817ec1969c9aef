//! The render nodes.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
};

use nix::errno::Errno;

use super::{
    caller::Call,
    host::{FileId, FileKind, SimHost},
    vm::Vm,
};
use crate::device::DeviceMemory;

/// An open render node.
#[derive(Debug)]
pub(super) struct RenderFile {
    /// Which GPU's.
    pub gpu: usize,
    /// Who opened it.
    pub pid: u32,
    /// Its address space.
    pub vm: Arc<Mutex<Vm>>,
    /// The KFD process whose compute address space this is.
    pub kfd_pid: Option<u32>,
}

pub(super) fn open(host: &SimHost, pid: u32, minor: u32) -> nix::Result<(FileId, OwnedFd)> {
    let gpus = &host.shared.machine.gpus;
    let gpu = gpus.iter().position(|gpu| gpu.render_minor == minor).ok_or(Errno::ENOENT)?;
    let file = RenderFile { gpu, pid, vm: Arc::default(), kfd_pid: None };
    host.state().open(&format!("renderD{minor}"), FileKind::Render(Box::new(file)))
}

pub(super) fn ioctl(host: &SimHost, call: &mut Call<'_>, argument: &mut [u8]) -> nix::Result<()> {
    let _ = (host, call, argument);
    Err(Errno::EINVAL)
}

pub(super) fn map(
    host: &SimHost,
    file: FileId,
    offset: u64,
    len: u64,
) -> nix::Result<DeviceMemory> {
    let _ = (host, file, offset, len);
    Err(Errno::EINVAL)
}

pub(super) fn released(host: &SimHost, id: FileId, file: RenderFile) {
    let _ = (host, id, file);
}
