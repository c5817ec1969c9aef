//! mmap of `/dev/kfd`: doorbells, the page of the events, MMIO.

use std::sync::Arc;

use nix::errno::Errno;

use super::{
    super::{
        arena::{Piece, View},
        host::{FileId, FileKind, SimHost},
    },
    event,
    memory::DOORBELL_SLICE,
    process::Device,
};
use crate::abi::kfd::mmap;

const PAGE: u64 = 4096;

/// Maps a part of the file that `pid` has open.
pub(in super::super) fn map(
    host: &SimHost,
    pid: u32,
    file: FileId,
    offset: u64,
    len: u64,
) -> nix::Result<View> {
    let mut state = host.state();
    if !matches!(state.file(file)?, FileKind::Kfd(owner) if *owner == pid) {
        return Err(Errno::EBADF);
    }
    let process = state.kfd.process(pid)?;
    let id = u32::try_from(offset >> mmap::GPU_ID_SHIFT & 0xffff).map_err(|_| Errno::EINVAL)?;
    // By the machine's own names: a process that was restored elsewhere has others.
    let device = process.devices.iter_mut().find(|device| device.actual_id == id);
    match offset & mmap::TYPE_MASK {
        mmap::TYPE_DOORBELL => {
            let device = device.ok_or(Errno::ENODEV)?;
            registers(host, device, |d| &mut d.doorbells, DOORBELL_SLICE, len)
        }
        mmap::TYPE_MMIO => {
            let device = device.ok_or(Errno::ENODEV)?;
            registers(host, device, |d| &mut d.mmio, PAGE, len)
        }
        mmap::TYPE_EVENTS => {
            if len > event::PAGE_SIZE {
                return Err(Errno::EINVAL);
            }
            Ok(process.events.map_kernel_page(len).ok_or(Errno::EINVAL)?.view(0, len))
        }
        // Memory that the kernel reserves for APUs.
        _ => Err(Errno::EINVAL),
    }
}

fn registers(
    host: &SimHost,
    device: &mut Device,
    of: impl Fn(&mut Device) -> &mut Option<Arc<Piece>>,
    size: u64,
    len: u64,
) -> nix::Result<View> {
    if len != size {
        return Err(Errno::EINVAL);
    }
    let piece = of(device);
    match piece {
        Some(piece) => Ok(piece.view(0, len)),
        None => Ok(piece.insert(Arc::new(host.shared.gtt.piece(size)?)).view(0, len)),
    }
}
