//! Where mappings of devices are now.
//!
//! A mapping is known by its place in the mmap space of its device, which belongs to one BO: so it is
//! found wherever in the BO it begins, whether it was split, and however often the BO is mapped. The
//! BO has another place in the new device's space.
//!
//! CRIU knows the file of a mapped character device by a number of its own for each mapping: so it
//! takes the descriptor that it is given for a mapping, and closes it after that one. Where it is given
//! none it opens the path, which is another open file, and has no access to the BO.

use std::os::fd::OwnedFd;

use super::{
    super::{
        context::Context,
        error::{Error, Result},
    },
    Restored,
    render::Render,
};
use crate::device::DeviceKind;

/// An offset at which no device has anything: mapping there fails, and the restore with it. CRIU
/// does not take a no for an answer in this hook.
pub(in crate::plugin) const IMPOSSIBLE_OFFSET: u64 = 0x7fff_ffff_ffff_f000;

/// The type of a place in the mmap space of `/dev/kfd`, and that of the events page, which is no BO's.
const KFD_TYPE_SHIFT: u32 = 62;
const KFD_EVENTS: u64 = 2;

/// Where a mapping is now.
#[derive(Debug)]
pub(in crate::plugin) struct Moved {
    /// Where in the device's mmap space.
    pub offset: u64,
    /// What to map, if CRIU is to be given a descriptor; else it goes by the path.
    pub file: Option<OwnedFd>,
}

/// Which device a path is of, if it is one of ours.
pub(super) fn device(path: &str) -> Option<DeviceKind> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("dev"), Some("kfd"), None, None) => Some(DeviceKind::Kfd),
        (Some("dev"), Some("dri"), Some(node), None) => {
            let minor = node.strip_prefix("renderD")?.parse().ok()?;
            Some(DeviceKind::Render { minor })
        }
        _ => None,
    }
}

/// See [`Restore::mapping`](super::Restore::mapping).
pub(super) fn update(
    (processes, renders): (&[Restored], &[Render]),
    cx: Context<'_>,
    device: DeviceKind,
    offset: u64,
) -> Result<Option<Moved>> {
    let nowhere = || {
        Error::Unsupported(format!(
            "a mapping of {device:?} at offset {offset:#x} is of no BO of the checkpoint: it cannot be restored"
        ))
    };
    match device {
        // No path is one.
        DeviceKind::DmaBuf => Ok(None),
        DeviceKind::Kfd => {
            // (CRIU opens the path: all files of a process are the same to KFD.)
            if offset >> KFD_TYPE_SHIFT == KFD_EVENTS {
                return Ok(None);
            }
            let moved = processes.iter().find_map(|process| process.moves.find(None, offset));
            let offset = moved.ok_or_else(nowhere)?;
            Ok(Some(Moved { offset, file: None }))
        }
        DeviceKind::Render { minor } => {
            let found = processes.iter().find_map(|process| {
                // By the number of the node, or else by any GPU that has something there: a
                // container may have had the node under another name.
                let known = process.gpus.iter().any(|gpu| gpu.old_minor == minor);
                let mut gpus = process.gpus.iter().filter(|gpu| !known || gpu.old_minor == minor);
                gpus.find_map(|gpu| {
                    Some((gpu.render, process.moves.find(Some(gpu.gpu_id), offset)?))
                })
            });
            let found = found.or_else(|| {
                let known = renders.iter().any(|render| render.old_minor == minor);
                let mut renders =
                    renders.iter().filter(|render| !known || render.old_minor == minor);
                renders.find_map(|render| {
                    Some((render.file, render.moves.find(Some(render.gpu_id), offset)?))
                })
            });
            let (stored, offset) = found.ok_or_else(nowhere)?;
            Ok(Some(Moved { offset, file: Some(stored.get(cx.host)?) }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_devices() {
        assert_eq!(device("/dev/kfd"), Some(DeviceKind::Kfd));
        let render = Some(DeviceKind::Render { minor: 129 });
        assert_eq!(device("/dev/dri/renderD129"), render);
        assert_eq!(device("//dev//dri/renderD129"), render);
        for other in
            ["", "/dev", "/dev/dri/card0", "/dev/dri/renderD", "/dev/kfd/x", "/tmp/dev/kfd"]
        {
            assert_eq!(device(other), None, "{other}");
        }
    }
}
