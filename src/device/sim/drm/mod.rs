//! The render nodes.

use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::{
    caller::Call,
    host::{FileId, SimHost},
};
use crate::device::DeviceMemory;

/// An open render node.
#[derive(Debug)]
pub(super) struct RenderFile {
    /// Which GPU's.
    pub gpu: usize,
    /// Who opened it.
    pub pid: u32,
}

pub(super) fn open(host: &SimHost, pid: u32, minor: u32) -> nix::Result<(FileId, OwnedFd)> {
    let _ = (host, pid, minor);
    Err(Errno::ENXIO)
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
