//! What CRIU and its plugins know of each other ("criu/include/criu-plugin.h", interface 0.2.0).
//!
//! The interface's version has not changed since hooks were added to it, so it tells nobody apart;
//! the number of hooks does.

/// The version of the interface.
pub const VERSION: u32 = 0x200;

/// The hooks of the oldest CRIU that is known here: each later one has these too.
pub const FEWEST_HOOKS: u32 = 10;

/// The most hooks of any CRIU that is known here.
pub const MOST_HOOKS: usize = 15;

/// The CRIU versions that are known here, by their number of hooks.
pub const KNOWN_HOSTS: [(usize, &str); 4] = [
    (10, "3.17 to 3.19"),
    (12, "4.0 and 4.1"),
    (13, "4.2"),
    (15, "the development branch after 4.2"),
];

/// The first number of hooks with which `RESTORE_EXT_FILE` has a second argument.
pub const HOOKS_WITH_RETRY: usize = 15;

/// The places of the hooks.
pub mod hook {
    #![allow(missing_docs)] // CRIU's names say it
    pub const DUMP_EXT_FILE: usize = 2;
    pub const RESTORE_EXT_FILE: usize = 3;
    pub const HANDLE_DEVICE_VMA: usize = 7;
    pub const UPDATE_VMA_MAP: usize = 8;
    pub const RESUME_DEVICES_LATE: usize = 9;
    pub const PAUSE_DEVICES: usize = 10;
    pub const CHECKPOINT_DEVICES: usize = 11;
    pub const POST_FORKING: usize = 12;
    pub const RESTORE_INIT: usize = 13;
    pub const DUMP_DEVICES_LATE: usize = 14;
}

/// What CRIU is doing: the argument of `init` and `exit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It dumps.
    Dump,
    /// It dumps memory ahead of a dump.
    PreDump,
    /// It restores.
    Restore,
}

impl Stage {
    /// The stage of a number.
    pub fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Stage::Dump,
            1 => Stage::PreDump,
            2 => Stage::Restore,
            _ => return None,
        })
    }
}

/// How much a message matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Level {
    /// Something failed.
    Error = 1,
    /// Something may be wrong.
    Warning = 2,
    /// What happens.
    Info = 3,
    /// How it happens.
    Debug = 4,
}

/// The answer to a hook that is about something of somebody else's.
pub const NOT_OURS: i32 = -95;
/// The answer to a hook that failed.
pub const FAILED: i32 = -1;
/// The answer of `UPDATE_VMA_MAP` when there is a new offset.
pub const NEW_OFFSET: i32 = 1;

/// Descriptors of CRIU's own (`get_service_fd`).
pub mod service_fd {
    /// The connection to the image streamer: there is one with `--stream` alone.
    pub const IMG_STREAMER: i32 = 3;
}

/// How `img_streamer_open` is told what an image is opened for; other flags make CRIU abort.
pub mod open_flags {
    /// To write it.
    pub const DUMP: i32 = 0x241;
    /// To read it.
    pub const RESTORE: i32 = 0;
}

/// The list heads in `cr_plugin_ctl`: one, and one for each hook, of two pointers each.
pub const LIST_HEAD_BYTES: usize = 16;

/// How many hooks a CRIU knows whose `cr_plugin_ctl` has so many bytes.
pub fn hooks_of(control_bytes: usize) -> Option<usize> {
    (control_bytes / LIST_HEAD_BYTES).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_by_the_size_of_the_control_block() {
        assert_eq!([208, 224, 256].map(hooks_of), [12, 13, 15].map(Some));
        assert_eq!(hooks_of(0), None);
    }
}
