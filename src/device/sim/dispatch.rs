//! From the number of a request to its handler, as the drivers' tables do it.

use nix::errno::Errno;

use super::{
    caller::Call,
    drm,
    host::{FileKind, SimHost},
    kfd,
};
use crate::abi::{Plain, request_size, request_type};

/// Issues an ioctl. What the handler has written is in `argument` afterwards, also where it failed.
pub(super) fn ioctl(host: &SimHost, call: &mut Call<'_>, argument: &mut [u8]) -> nix::Result<()> {
    if argument.len() != request_size(call.request) {
        return Err(Errno::EFAULT);
    }
    let is_kfd = matches!(host.state().file(call.file)?, FileKind::Kfd(_));
    if is_kfd {
        return kfd::ioctl(host, call, argument);
    }
    if request_type(call.request) != b'd' {
        return Err(Errno::ENOTTY);
    }
    drm::ioctl(host, call, argument)
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
