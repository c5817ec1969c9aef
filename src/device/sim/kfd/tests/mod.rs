//! Tests of `/dev/kfd`.

mod cycle;

use nix::errno::Errno;

use crate::device::DeviceError;

/// The answer of a call that failed.
fn errno(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Call { errno, .. } => *errno,
        other => panic!("{other}"),
    }
}
