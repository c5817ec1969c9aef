//! Objects as dma-bufs, out and in.

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
};

use super::handles::User;
use crate::{
    abi::{
        amdgpu::create,
        drm::{CLOEXEC, PrimeHandle, RDWR},
    },
    device::sim::{
        caller::{Call, Slot},
        host::SimHost,
    },
};

pub(super) fn handle_to_fd(
    host: &SimHost,
    call: &mut Call<'_>,
    prime: &mut PrimeHandle,
) -> nix::Result<()> {
    check_flags(prime)?;
    let mut state = host.state();
    let handle = state.render(call.file)?.handles.get(prime.handle).ok_or(Errno::ENOENT)?;
    let object = handle.object.clone();
    if object.is_user() || object.create.domain_flags & create::VM_ALWAYS_VALID != 0 {
        return Err(Errno::EPERM);
    }
    let fd = host.export(&mut state, &object, prime.flags & RDWR != 0)?;
    if prime.flags & CLOEXEC != 0 {
        fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    }
    call.descriptors.push((Slot::Argument(std::mem::offset_of!(PrimeHandle, fd)), fd));
    Ok(())
}

pub(super) fn fd_to_handle(
    host: &SimHost,
    call: &mut Call<'_>,
    prime: &mut PrimeHandle,
) -> nix::Result<()> {
    check_flags(prime)?;
    if prime.fd < 0 {
        let what = format!("PRIME_FD_TO_HANDLE of {}, which is no descriptor", prime.fd);
        host.shared.log.complain(call.pid, what);
    }
    let inode = call.memory.inode(prime.fd)?;
    let mut state = host.state();
    let object = state.import(inode)?;
    prime.handle = state.render(call.file)?.handles.enter(object, User::Checked);
    Ok(())
}

/// The same in both directions.
fn check_flags(prime: &PrimeHandle) -> nix::Result<()> {
    if prime.flags & !(CLOEXEC | RDWR) == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}
