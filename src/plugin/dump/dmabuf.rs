//! Dma-bufs that a process has open: each is of a BO that was dumped.
//!
//! A dma-buf may come before the files that tell of its BO. So it is kept until all have been seen:
//! hosts that show dma-bufs have a hook for that.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::Dump;
use crate::{
    abi::criu::Level,
    image::{self, BoName, DmabufNode, DmabufOwner, ImageName, dmabuf_owner_name, shared_name},
    plugin::{
        context::Context,
        error::{Error, Result},
    },
};

/// A dma-buf that was seen.
#[derive(Debug)]
pub(super) struct Dmabuf {
    id: u32,
    file: OwnedFd,
    /// How many processes came before it.
    after: usize,
}

/// Which BOs of processes on `/dev/kfd` others are of.
#[derive(Debug, Default)]
pub(super) struct Shared {
    bos: BTreeMap<u32, BTreeSet<u32>>,
    is_written: bool,
}

impl Dump {
    /// Keeps a dma-buf for later.
    pub(super) fn dmabuf(&mut self, fd: BorrowedFd<'_>, id: u32) -> Result<()> {
        let name = ImageName::Dmabuf { id }.to_string();
        let file = fd.try_clone_to_owned();
        let file = file.map_err(Error::file(&name, "keep the descriptor for"))?;
        self.dmabufs.push(Dmabuf { id, file, after: self.processes.len() });
        Ok(())
    }

    /// Writes which BO each is of.
    pub(super) fn write_dmabufs(&mut self, cx: Context<'_>) -> Result<()> {
        if self.dmabufs.is_empty() {
            return Ok(());
        }
        self.enter_processes(cx)?;
        for Dmabuf { id, file, after } in std::mem::take(&mut self.dmabufs) {
            let name = ImageName::Dmabuf { id }.to_string();
            let refuse = |why: &str| Error::Unsupported(format!("{name}: {why}"));
            let bo = self.known.find(file.as_fd())?.ok_or_else(|| {
                refuse("a dma-buf that is of no BO of this dump: it cannot be restored")
            })?;
            let (owner, gem_handle) = match bo {
                BoName::Kfd { id, bo } => {
                    let process = self.processes.iter().find(|process| process.kfd_id == id);
                    (Some(id), process.map(|process| process.first_handle.wrapping_add(bo)))
                }
                BoName::Render { id, handle } => {
                    let render = self.renders.iter().find(|render| render.id() == id);
                    (render.and_then(super::render::Render::owner), Some(handle))
                }
            };
            let place = |kfd_id| self.processes.iter().position(|process| process.kfd_id == kfd_id);
            let (Some(owner), Some(place), Some(gem_handle)) =
                (owner, owner.and_then(place), gem_handle)
            else {
                return Err(refuse(
                    "a dma-buf of a render node that no process uses through /dev/kfd: it cannot be restored",
                ));
            };
            // The descriptors of a task come together.
            if place + 1 != after && place != after {
                return Err(refuse(
                    "a dma-buf of another process's BO: what processes share cannot be restored",
                ));
            }
            let mut bytes = Vec::new();
            DmabufNode { gem_handle }.write(&name, &mut bytes)?;
            cx.images().write(&name, &bytes)?;
            let owner = DmabufOwner { bo, kfd_id: owner, after_kfd: place < after };
            let owner_name = dmabuf_owner_name(id);
            let mut bytes = Vec::new();
            owner.write(&owner_name, &mut bytes)?;
            cx.images().write(&owner_name, &bytes)?;
            cx.say(Level::Info, &format!("{name}: {bo:?}"));
            self.share(cx, bo)?;
        }
        Ok(())
    }

    /// Somebody is of a BO. What is shared is written when all is known: where CRIU has no hook for
    /// that, in `exit`, and a streamer has the whole image by then.
    pub(super) fn share(&mut self, cx: Context<'_>, bo: BoName) -> Result<()> {
        let BoName::Kfd { id, bo } = bo else { return Ok(()) };
        if cx.images().are_streamed() && !cx.settings.has_late_hook {
            return Err(Error::Unsupported(format!(
                "{}: its BO {bo} is imported by a render node: this CRIU cannot stream that; dump to a directory, or with a CRIU after 4.2",
                ImageName::Kfd { id }
            )));
        }
        self.shared.bos.entry(id).or_default().insert(bo);
        Ok(())
    }

    /// Writes which BOs others are of, once: who restores a process has to keep those for them.
    pub(super) fn write_shared(&mut self, cx: Context<'_>) -> Result<()> {
        if std::mem::replace(&mut self.shared.is_written, true) {
            return Ok(());
        }
        for (&kfd_id, bos) in &self.shared.bos {
            let name = shared_name(kfd_id);
            let mut bytes = Vec::new();
            image::write_shared(&name, bos.iter().copied().collect(), &mut bytes)?;
            cx.images().write(&name, &bytes)?;
        }
        Ok(())
    }
}
