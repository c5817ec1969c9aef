//! The CRIU plugin: what `libvramstream.so` is when CRIU loads it as `amdgpu_plugin.so`.
//!
//! ```text
//!  CRIU ──► edge     C functions, CRIU's symbols; no panic gets out
//!           Plugin   which hook is whose business: ours, somebody else's, or a failure
//!           dump     queues stop, state and contents to images, queues run
//!           guardian queues run although CRIU was killed
//!           restore  a plan, state and contents into devices, mappings, queues run
//!           images   a directory, or an image streamer
//! ```
//!
//! It reads and writes the image files of CRIU's own amdgpu plugin ([`image`](crate::image)), and
//! beside them its checksums. Contents of GPUs go to a directory, through a streamer's pipes, or are
//! handed over to a streamer that copies them itself ([`handoff`](crate::handoff)).
//!
//! # Where there is nothing to do
//!
//! On a machine without KFD, for files and mappings of other devices, and in a restore whose
//! inventory does not name the plugin, it is as if it were not there: every hook answers that this is
//! not its business, nothing is said, no device is opened.
//!
//! # What it promises
//!
//! - Queues are stopped once and started once, on every path; `exit` is the net, and the guardian if
//!   CRIU does not get there.
//! - A restore knows where everything goes before it touches a device.
//! - What fails is named, and fails CRIU's command where CRIU lets it; where it does not, it is
//!   logged as an error.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::{
    abi::criu::{FAILED, KNOWN_HOSTS, Level, NEW_OFFSET, NOT_OURS, Stage},
    system::System,
};

mod context;
mod dump;
#[allow(unsafe_code)] // C calls, and is called
mod edge;
mod error;
mod gpus;
mod guardian;
mod host;
mod images;
mod log;
mod restore;
mod settings;
#[cfg(test)]
mod tests;

pub use error::Error;
pub use settings::JOIN as JOIN_VARIABLE;

use context::Context;
use dump::Dump;
use error::Result;
use host::Host;
use images::Published;
use restore::{IMPOSSIBLE_OFFSET, Restore, Resume};
use settings::Settings;

/// What happens to an answer of `UPDATE_VMA_MAP`.
struct Mapping {
    answer: i32,
    offset: Option<u64>,
    file: Option<OwnedFd>,
}

/// The plugin in one run of CRIU, and in each task that it restores.
struct Plugin {
    host: Box<dyn Host>,
    system: System,
    published: Published,
    active: Option<Active>,
}

/// What there is where there is something to do.
struct Active {
    stage: Stage,
    settings: Settings,
    dump: Dump,
    restore: Restore,
    resume: Resume,
}

impl Plugin {
    /// Begins: `Err` fails CRIU's command before it has touched anything.
    fn start(host: Box<dyn Host>, system: System, stage: Stage) -> std::result::Result<Self, i32> {
        let active = match Self::activate(&*host, &system, stage) {
            Ok(active) => active,
            Err(error) => {
                log::failure(&*host, &error);
                return Err(FAILED);
            }
        };
        Ok(Plugin { host, system, published: Published::default(), active })
    }

    fn activate(host: &dyn Host, system: &System, stage: Stage) -> Result<Option<Active>> {
        if !system.has_kfd() {
            // CRIU would say that the plugin is missing.
            let is_named = stage == Stage::Restore && host.take_from_inventory() == Some(true);
            return if is_named { Err(Error::NoDriver) } else { Ok(None) };
        }
        let hooks = host.hooks();
        let known = hooks.filter(|hooks| KNOWN_HOSTS.iter().any(|(known, _)| known == hooks));
        let Some(hooks) = known else {
            let known = KNOWN_HOSTS.map(|(hooks, versions)| format!("{versions} ({hooks})"));
            return Err(Error::Host { hooks, known: known.join(", ") });
        };
        if stage == Stage::Restore && host.take_from_inventory() == Some(false) {
            return Ok(None);
        }
        let settings = Settings::new(stage, hooks, |name| std::env::var_os(name))?;
        Ok(Some(Active {
            stage,
            settings,
            dump: Dump::default(),
            restore: Restore::default(),
            resume: Resume::default(),
        }))
    }

    /// Runs a hook: `None` is for what is not ours.
    fn hook<T>(
        &mut self,
        hook: impl FnOnce(&mut Active, Context<'_>) -> Result<Option<T>>,
    ) -> std::result::Result<T, i32> {
        let Plugin { host, system, published, active } = self;
        let Some(active) = active else { return Err(NOT_OURS) };
        let settings = active.settings;
        let cx = Context { host: &**host, system, settings: &settings, published };
        match hook(active, cx) {
            Ok(answer) => answer.ok_or(NOT_OURS),
            Err(error) => {
                log::failure(&**host, &error);
                Err(FAILED)
            }
        }
    }

    fn dump_file(&mut self, fd: BorrowedFd<'_>, id: u32) -> i32 {
        let done = self.hook(|active, cx| Ok(active.dump.file(cx, fd, id)?.then_some(0)));
        done.unwrap_or_else(|answer| answer)
    }

    fn device_mapping(&mut self, device: u64) -> i32 {
        let done = self.hook(|active, cx| match active.stage {
            // Nothing that is written ahead of a dump says what plugins it needs.
            Stage::PreDump => Ok(cx.system.device(device).map(|_| 0)),
            Stage::Dump | Stage::Restore => Ok(active.dump.mapping(cx, device)?.then_some(0)),
        });
        done.unwrap_or_else(|answer| answer)
    }

    fn dump_late(&mut self) -> i32 {
        // Nothing that was dumped is no reason to fail.
        let done = self.hook(|active, cx| active.dump.late(cx).map(|()| Some(0)));
        done.unwrap_or_else(|answer| answer)
    }

    fn restore_file(&mut self, id: u32) -> std::result::Result<OwnedFd, i32> {
        self.hook(|active, cx| active.restore.file(cx, id))
    }

    fn restore_mapping(&mut self, path: &str, offset: u64) -> Mapping {
        match self.hook(|active, cx| active.restore.mapping(cx, path, offset)) {
            Ok(moved) => {
                Mapping { answer: NEW_OFFSET, offset: Some(moved.offset), file: moved.file }
            }
            // CRIU would go on with the old offset, which may be something else's by now.
            Err(FAILED) => {
                Mapping { answer: NEW_OFFSET, offset: Some(IMPOSSIBLE_OFFSET), file: None }
            }
            Err(answer) => Mapping { answer, offset: None, file: None },
        }
    }

    fn resume(&mut self, pid: u32) -> i32 {
        let done = self.hook(|active, cx| Ok(active.resume.task(cx, pid)?.then_some(0)));
        done.unwrap_or_else(|answer| answer)
    }

    fn finish(mut self, failed: bool) {
        let _ = self.hook(|active, cx| {
            if active.stage == Stage::Dump {
                for error in active.dump.end(cx, failed) {
                    log::failure(cx.host, &error);
                }
            }
            let left = active.resume.left(cx);
            if active.stage == Stage::Restore && !failed && left > 0 {
                let what = format!("the queues of {left} restored processes do not run");
                log::say(cx.host, Level::Error, &what);
            }
            Ok(Some(()))
        });
    }
}
