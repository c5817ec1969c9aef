//! Open render nodes and dma-bufs.
//!
//! A process may have several files of a GPU's render node, and KFD was given one of them: its
//! address space is the one in which queues run. Another file is in its place here, which was given
//! to KFD before this one was asked for. So who was that file gets it, and the others get files of
//! their own. Where the checkpoint does not say which it was (its kernel does not tell of BOs, or
//! CRIU's own plugin made it), each gets KFD's, as with that plugin; but of those that have BOs only
//! the first, since handles of two files are the same numbers.

use std::os::fd::{AsFd, OwnedFd};

use super::{
    super::{
        context::Context,
        error::{Error, Result},
        gpus::render_path,
    },
    Restore, Stored,
    gem::{self, Plan},
    moves::Moves,
};
use crate::{
    abi::criu::Level,
    device::RenderNode,
    image::{
        self, BoName, DmabufNode, DmabufOwner, ImageName, RenderOwner, dmabuf_owner_name,
        next_owner_name, owner_name,
    },
    stage::Crc32,
};

/// A render node that is there again.
#[derive(Debug)]
pub(super) struct Render {
    pub id: u32,
    pub file: Stored,
    /// The number of its node where the process was dumped.
    pub old_minor: u32,
    /// What the process calls its GPU.
    pub gpu_id: u32,
    pub moves: Moves,
    handles: Vec<u32>,
}

impl Restore {
    /// Restores an open render node.
    pub(super) fn render(&mut self, cx: Context<'_>, id: u32, bytes: &[u8]) -> Result<OwnedFd> {
        let name = ImageName::Render { id }.to_string();
        let image = image::RenderNode::read(&name, &mut { bytes })?;
        let owner = self.owner(cx, id, &name, bytes)?;
        let wrong = |what: String| Error::Content { file: name.clone(), what };
        // Its number is what it is; what it was called depends on who was asked.
        let by_minor = image.render_minor.filter(|&minor| minor != 0);
        let of_owner = |kfd_id: u32| owner.as_ref().is_none_or(|owner| owner.kfd_id == kfd_id);
        let gpus = || {
            let processes = self.processes.iter().filter(|process| of_owner(process.kfd_id));
            processes.flat_map(|process| &process.gpus)
        };
        let by_minor = by_minor.and_then(|minor| gpus().find(|gpu| gpu.old_minor == minor));
        let found = by_minor.or_else(|| gpus().find(|gpu| gpu.gpu_id == image.gpu_id));
        let gpu = found.ok_or_else(|| {
            wrong(format!(
                "it is an open render node of GPU {:#06x}, and no process of this task uses that GPU through /dev/kfd: such a process cannot be restored",
                image.gpu_id
            ))
        })?;
        let (minor, old_minor, gpu_id, kfds) = (gpu.minor, gpu.old_minor, gpu.gpu_id, gpu.render);
        let is_compute = match owner.as_ref().and_then(|owner| owner.is_compute) {
            Some(is_compute) => is_compute,
            None if image.bos.is_empty() => true,
            None => {
                let taken = |render: &Render| render.file == kfds && !render.handles.is_empty();
                let is_first = !self.renders.iter().any(taken);
                if owner.is_none() {
                    let whose = if is_first { "the one that KFD was given" } else { "not" };
                    cx.say(
                        Level::Warning,
                        &format!("{name}: the checkpoint does not say which file KFD was given; this one is taken to be {whose}"),
                    );
                }
                is_first
            }
        };
        let mut restored = Render {
            id,
            file: kfds,
            old_minor,
            gpu_id,
            moves: Moves::default(),
            handles: image.bos.iter().map(|bo| bo.handle).collect(),
        };
        let driver = &**cx.system.driver();
        let mut open = None;
        if !is_compute {
            let render = RenderNode::open(driver, &render_path(minor))?;
            restored.file = Stored::put(cx.host, render.as_fd())?;
            open = Some(render);
        }
        if !image.bos.is_empty() {
            self.restore_imports(cx, owner.as_ref())?;
            let render = match open.take() {
                Some(render) => render,
                None => {
                    RenderNode::adopt(driver, &render_path(minor), restored.file.get(cx.host)?)?
                }
            };
            // (What the process calls the GPU: an image that came before /dev/kfd does not know.)
            let image = image::RenderNode { gpu_id, ..image };
            let source = |bo| self.source(cx, bo);
            let plan = Plan { id, image: &image, owner: owner.as_ref(), minor, source: &source };
            restored.moves = gem::restore(cx, &render, plan)?;
            cx.say(Level::Info, &format!("{name}: {} BOs are restored", image.bos.len()));
        }
        let file = restored.file.get(cx.host)?;
        self.renders.push(restored);
        Ok(file)
    }

    /// What a render node is to its process, where the checkpoint says so; a process that comes after
    /// it is restored first.
    fn owner(
        &mut self,
        cx: Context<'_>,
        id: u32,
        name: &str,
        image: &[u8],
    ) -> Result<Option<RenderOwner>> {
        let owner_name = owner_name(id);
        let Some(bytes) = cx.images().read(&owner_name)? else {
            self.next_process_first(cx, id)?;
            return Ok(None);
        };
        let owner = RenderOwner::read(&owner_name, &mut bytes.as_slice())?;
        let found = (image.len() as u64, Crc32::of(image).value);
        if owner.image.0 != 0 && owner.image != found {
            let what = format!(
                "damaged: it has {} bytes with the checksum {:08x}, and {owner_name} says {} bytes with {:08x}",
                found.0, found.1, owner.image.0, owner.image.1
            );
            return Err(Error::Content { file: name.to_owned(), what });
        }
        let is_here = self.processes.iter().any(|process| process.kfd_id == owner.kfd_id);
        if !is_here && owner.after_kfd && owner.bos.is_empty() && owner.imports.is_empty() {
            // Taken for another task's, which was dumped before. Nothing depends on it.
            self.next_process_first(cx, id)?;
            if !self.processes.is_empty() {
                return Ok(None);
            }
        }
        self.process_first(cx, name, owner.kfd_id, owner.after_kfd)?;
        Ok(Some(owner))
    }

    /// In a task without a process on `/dev/kfd`: restores the one that came next after a render node.
    fn next_process_first(&mut self, cx: Context<'_>, id: u32) -> Result<()> {
        if !self.processes.is_empty() {
            return Ok(());
        }
        let name = next_owner_name(id);
        let Some(bytes) = cx.images().read(&name)? else { return Ok(()) };
        let next = RenderOwner::read(&name, &mut bytes.as_slice())?;
        self.kfd_first(cx, next.kfd_id)
    }

    /// Restores the process that something belongs to, unless it is there.
    fn process_first(
        &mut self,
        cx: Context<'_>,
        name: &str,
        kfd_id: u32,
        after_kfd: bool,
    ) -> Result<()> {
        if self.processes.iter().any(|process| process.kfd_id == kfd_id) {
            return Ok(());
        }
        if after_kfd {
            let kfd = ImageName::Kfd { id: kfd_id };
            let what = format!(
                "it belongs to {kfd}, which is not of this task: what processes share cannot be restored"
            );
            return Err(Error::Content { file: name.to_owned(), what });
        }
        self.kfd_first(cx, kfd_id)
    }

    /// Restores the render nodes whose BOs a file imports, unless they are there.
    fn restore_imports(&mut self, cx: Context<'_>, owner: Option<&RenderOwner>) -> Result<()> {
        let imports = owner.map(|owner| owner.imports.as_slice()).unwrap_or_default();
        for (_, bo) in imports {
            if let BoName::Render { id, .. } = bo {
                self.render_first(cx, *id)?;
            }
        }
        Ok(())
    }

    /// Restores a render node before CRIU asks for it, unless it is there.
    fn render_first(&mut self, cx: Context<'_>, id: u32) -> Result<()> {
        if self.renders.iter().any(|render| render.id == id) {
            return Ok(());
        }
        let name = ImageName::Render { id }.to_string();
        let wrong = |what: &str| Error::Content { file: name.clone(), what: what.into() };
        if self.under_way.contains(&id) {
            return Err(wrong("damaged: it imports what is imported from it"));
        }
        let bytes = cx.images().read(&name)?.ok_or_else(|| wrong("it is missing"))?;
        self.under_way.push(id);
        let file = self.render(cx, id, &bytes)?;
        drop(file);
        self.under_way.pop();
        Ok(())
    }

    /// The dma-buf of a BO that is there.
    fn source(&self, cx: Context<'_>, bo: BoName) -> Result<OwnedFd> {
        let missing =
            |file: ImageName, what: String| Error::Content { file: file.to_string(), what };
        match bo {
            BoName::Kfd { id, bo } => {
                let process = self.processes.iter().find(|process| process.kfd_id == id);
                let shared =
                    process.and_then(|p| p.shared.iter().find(|(shared, _)| *shared == bo));
                let (_, stored) = shared.ok_or_else(|| {
                    let what = format!(
                        "others are of its BO {bo}, and {} does not say so: it cannot be restored",
                        image::shared_name(id)
                    );
                    missing(ImageName::Kfd { id }, what)
                })?;
                stored.get(cx.host)
            }
            BoName::Render { id, handle } => {
                let render = self.renders.iter().find(|render| render.id == id);
                let render = render.filter(|render| render.handles.contains(&handle));
                let render = render.ok_or_else(|| {
                    missing(ImageName::Render { id }, format!("damaged: it has no BO {handle}"))
                })?;
                let path = render_path(render.old_minor);
                let file = render.file.get(cx.host)?;
                Ok(RenderNode::adopt(&**cx.system.driver(), &path, file)?.export(handle)?)
            }
        }
    }

    /// Restores a dma-buf.
    pub(super) fn dmabuf(&mut self, cx: Context<'_>, id: u32, bytes: &[u8]) -> Result<OwnedFd> {
        let name = ImageName::Dmabuf { id }.to_string();
        let image = DmabufNode::read(&name, &mut { bytes })?;
        let owner_name = dmabuf_owner_name(id);
        let bo = match cx.images().read(&owner_name)? {
            Some(bytes) => {
                let owner = DmabufOwner::read(&owner_name, &mut bytes.as_slice())?;
                self.process_first(cx, &name, owner.kfd_id, owner.after_kfd)?;
                owner.bo
            }
            // By its handle, if that is only one BO's.
            None => {
                let handle = image.gem_handle;
                let mut found =
                    self.renders.iter().filter(|render| render.handles.contains(&handle));
                let (Some(render), None) = (found.next(), found.next()) else {
                    let what = format!(
                        "it is of a BO with the handle {handle}, and the checkpoint does not say whose: it cannot be restored"
                    );
                    return Err(Error::Content { file: name, what });
                };
                BoName::Render { id: render.id, handle }
            }
        };
        if let BoName::Render { id, .. } = bo {
            self.render_first(cx, id)?;
        }
        self.source(cx, bo)
    }
}
