//! The restore, in each task that CRIU makes: from its open files to its mappings.
//!
//! ```text
//!  RESTORE_EXT_FILE /dev/kfd    place     which GPU here for which GPU of the checkpoint
//!                               process   the driver makes BOs, queues, events
//!                               contents  into the BOs
//!                   renderD*    render    the file that KFD was given for that GPU, or another; BOs
//!                   dma-buf               of a BO that is there
//!  UPDATE_VMA_MAP               vma       where a mapping is now
//!  RESUME_DEVICES_LATE          resume    in CRIU itself, when all tasks are there
//! ```
//!
//! Nothing of ours stays in a task: what later hooks need is in CRIU's store of descriptors, which
//! all tasks share and which ends with the restore; threads have ended and memory is given back when
//! a hook returns.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{
    context::Context,
    error::{Error, Result},
    host::Host,
};
use crate::image::ImageName;

mod contents;
mod gem;
mod memory;
mod moves;
mod place;
mod process;
mod render;
mod resume;
mod vma;

pub(super) use resume::Resume;
pub(super) use vma::{IMPOSSIBLE_OFFSET, Moved};

/// What a task has restored so far.
#[derive(Debug, Default)]
pub(super) struct Restore {
    processes: Vec<Restored>,
    renders: Vec<render::Render>,
    /// Render nodes that are being restored before CRIU asks for them.
    under_way: Vec<u32>,
}

/// A process whose GPU state is there again.
#[derive(Debug)]
struct Restored {
    kfd_id: u32,
    /// Its `/dev/kfd`, where a render node had it restored before CRIU asked for it.
    kfd: Option<Stored>,
    gpus: Vec<Gpu>,
    /// Dma-bufs of the BOs that others are of, by the BOs' place in the image.
    shared: Vec<(u32, Stored)>,
    moves: moves::Moves,
}

/// A GPU of a process.
#[derive(Debug)]
struct Gpu {
    /// What the process calls it.
    gpu_id: u32,
    /// The number of its render node where the process was dumped.
    old_minor: u32,
    /// The number of its render node here.
    minor: u32,
    /// The open render node that the driver was given.
    render: Stored,
}

/// A descriptor in CRIU's store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored(i32);

impl Stored {
    fn put(host: &dyn Host, fd: BorrowedFd<'_>) -> Result<Self> {
        let number = host.store(fd).map_err(Error::criu("store a descriptor"))?;
        Ok(Stored(number))
    }

    fn get(self, host: &dyn Host) -> Result<OwnedFd> {
        host.stored(self.0).map_err(Error::criu("give back a stored descriptor"))
    }
}

impl Restore {
    /// Restores an open file; `None` if it is not ours.
    pub(super) fn file(&mut self, cx: Context<'_>, id: u32) -> Result<Option<OwnedFd>> {
        let known = self.processes.iter().find(|process| process.kfd_id == id);
        if let Some(kfd) = known.and_then(|process| process.kfd) {
            return Ok(Some(kfd.get(cx.host)?));
        }
        let known = self.renders.iter().find(|render| render.id == id);
        if let Some(render) = known {
            return Ok(Some(render.file.get(cx.host)?));
        }
        let images = cx.images();
        let name = ImageName::Kfd { id }.to_string();
        if let Some(bytes) = images.read(&name)? {
            let (kfd, restored) = process::restore(cx, id, &name, &bytes)?;
            self.processes.extend(restored);
            return Ok(Some(kfd));
        }
        let name = ImageName::Render { id }.to_string();
        if let Some(bytes) = images.read(&name)? {
            return self.render(cx, id, &bytes).map(Some);
        }
        let name = ImageName::Dmabuf { id }.to_string();
        if cx.settings.has_late_hook
            && let Some(bytes) = images.read(&name)?
        {
            return self.dmabuf(cx, id, &bytes).map(Some);
        }
        Ok(None)
    }

    /// Restores a process before CRIU asks for its `/dev/kfd`.
    fn kfd_first(&mut self, cx: Context<'_>, kfd_id: u32) -> Result<()> {
        let name = ImageName::Kfd { id: kfd_id }.to_string();
        let missing = || Error::Content { file: name.clone(), what: "it is missing".into() };
        let bytes = cx.images().read(&name)?.ok_or_else(missing)?;
        let (kfd, restored) = process::restore(cx, kfd_id, &name, &bytes)?;
        let kfd = Stored::put(cx.host, kfd.as_fd())?;
        let restored = restored.unwrap_or_else(|| Restored {
            kfd_id,
            kfd: None,
            gpus: Vec::new(),
            shared: Vec::new(),
            moves: moves::Moves::default(),
        });
        self.processes.push(Restored { kfd: Some(kfd), ..restored });
        Ok(())
    }

    /// A mapping of a device: where it is now. `None` if that is nothing of ours or as it was.
    pub(super) fn mapping(
        &mut self,
        cx: Context<'_>,
        path: &str,
        offset: u64,
    ) -> Result<Option<Moved>> {
        let Some(device) = vma::device(path) else { return Ok(None) };
        vma::update((&self.processes, &self.renders), cx, device, offset)
    }
}
