//! An open render node: which GPU it is of, its BOs, and what it is to its process.
//!
//! ```text
//!  at once             list      the BOs, and which of them nobody could make again
//!                      image     written
//!  when its process    identify  which of them are BOs of others
//!  is known, which     compute   whether queues run in its address space
//!  is stopped then     contents  of those that are its own
//!                      owner     all that, written
//! ```
//!
//! A process may have several files of a render node. KFD was given one of them, whose address space
//! is the process's: what is mapped in it is there for queues. Which one that is KFD does not tell,
//! but that file alone may map memory of KFD for the CPU, and asking for that changes nothing.

use std::os::fd::{AsFd, BorrowedFd};

use super::{
    Dump, Process,
    gem::{self, Listed},
    gem_contents::{self, Of, Wanted},
};
use crate::{
    abi::criu::Level,
    device::RenderNode,
    image::{self, BoName, ImageName, RenderOwner, owner_name},
    plugin::{
        context::Context,
        error::{Error, Result},
        gpus::render_path,
    },
    stage::Crc32,
};

/// An open render node that was seen.
#[derive(Debug)]
pub(super) struct Render {
    id: u32,
    minor: u32,
    /// What the GPU is here.
    gpu_id: u32,
    /// Its process, when it is known.
    owner: Option<u32>,
    /// How many processes came before it.
    after: usize,
    /// The application's file, until all is known.
    file: Option<RenderNode>,
    /// Its BOs, where the kernel tells of them.
    bos: Option<Vec<Listed>>,
    image: (u64, u32),
    /// Handles of BOs that somebody else has made.
    imports: Vec<(u32, BoName)>,
    is_identified: bool,
}

impl Render {
    pub(super) fn owner(&self) -> Option<u32> {
        self.owner
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    fn is_settled(&self) -> bool {
        self.file.is_none()
    }

    fn has_bos(&self) -> bool {
        self.bos.as_ref().is_some_and(|bos| !bos.is_empty())
    }

    fn import(&self, handle: u32) -> Option<BoName> {
        self.imports.iter().find(|(import, _)| *import == handle).map(|(_, bo)| *bo)
    }

    /// For messages.
    fn what(&self) -> String {
        what(self.id, self.minor)
    }
}

fn what(id: u32, minor: u32) -> String {
    format!("{} (/dev/dri/renderD{minor})", ImageName::Render { id })
}

impl Dump {
    /// Dumps an open render node.
    pub(super) fn render(
        &mut self,
        cx: Context<'_>,
        fd: BorrowedFd<'_>,
        id: u32,
        minor: u32,
    ) -> Result<()> {
        let topology = self.topology(cx)?;
        let gpu = topology.gpus().find(|gpu| gpu.render_minor() == minor);
        let Some(gpu_id) = gpu.map(|gpu| gpu.gpu_id) else {
            let hidden: Vec<_> = topology.hidden().iter().map(|node| node.why.as_str()).collect();
            return Err(Error::Unsupported(format!(
                "/dev/dri/renderD{minor}: no GPU of the topology has this render node{}{}",
                if hidden.is_empty() { "" } else { "; hidden are: " },
                hidden.join("; ")
            )));
        };
        let path = render_path(minor);
        let ours = fd.try_clone_to_owned();
        let ours = ours.map_err(Error::file(&path.to_string_lossy(), "keep a descriptor of"))?;
        let file = RenderNode::adopt(&**cx.system.driver(), &path, ours)?;
        let bos = gem::list(&file, &what(id, minor))?;
        let mut render = Render {
            id,
            minor,
            gpu_id,
            owner: None,
            after: self.processes.len(),
            file: Some(file),
            bos,
            image: (0, 0),
            imports: Vec::new(),
            is_identified: false,
        };
        if !self.processes.is_empty() && render.has_bos() {
            self.enter_processes(cx)?;
            self.identify(cx, &mut render)?;
        }
        render.image = self.write_render(cx, &render)?;
        if !self.processes.is_empty() {
            self.since_kfd.push(id);
        }
        self.renders.push(render);
        self.settle(cx)
    }

    /// Writes the image: its size and its checksum.
    fn write_render(&self, cx: Context<'_>, render: &Render) -> Result<(u64, u32)> {
        // The process that came last has the same task's descriptors, most likely.
        let name = self.processes.iter().rev().find_map(|process| process.name_of(render.gpu_id));
        let bos = render.bos.iter().flatten().map(|listed| {
            let is_import = listed.is_foreign || render.import(listed.bo.handle).is_some();
            image::DrmBo { is_import, ..listed.bo.clone() }
        });
        let image = image::RenderNode {
            gpu_id: name.unwrap_or(render.gpu_id),
            id: Some(render.id),
            render_minor: Some(render.minor),
            bos: bos.collect(),
        };
        let name = ImageName::Render { id: render.id }.to_string();
        let mut bytes = Vec::new();
        image.write(&name, &mut bytes)?;
        cx.images().write(&name, &bytes)?;
        if !image.bos.is_empty() {
            cx.say(Level::Info, &format!("{name}: {} BOs", image.bos.len()));
        }
        Ok((bytes.len() as u64, Crc32::of(&bytes).value))
    }

    /// Does all that needs to know a process, for those whose process is known by now.
    pub(super) fn settle(&mut self, cx: Context<'_>) -> Result<()> {
        let is_needed = |render: &Render| !render.is_settled() && render.has_bos();
        if self.known.is_used() || self.renders.iter().any(is_needed) {
            self.enter_processes(cx)?;
        }
        let Some(newest) = self.processes.last().map(|process| process.kfd_id) else {
            return Ok(());
        };
        let mut renders = std::mem::take(&mut self.renders);
        let settled = self.settle_all(cx, &mut renders, newest);
        self.renders = renders;
        settled
    }

    fn settle_all(&mut self, cx: Context<'_>, renders: &mut [Render], newest: u32) -> Result<()> {
        for render in renders.iter_mut().filter(|render| !render.is_settled()) {
            render.owner = Some(newest);
            if !render.is_identified {
                self.identify(cx, render)?;
            }
        }
        for at in 0..renders.len() {
            let (earlier, rest) = renders.split_at_mut(at);
            if let Some(render) = rest.first_mut().filter(|render| !render.is_settled()) {
                check_owners(earlier, render, newest)?;
                self.finish(cx, render, newest)?;
            }
        }
        Ok(())
    }

    /// Finds out which BOs are somebody else's.
    fn identify(&mut self, cx: Context<'_>, render: &mut Render) -> Result<()> {
        let Some(file) = &render.file else { return Ok(()) };
        let (what, driver) = (render.what(), &**cx.system.driver());
        for listed in render.bos.iter().flatten() {
            let handle = listed.bo.handle;
            let dma_buf = file.export(handle)?;
            let name = BoName::Render { id: render.id, handle };
            let found = if listed.is_foreign {
                self.known.find(dma_buf.as_fd())?.ok_or_else(|| {
                    Error::Unsupported(format!(
                        "{what}: BO {handle} was imported, and is of no BO that was dumped before: it cannot be restored"
                    ))
                })?
            } else {
                self.known.enter(driver, render.minor, &dma_buf, name)?
            };
            if found == name {
                listed.check_own(&what)?;
            } else {
                render.imports.push((handle, found));
            }
        }
        render.is_identified = true;
        Ok(())
    }

    fn finish(&mut self, cx: Context<'_>, render: &mut Render, kfd_id: u32) -> Result<()> {
        let Some(file) = render.file.take() else { return Ok(()) };
        let after_kfd = render.after > 0;
        let mut owner = RenderOwner { kfd_id, after_kfd, ..RenderOwner::default() };
        let process = self.processes.iter().find(|process| process.kfd_id == kfd_id);
        if let (Some(bos), Some(process)) = (&render.bos, process) {
            let gpu_id = process.name_of(render.gpu_id);
            owner.image = render.image;
            owner.is_compute = is_compute(&file, process, gpu_id, &render.imports)?;
            owner.imports.clone_from(&render.imports);
            let own = (0..).zip(bos).filter(|(_, bo)| render.import(bo.bo.handle).is_none());
            let wanted = own.map(|(bo, listed)| Wanted {
                bo,
                handle: listed.bo.handle,
                size: listed.bo.size,
            });
            let of = Of {
                render: &file,
                id: render.id,
                minor: render.minor,
                gpu_id: gpu_id.unwrap_or(render.gpu_id),
            };
            owner.bos = gem_contents::dump(cx, of, &wanted.collect::<Vec<_>>())?;
            for &(_, bo) in &render.imports {
                self.share(cx, bo)?;
            }
        } else if after_kfd {
            return Ok(());
        }
        let name = owner_name(render.id);
        let mut bytes = Vec::new();
        owner.write(&name, &mut bytes)?;
        cx.images().write(&name, &bytes)
    }

    /// Tells of the BOs of all processes that nobody was told of before.
    pub(super) fn enter_processes(&mut self, cx: Context<'_>) -> Result<()> {
        let driver = &**cx.system.driver();
        for at in self.entered..self.processes.len() {
            let process = &self.processes[at];
            let Some(paused) = self.paused.get(process.paused) else { continue };
            let checkpoint = paused.checkpoint()?;
            for (number, bo) in (0..).zip(checkpoint.bos) {
                let Some(dma_buf) = bo.dma_buf else { continue };
                let minor = process.minor_of(bo.bucket.gpu_id).ok_or(Error::GivenUp)?;
                let name = BoName::Kfd { id: process.kfd_id, bo: number };
                let found = self.known.enter(driver, minor, &dma_buf, name)?;
                let BoName::Render { id, handle } = found else { continue };
                // A render node was told of it first.
                self.known.rename(found, name);
                let render = self.renders.iter_mut().find(|render| render.id == id);
                match render.filter(|render| !render.is_settled()) {
                    Some(render) => render.imports.push((handle, name)),
                    None => {
                        return Err(Error::Unsupported(format!(
                            "{}: its BO at {:#x} is also BO {handle} of {}, which comes before it: what processes share cannot be restored",
                            super::kfd_name(process.kfd_id),
                            bo.bucket.addr,
                            ImageName::Render { id },
                        )));
                    }
                }
            }
            self.entered = at + 1;
        }
        Ok(())
    }
}

/// What is imported must be the process's, and must be there before.
fn check_owners(earlier: &[Render], render: &Render, kfd_id: u32) -> Result<()> {
    for &(handle, bo) in &render.imports {
        let owner = match bo {
            BoName::Kfd { id, .. } => Some(id),
            BoName::Render { id, .. } => {
                let found = earlier.iter().find(|earlier| earlier.id == id);
                found.and_then(Render::owner)
            }
        };
        if owner != Some(kfd_id) {
            let whose = match bo {
                BoName::Kfd { id, bo } => format!("BO {bo} of {}", super::kfd_name(id)),
                BoName::Render { id, handle } => {
                    format!("BO {handle} of {}", ImageName::Render { id })
                }
            };
            return Err(Error::Unsupported(format!(
                "{}: BO {handle} is {whose}, which is another process's or comes later: it cannot be restored",
                render.what()
            )));
        }
    }
    Ok(())
}

/// Whether a file has the address space of a process on a GPU; `None` if the process has no memory
/// there that would show it.
fn is_compute(
    file: &RenderNode,
    process: &Process,
    gpu_id: Option<u32>,
    imports: &[(u32, BoName)],
) -> Result<Option<bool>> {
    for &(bo, offset) in process.places.get(&gpu_id.unwrap_or(0)).into_iter().flatten() {
        // What it has a handle of it may map anyway.
        let name = BoName::Kfd { id: process.kfd_id, bo };
        if imports.iter().any(|(_, import)| *import == name) {
            continue;
        }
        if let Some(may) = file.may_map(offset)? {
            return Ok(Some(may));
        }
    }
    Ok(None)
}
