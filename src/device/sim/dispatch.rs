//! From the number of a request to its handler, as the drivers' tables do it.

use std::{os::fd::OwnedFd, path::Path};

use nix::errno::Errno;

use super::{
    arena::View,
    caller::{Call, Inode},
    drm,
    host::{FileId, FileKind, SimHost},
    kfd, names,
};
use crate::{
    abi::{Plain, request_size, request_type},
    device::DeviceKind,
};

/// Issues an ioctl. What the handler has written is in `argument` afterwards, also where it failed.
pub(super) fn ioctl(host: &SimHost, call: &mut Call<'_>, argument: &mut [u8]) -> nix::Result<()> {
    if argument.len() != request_size(call.request) {
        return Err(Errno::EFAULT);
    }
    let owner = match host.state().file(call.file)? {
        FileKind::Kfd(owner) => Some(*owner),
        FileKind::Render(_) => None,
    };
    if let Some(owner) = owner {
        let gpu_id = names::gpu_id_of(call.request, argument);
        let gpu = gpu_id.and_then(|gpu_id| host.state().kfd.gpu_of(owner, gpu_id));
        host.shared.faults.before(names::of_kfd(call.request), call.pid, gpu)?;
        return kfd::ioctl(host, call, argument);
    }
    let gpu = gpu_of(host, call.file)?;
    host.shared.faults.before(names::of_render(call.request), call.pid, gpu)?;
    if request_type(call.request) != b'd' {
        return Err(Errno::ENOTTY);
    }
    drm::ioctl(host, call, argument)
}

/// Opens a node.
pub(super) fn open(host: &SimHost, pid: u32, path: &Path) -> nix::Result<(FileId, OwnedFd)> {
    let path = path.to_str().ok_or(Errno::ENOENT)?;
    if path == "/dev/kfd" {
        host.shared.faults.before(names::OPEN, pid, None)?;
        return kfd::open(host, pid);
    }
    let minor = path.strip_prefix("/dev/dri/renderD").and_then(|number| number.parse().ok());
    let minor = minor.ok_or(Errno::ENOENT)?;
    host.shared.faults.before(names::OPEN, pid, drm::gpu_of(host, minor))?;
    drm::open(host, pid, minor)
}

/// Maps memory of an open node, of `pid`.
pub(super) fn map(
    host: &SimHost,
    pid: u32,
    file: FileId,
    offset: u64,
    len: u64,
) -> nix::Result<View> {
    let gpu = gpu_of(host, file)?;
    host.shared.faults.before(names::MMAP, pid, gpu)?;
    match gpu {
        None => kfd::map(host, pid, file, offset, len),
        Some(_) => drm::map(host, file, offset, len),
    }
}

/// One descriptor of a file fewer: with the last one all that it is goes.
pub(super) fn release(host: &SimHost, file: FileId) {
    let released = host.state().release(file);
    ended(host, file, released);
}

fn ended(host: &SimHost, file: FileId, released: Option<FileKind>) {
    match released {
        Some(FileKind::Render(render)) => drm::released(host, file, *render),
        Some(FileKind::Kfd(pid)) => kfd::released(host, file, pid),
        None => {}
    }
}

/// Who had a descriptor of a file in hand has closed it.
pub(super) fn let_go(host: &SimHost, file: FileId, inode: Inode) {
    let released = host.state().let_go(file, inode);
    ended(host, file, released);
}

/// What a file is.
pub(super) fn kind(host: &SimHost, file: FileId) -> nix::Result<DeviceKind> {
    Ok(match gpu_of(host, file)? {
        None => DeviceKind::Kfd,
        Some(gpu) => DeviceKind::Render { minor: host.machine().gpus[gpu].render_minor },
    })
}

/// What a descriptor is, by its inode; `None` if it is nothing of this machine.
pub(super) fn kind_of(host: &SimHost, inode: Inode) -> nix::Result<Option<DeviceKind>> {
    let state = host.state();
    if state.is_dma_buf(inode) {
        return Ok(Some(DeviceKind::DmaBuf));
    }
    let id = state.by_inode(inode);
    drop(state);
    id.ok().map(|id| kind(host, id)).transpose()
}

/// The GPU that a file is of; `None` for `/dev/kfd`.
fn gpu_of(host: &SimHost, file: FileId) -> nix::Result<Option<usize>> {
    Ok(match host.state().file(file)? {
        FileKind::Kfd(_) => None,
        FileKind::Render(file) => Some(file.gpu),
    })
}

/// Runs a handler on a structure: the caller's may be shorter (the rest is zero) or longer (the
/// rest is left alone).
pub(super) fn with<T: Plain>(
    argument: &mut [u8],
    handler: impl FnOnce(&mut T) -> nix::Result<()>,
) -> nix::Result<()> {
    let mut value = T::from_prefix(argument);
    let answer = handler(&mut value);
    let len = argument.len().min(size_of::<T>());
    argument[..len].copy_from_slice(&value.as_bytes()[..len]);
    answer
}
