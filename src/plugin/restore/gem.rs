//! The BOs of a render node, made again in an open file: with the same handles, sizes, contents and
//! GPU mappings.
//!
//! A kernel gives the lowest handle that is free, and there is no way to ask for another. So BOs are
//! made in the order of their handles, and where the process had none, a small one is made that is
//! closed again.

use std::{
    collections::HashSet,
    os::fd::{AsFd, OwnedFd},
};

use nix::errno::Errno;

use super::super::{
    context::Context,
    error::{Error, Result},
    gpus::{MOST_HANDLES, render_path},
};
use super::{
    contents::{self, Part},
    moves::Moves,
};
use crate::{
    abi::amdgpu::{GemCreateIn, GemVmEntry, domain, va_flag},
    device::{DeviceError, RenderNode},
    gpu::{Bo, Contents},
    image::{self, BoName, DrmBo, ImageName, RenderOwner},
};

const PAGE: u64 = 4096;
/// Memory whose contents are in the checkpoint.
const WITH_CONTENTS: u32 = 0x6;

/// What is to be made.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    /// CRIU's id of the file.
    pub id: u32,
    /// Its image.
    pub image: &'a image::RenderNode,
    /// What it is to its process, where the checkpoint says so.
    pub owner: Option<&'a RenderOwner>,
    /// The number of its GPU's render node here.
    pub minor: u32,
    /// The dma-buf of a BO that was restored before.
    pub source: &'a dyn Fn(BoName) -> Result<OwnedFd>,
}

impl Plan<'_> {
    fn name(&self) -> String {
        ImageName::Render { id: self.id }.to_string()
    }

    fn wrong(&self, what: String) -> Error {
        Error::Content { file: self.name(), what }
    }

    /// Whose a BO is, if it is somebody else's.
    fn import(&self, bo: &DrmBo) -> Result<Option<BoName>> {
        let import = self.owner.and_then(|owner| owner.import(bo.handle));
        if bo.is_import && import.is_none() {
            let handle = bo.handle;
            return Err(self.wrong(format!(
                "BO {handle} was imported, and the checkpoint does not say from where: it cannot be restored"
            )));
        }
        Ok(import)
    }
}

/// Makes them; where they were in the mmap space of the render node, and where they are.
pub(super) fn restore(cx: Context<'_>, render: &RenderNode, plan: Plan<'_>) -> Result<Moves> {
    let mut bos: Vec<(u32, &DrmBo)> = (0..).zip(&plan.image.bos).collect();
    bos.sort_by_key(|(_, bo)| bo.handle);
    let imports = bos.iter().map(|(_, bo)| plan.import(bo)).collect::<Result<Vec<_>>>()?;
    check(plan, &bos)?;
    let mut fillers = Vec::new();
    let made = make(render, plan, &bos, &imports, &mut fillers);
    // A task that was not restored ends; but what is ours is given back on every path.
    let closed = fillers.into_iter().try_for_each(|handle| render.close(handle));
    made?;
    closed?;
    fill(cx, render, plan, &bos, &imports)?;
    let mut moves = Moves::default();
    for (&(_, bo), import) in bos.iter().zip(&imports) {
        map(render, plan, bo)?;
        if bo.offset != 0 {
            match render.mmap_offset(bo.handle) {
                Ok(offset) => {
                    moves.add_gem(plan.image.gpu_id, bo, offset, import.is_some());
                }
                Err(DeviceError::Call { errno: Errno::EPERM, .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(moves)
}

/// Whether the handles are some that a file can have.
fn check(plan: Plan<'_>, bos: &[(u32, &DrmBo)]) -> Result<()> {
    let mut last = 0;
    for (_, bo) in bos {
        if bo.handle == last || bo.handle > MOST_HANDLES {
            let (handle, most) = (bo.handle, MOST_HANDLES);
            return Err(plan.wrong(format!(
                "damaged: BO {handle}: handles are different numbers from 1 to {most}"
            )));
        }
        last = bo.handle;
    }
    Ok(())
}

/// Makes all BOs, each at its handle; those that fill gaps are in `fillers`.
fn make(
    render: &RenderNode,
    plan: Plan<'_>,
    bos: &[(u32, &DrmBo)],
    imports: &[Option<BoName>],
    fillers: &mut Vec<u32>,
) -> Result<()> {
    let mut next = 1;
    let node = render.node().path().display();
    let another = |found: u32, wanted: u32| {
        plan.wrong(format!(
            "{node} gave the handle {found} where {wanted} was free: BO {wanted} cannot get its handle"
        ))
    };
    for (&(_, bo), &import) in bos.iter().zip(imports) {
        while next < bo.handle {
            let filler = render.create(PAGE, domain::CPU)?;
            fillers.push(filler);
            if filler != next {
                return Err(another(filler, next));
            }
            next += 1;
        }
        let handle = match import {
            Some(name) => render.import((plan.source)(name)?.as_fd())?,
            None => render.create_as(create(bo))?,
        };
        if handle != bo.handle {
            return Err(another(handle, bo.handle));
        }
        next += 1;
    }
    Ok(())
}

/// How a BO is made.
fn create(bo: &DrmBo) -> GemCreateIn {
    // Other plugins write it in pages.
    let in_pages = !bo.alignment.is_multiple_of(PAGE);
    let alignment = if in_pages { bo.alignment.saturating_mul(PAGE) } else { bo.alignment };
    GemCreateIn {
        bo_size: bo.size,
        alignment,
        domains: bo.preferred_domains.into(),
        domain_flags: bo.alloc_flags,
    }
}

/// Fills those that have contents.
fn fill(
    cx: Context<'_>,
    render: &RenderNode,
    plan: Plan<'_>,
    bos: &[(u32, &DrmBo)],
    imports: &[Option<BoName>],
) -> Result<()> {
    let own = bos.iter().zip(imports).filter(|(_, import)| import.is_none()).map(|(bo, _)| *bo);
    let own: Vec<_> = own.filter(|(_, bo)| bo.preferred_domains & WITH_CONTENTS != 0).collect();
    let mut parts = Vec::with_capacity(own.len());
    let mut contents = Vec::with_capacity(own.len());
    // Without a record the file is another plugin's, and says nothing of use in its first bytes.
    let minor = plan.image.render_minor.unwrap_or(0);
    for (number, bo) in own {
        let name = ImageName::DrmPages { id: plan.id, minor, bo: number }.to_string();
        let sums = plan.owner.map(|owner| {
            let sums = owner.bos.iter().find(|sums| sums.bo == number);
            match sums {
                Some(sums) if sums.bytes == bo.size => Ok(sums.blocks.clone()),
                _ => Err(plan.wrong(format!(
                    "damaged: BO {} has no checksums of its {} bytes",
                    bo.handle, bo.size
                ))),
            }
        });
        parts.push(Part { name, bytes: bo.size, sums: sums.transpose()? });
        contents.push(Bo { size: bo.size, dma_buf: render.export(bo.handle)? });
    }
    if contents.is_empty() {
        return Ok(());
    }
    let node = render_path(plan.minor).into();
    let contents = Contents { gpu_id: plan.image.gpu_id, node, bos: contents };
    let name = plan.name();
    let budget = cx.settings.budget;
    contents::restore_parts(cx.images(), cx.system.driver(), budget, &name, parts, contents)
}

/// Maps a BO where it was, unless KFD has done that already.
fn map(render: &RenderNode, plan: Plan<'_>, bo: &DrmBo) -> Result<()> {
    if bo.mappings.is_empty() {
        return Ok(());
    }
    let there: HashSet<_> =
        render.mappings(bo.handle)?.iter().map(|vm| (vm.addr, vm.size, vm.offset)).collect();
    for vm in &bo.mappings {
        if there.contains(&(vm.addr, vm.size, vm.offset)) {
            continue;
        }
        // At once: nobody submits anything before queues run.
        let flags = vm.flags & !u64::from(va_flag::DELAY_UPDATE);
        let mapping = GemVmEntry { addr: vm.addr, size: vm.size, offset: vm.offset, flags };
        render.map_as(bo.handle, &mapping).map_err(|error| match error {
            DeviceError::Call { errno: Errno::EINVAL, .. } => plan.wrong(format!(
                "BO {} cannot be mapped at {:#x} of GPU {:#06x}, {} bytes: something else is there, or the GPU has no such address ({error})",
                bo.handle, vm.addr, plan.image.gpu_id, vm.size
            )),
            error => error.into(),
        })?;
    }
    Ok(())
}
