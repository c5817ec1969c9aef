//! `/dev/kfd`.

use std::os::fd::OwnedFd;

use nix::errno::Errno;

use super::{
    caller::Call,
    host::{FileId, SimHost},
};
use crate::device::DeviceMemory;

/// The KFD processes.
#[derive(Debug, Default)]
pub(super) struct KfdState {}

pub(super) fn open(host: &SimHost, pid: u32) -> nix::Result<(FileId, OwnedFd)> {
    let _ = (host, pid);
    Err(Errno::ENXIO)
}

pub(super) fn ioctl(host: &SimHost, call: &mut Call<'_>, argument: &mut [u8]) -> nix::Result<()> {
    let _ = (host, call, argument);
    Err(Errno::ENOTTY)
}

pub(super) fn map(
    host: &SimHost,
    pid: u32,
    file: FileId,
    offset: u64,
    len: u64,
) -> nix::Result<DeviceMemory> {
    let _ = (host, pid, file, offset, len);
    Err(Errno::EINVAL)
}

pub(super) fn released(host: &SimHost, id: FileId, pid: u32) {
    let _ = (host, id, pid);
}
