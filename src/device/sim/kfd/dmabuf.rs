//! Memory of KFD as dma-bufs, and dma-bufs as memory of KFD.

use std::sync::Arc;

use nix::errno::Errno;

use super::{
    super::{KernelRelease, caller::Slot},
    Io,
    memory::HANDLE_END,
    process::{Bo, handle},
};
use crate::abi::{
    amdgpu::{create, domain},
    drm::{CLOEXEC, RDWR},
    kfd::{ExportDmabuf, GetDmabufInfo, ImportDmabuf, flags},
};

pub(super) fn export(io: &mut Io<'_, '_>, args: &mut ExportDmabuf) -> nix::Result<()> {
    if args.flags & !(CLOEXEC | RDWR) != 0 {
        return Err(Errno::EINVAL);
    }
    let state = &mut *io.host.state();
    let bo = state.kfd.process(io.pid)?.bo(args.handle).ok_or(Errno::EINVAL)?;
    if !bo.has_contents() {
        return Err(Errno::EINVAL);
    }
    let object = Arc::clone(&bo.object);
    let fd = io.host.export(state, &object, args.flags & RDWR != 0)?;
    io.call.descriptors.push((Slot::Argument(std::mem::offset_of!(ExportDmabuf, dmabuf_fd)), fd));
    Ok(())
}

pub(super) fn import(io: &mut Io<'_, '_>, args: &mut ImportDmabuf) -> nix::Result<()> {
    let inode = io.call.memory.inode(args.dmabuf_fd.cast_signed());
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    let place = process.device_index(args.gpu_id).ok_or(Errno::EINVAL)?;
    process.devices[place].bound(Errno::ESRCH)?;
    let gpu = process.devices[place].gpu;
    let object = state.import(inode.map_err(|_| Errno::EINVAL)?)?;
    let foreign = object.gpu != gpu && io.release() == KernelRelease::V6_1;
    let memory = match object.create.domains {
        domain::VRAM => flags::VRAM,
        domain::GTT => flags::GTT,
        _ => return Err(Errno::EINVAL),
    };
    if foreign {
        return Err(Errno::EINVAL);
    }
    let bo = Bo {
        object,
        va: args.va_addr,
        flags: memory | flags::WRITABLE | flags::EXECUTABLE,
        user_address: 0,
        late: None,
        mapped: Vec::new(),
    };
    let device = &mut state.kfd.process(io.pid)?.devices[place];
    let number = device.bos.insert(0, HANDLE_END, bo).ok_or(Errno::ENOSPC)?;
    args.handle = handle(args.gpu_id, number);
    Ok(())
}

pub(super) fn info(io: &mut Io<'_, '_>, args: &mut GetDmabufInfo) -> nix::Result<()> {
    let inode = io.call.memory.inode(args.dmabuf_fd.cast_signed());
    let state = &mut *io.host.state();
    let object = state.import(inode.map_err(|_| Errno::EINVAL)?)?;
    args.flags = match object.create.domains {
        domain::VRAM => flags::VRAM,
        domain::GTT => flags::GTT,
        _ => return Err(Errno::EINVAL),
    };
    if object.create.domain_flags & create::CPU_ACCESS_REQUIRED != 0 {
        args.flags |= flags::PUBLIC;
    }
    args.size = object.size;
    args.metadata_size = 0;
    args.gpu_id = io.host.gpu_ids()[object.gpu];
    Ok(())
}
