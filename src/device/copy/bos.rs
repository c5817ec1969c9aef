//! The BOs that are mapped in a queue's address space.

use std::{collections::HashMap, os::fd::BorrowedFd};

use super::{BoId, Piece, space::Space};
use crate::device::{DeviceError, RenderNode};

/// GPU pages that are mapped together are found faster; larger memory begins at such an address.
const LARGE: u64 = 2 << 20;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Bos {
    space: Space,
    bound: Vec<Option<Bound>>,
    free: Vec<usize>,
    /// How many BOs have each handle: two dma-bufs of one BO have the same.
    handles: HashMap<u32, u32>,
}

/// A BO in the address space.
#[derive(Debug, Clone, Copy)]
struct Bound {
    handle: u32,
    address: u64,
    size: u64,
}

impl Bos {
    pub(super) fn new(space: Space) -> Self {
        Bos { space, bound: Vec::new(), free: Vec::new(), handles: HashMap::new() }
    }

    /// Maps memory that stays: its address.
    pub(super) fn map(
        &mut self,
        render: &RenderNode,
        handle: u32,
        bytes: u64,
    ) -> Result<u64, DeviceError> {
        let align = if bytes >= LARGE { LARGE } else { 4096 };
        let address = self.space.take(bytes, align).ok_or_else(|| DeviceError::Unsuitable {
            node: render.node().path().to_owned(),
            what: format!("no {bytes} bytes of GPU addresses are left"),
        })?;
        render.map(handle, address, bytes)?;
        Ok(address)
    }

    /// Maps a BO of `size` bytes by its dma-buf.
    pub(super) fn import(
        &mut self,
        render: &RenderNode,
        dma_buf: BorrowedFd<'_>,
        size: u64,
    ) -> Result<BoId, DeviceError> {
        let handle = render.import(dma_buf)?;
        *self.handles.entry(handle).or_insert(0) += 1;
        let address = self.map(render, handle, size).inspect_err(|_| {
            let _ = self.close(render, handle);
        })?;
        let bound = Some(Bound { handle, address, size });
        if let Some(id) = self.free.pop() {
            self.bound[id] = bound;
            return Ok(BoId(id));
        }
        self.bound.push(bound);
        Ok(BoId(self.bound.len() - 1))
    }

    /// Unmaps a BO and closes its handle. Where nobody else has the handle that is one call: the
    /// kernel unmaps what a handle that is closed was mapped at.
    pub(super) fn release(&mut self, render: &RenderNode, id: BoId) -> Result<(), DeviceError> {
        let Some(bound) = self.bound.get_mut(id.0).and_then(Option::take) else { return Ok(()) };
        self.free.push(id.0);
        match self.handles.get_mut(&bound.handle) {
            Some(users) if *users > 1 => {
                *users -= 1;
                render.unmap(bound.handle, bound.address, bound.size)
            }
            _ => self.close(render, bound.handle),
        }
    }

    /// Releases all of them, up to the first failure.
    pub(super) fn release_all(&mut self, render: &RenderNode) -> Result<(), DeviceError> {
        (0..self.bound.len()).try_for_each(|id| self.release(render, BoId(id)))
    }

    fn close(&mut self, render: &RenderNode, handle: u32) -> Result<(), DeviceError> {
        match self.handles.get_mut(&handle) {
            Some(users) if *users > 1 => {
                *users -= 1;
                Ok(())
            }
            _ => {
                self.handles.remove(&handle);
                render.close(handle)
            }
        }
    }

    /// The handle of a BO.
    pub(super) fn handle(&self, id: BoId) -> Option<u32> {
        self.bound.get(id.0).copied().flatten().map(|bound| bound.handle)
    }

    /// The address of a piece; `None` if it is not inside its BO.
    pub(super) fn address_of(&self, piece: &Piece) -> Option<u64> {
        let bound = self.bound.get(piece.bo.0).copied().flatten()?;
        let end = piece.bo_offset.checked_add(piece.len)?;
        (piece.len > 0 && end <= bound.size).then_some(bound.address + piece.bo_offset)
    }
}
