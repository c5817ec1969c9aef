//! The restore, in each task that CRIU makes: from its open files to its mappings.
//!
//! ```text
//!  RESTORE_EXT_FILE /dev/kfd    place     which GPU here for which GPU of the checkpoint
//!                               process   the driver makes BOs, queues, events
//!                               contents  into the BOs
//!                   renderD*    the file that the driver was given for that GPU
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
use crate::image::{self, ImageName, RenderNode};

mod contents;
mod memory;
mod place;
mod process;
mod resume;
mod vma;

pub(super) use resume::Resume;
pub(super) use vma::{IMPOSSIBLE_OFFSET, Moved};

/// What a task has restored so far.
#[derive(Debug, Default)]
pub(super) struct Restore {
    processes: Vec<Restored>,
    chain: vma::Chain,
}

/// A process whose GPU state is there again.
#[derive(Debug)]
struct Restored {
    kfd_id: u32,
    /// Its `/dev/kfd`, where a render node had it restored before CRIU asked for it.
    kfd: Option<Stored>,
    gpus: Vec<Gpu>,
    moves: vma::Moves,
}

/// A GPU of a process.
#[derive(Debug)]
struct Gpu {
    /// What the process calls it.
    gpu_id: u32,
    /// The number of its render node where the process was dumped.
    old_minor: u32,
    /// The open render node that the driver was given.
    render: Stored,
}

/// A descriptor in CRIU's store.
#[derive(Debug, Clone, Copy)]
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
        let images = cx.images();
        let name = ImageName::Kfd { id }.to_string();
        if let Some(bytes) = images.read(&name)? {
            let (kfd, restored) = process::restore(cx, id, &name, &bytes)?;
            self.processes.extend(restored);
            return Ok(Some(kfd));
        }
        let name = ImageName::Render { id }.to_string();
        if let Some(bytes) = images.read(&name)? {
            let image = RenderNode::read(&name, &mut bytes.as_slice())?;
            return self.render(cx, id, &name, &image).map(Some);
        }
        Ok(None)
    }

    fn render(
        &mut self,
        cx: Context<'_>,
        id: u32,
        name: &str,
        image: &RenderNode,
    ) -> Result<OwnedFd> {
        if self.processes.iter().all(|process| process.gpus.is_empty()) {
            self.owner_first(cx, id)?;
        }
        let gpus = || self.processes.iter().flat_map(|process| &process.gpus);
        // Its number is what it is; what it was called depends on who was asked.
        let by_minor = image.render_minor.filter(|&minor| minor != 0);
        let by_minor = by_minor.and_then(|minor| gpus().find(|gpu| gpu.old_minor == minor));
        let found = by_minor.or_else(|| gpus().find(|gpu| gpu.gpu_id == image.gpu_id));
        match found {
            Some(gpu) => gpu.render.get(cx.host),
            None => Err(Error::Content {
                file: name.to_owned(),
                what: format!(
                    "it is an open render node of GPU {:#06x}, and no process of this task uses that GPU through /dev/kfd: such a process cannot be restored",
                    image.gpu_id
                ),
            }),
        }
    }

    /// A render node that comes before its `/dev/kfd`: restores that one first.
    fn owner_first(&mut self, cx: Context<'_>, render_id: u32) -> Result<()> {
        let images = cx.images();
        let name = image::owner_name(render_id);
        let Some(bytes) = images.read(&name)? else { return Ok(()) };
        let kfd_id = image::read_owner(&name, &mut bytes.as_slice())?;
        let name = ImageName::Kfd { id: kfd_id }.to_string();
        let missing = || Error::Content { file: name.clone(), what: "it is missing".into() };
        let bytes = images.read(&name)?.ok_or_else(missing)?;
        let (kfd, restored) = process::restore(cx, kfd_id, &name, &bytes)?;
        let kfd = Stored::put(cx.host, kfd.as_fd())?;
        let bare = || Restored { kfd_id, kfd: None, gpus: Vec::new(), moves: Default::default() };
        let restored = restored.unwrap_or_else(bare);
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
        vma::update(&mut self.chain, &self.processes, cx, device, offset)
    }
}
