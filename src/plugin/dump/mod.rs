//! The dump: from the first descriptor that CRIU shows to the moment when the queues run again.
//!
//! ```text
//!  DUMP_EXT_FILE /dev/kfd     process   a guardian is told; queues stop; state; contents on their way
//!  DUMP_EXT_FILE renderD*     render    which GPU it is of; its BOs, when its process is known
//!  DUMP_EXT_FILE dma-buf      dmabuf    kept
//!  DUMP_DEVICES_LATE          which BO each dma-buf is of; the contents have been taken, or the dump
//!                             fails (CRIU after 4.2)
//!  exit                       queues run again: once for each process, whatever has happened
//! ```
//!
//! Queues stay stopped until `exit`, which CRIU calls last: memory that a queue can write to, userptr
//! memory above all, is dumped after the hooks for files.

use std::os::fd::BorrowedFd;

use super::{
    context::Context,
    error::{Error, Result},
    guardian::Guardian,
    host::NAME,
    settings::Join,
};
use crate::{
    abi::criu::Level,
    device::{DeviceKind, Kfd},
    gpu::Paused,
    handoff::Pending,
    image::{self, ImageName, RenderOwner},
    topology::Topology,
};

mod contents;
mod dmabuf;
mod gem;
mod gem_contents;
mod known;
mod memory;
mod process;
mod render;

use dmabuf::{Dmabuf, Shared};
use known::Known;
pub(super) use memory::{SEMAPHORE, SHARED_MEMORY, not_a_file};
use process::Process;
use render::Render;

/// What a dump has so far.
#[derive(Debug, Default)]
pub(super) struct Dump {
    in_inventory: bool,
    /// The machine, read when it was first needed.
    topology: Option<Topology>,
    /// Whether the driver is known to be recent enough.
    version_known: bool,
    processes: Vec<Process>,
    /// Queues that are stopped.
    paused: Vec<Paused<Kfd>>,
    /// Starts them if nobody else does. (It is dropped after them.)
    guardian: Guardian,
    /// Contents that the streamer is taking.
    pending: Vec<(String, Pending)>,
    renders: Vec<Render>,
    dmabufs: Vec<Dmabuf>,
    /// Who made which BO, where that is needed.
    known: Known,
    /// The BOs of so many processes are known.
    entered: usize,
    shared: Shared,
    /// How many BOs of processes have a number of their own in this dump.
    handles: u32,
    /// Render nodes that came since the last `/dev/kfd`, if there was one.
    since_kfd: Vec<u32>,
}

impl Dump {
    /// An open file of a task: whether it is ours.
    pub(super) fn file(&mut self, cx: Context<'_>, fd: BorrowedFd<'_>, id: u32) -> Result<bool> {
        let identified = cx.system.driver().identify(fd);
        let kind = identified
            .map_err(|errno| Error::Criu { what: "show a file".into(), source: errno.into() })?;
        let kind = match kind {
            None => return Ok(false),
            // Others cannot have been restored by anybody.
            Some(DeviceKind::DmaBuf) if !cx.settings.has_late_hook => return Ok(false),
            Some(kind) => kind,
        };
        self.enter_inventory(cx)?;
        cx.images().forget(&image::all_names(id))?;
        match kind {
            DeviceKind::Kfd => self.kfd(cx, fd, id)?,
            DeviceKind::Render { minor } => self.render(cx, fd, id, minor)?,
            DeviceKind::DmaBuf => self.dmabuf(fd, id)?,
        }
        Ok(true)
    }

    /// A mapping of a device: whether it is ours.
    pub(super) fn mapping(&mut self, cx: Context<'_>, device: u64) -> Result<bool> {
        if cx.system.device(device).is_none() {
            return Ok(false);
        }
        self.enter_inventory(cx)?;
        Ok(true)
    }

    /// All tasks have been dumped; an error here still fails the dump.
    pub(super) fn late(&mut self, cx: Context<'_>) -> Result<()> {
        self.write_dmabufs(cx)?;
        self.write_shared(cx)?;
        self.wait_for_contents(cx)
    }

    /// The end, whatever has happened: what could not be done.
    pub(super) fn end(&mut self, cx: Context<'_>, failed: bool) -> Vec<Error> {
        let mut errors = Vec::new();
        // Nobody needs the contents of a dump that has failed; the process waits to go on.
        if !failed && let Err(error) = self.wait_for_contents(cx) {
            errors.push(error);
        }
        if !cx.settings.has_late_hook
            && let Err(error) = self.write_shared(cx)
        {
            errors.push(error);
        }
        self.pending.clear();
        self.known = Known::default();
        if failed && let Err(error) = cx.images().take_back() {
            errors.push(error);
        }
        // One that cannot be started again must not keep the others stopped.
        for paused in self.paused.drain(..) {
            if let Err(error) = paused.unpause() {
                errors.push(error.into());
            }
        }
        self.guardian = Guardian::default();
        errors
    }

    fn enter_inventory(&mut self, cx: Context<'_>) -> Result<()> {
        if self.in_inventory {
            return Ok(());
        }
        let what = format!("say in the inventory that the image needs {NAME}");
        cx.host.add_to_inventory().map_err(Error::criu(what))?;
        self.in_inventory = true;
        Ok(())
    }

    /// Waits until the streamer has all contents.
    fn wait_for_contents(&mut self, cx: Context<'_>) -> Result<()> {
        for (name, pending) in self.pending.drain(..) {
            pending.wait()?;
            cx.say(Level::Info, &format!("{name}: the streamer has all contents"));
        }
        Ok(())
    }

    /// Contents were handed over: waits for them here where there is no later place to fail.
    fn handed_over(&mut self, cx: Context<'_>, name: String, pending: Pending) -> Result<()> {
        self.pending.push((name, pending));
        match cx.settings.join {
            Join::Hook if !cx.settings.has_late_hook => self.wait_for_contents(cx),
            Join::Hook | Join::Exit => Ok(()),
        }
    }

    fn topology(&mut self, cx: Context<'_>) -> Result<&Topology> {
        if self.topology.is_none() {
            self.topology = Some(Topology::from_sysfs(cx.system.topology_root())?);
        }
        // (It is there now.)
        self.topology.as_ref().ok_or(Error::GivenUp)
    }

    /// Render nodes that came since the process before may belong to this one: a task has it alone, and
    /// may have opened them first.
    fn may_own_earlier_renders(&mut self, cx: Context<'_>, kfd_id: u32) -> Result<()> {
        for id in std::mem::take(&mut self.since_kfd) {
            let name = image::next_owner_name(id);
            let mut bytes = Vec::new();
            RenderOwner { kfd_id, ..RenderOwner::default() }.write(&name, &mut bytes)?;
            cx.images().write(&name, &bytes)?;
        }
        Ok(())
    }
}

/// The name of a process's image, for messages too.
fn kfd_name(id: u32) -> String {
    ImageName::Kfd { id }.to_string()
}
