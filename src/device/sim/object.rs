//! Buffer objects: what handles, dma-bufs and GPU mappings refer to.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use nix::errno::Errno;

use super::{arena::Piece, caller::UserMemory};
use crate::abi::amdgpu::GemCreateIn;

/// Where an object's bytes are.
#[derive(Debug)]
pub(super) enum Store {
    /// In the GPU's own memory. The bytes count as used there until the object is gone.
    Vram(Piece, #[allow(dead_code)] Used), // (held, not read)
    /// In memory of the host that the GPU can reach.
    Gtt(Piece),
    /// In memory of a process, by its address there.
    User { memory: Arc<dyn UserMemory>, address: u64, pid: u32 },
    /// Registers: doorbells, MMIO. Nothing to dump.
    Registers(Piece),
}

/// A buffer object.
#[derive(Debug)]
pub(super) struct Object {
    /// The GPU it was made on, by its place in the machine.
    pub gpu: usize,
    /// In bytes, whole pages.
    pub size: u64,
    pub store: Store,
    /// What it was made with.
    pub create: GemCreateIn,
    /// Where it is in the mmap space of its GPU's render node.
    pub mmap_offset: u64,
}

impl Object {
    /// Copies from the object.
    ///
    /// # Safety
    ///
    /// `to` has room for `len` bytes that nobody else uses.
    pub(super) unsafe fn read(&self, offset: u64, to: *mut u8, len: usize) -> nix::Result<()> {
        self.check(offset, len)?;
        match &self.store {
            Store::Vram(piece, _) | Store::Gtt(piece) | Store::Registers(piece) => {
                // SAFETY: the range is inside the piece (just checked), and there is room.
                unsafe { piece.read(offset, to, len) }
            }
            // SAFETY: the caller says that there is room.
            Store::User { memory, address, .. } => unsafe {
                memory.read(address + offset, to, len)
            },
        }
    }

    /// Copies to the object.
    ///
    /// # Safety
    ///
    /// `from` has `len` bytes.
    pub(super) unsafe fn write(&self, offset: u64, from: *const u8, len: usize) -> nix::Result<()> {
        self.check(offset, len)?;
        match &self.store {
            Store::Vram(piece, _) | Store::Gtt(piece) | Store::Registers(piece) => {
                // SAFETY: the range is inside the piece (just checked), and so many bytes are there.
                unsafe { piece.write(offset, from, len) }
            }
            // SAFETY: the caller says that there are so many bytes.
            Store::User { memory, address, .. } => unsafe {
                memory.write(address + offset, from, len)
            },
        }
    }

    /// Copies bytes into the object, from the outside.
    pub(super) fn fill_from(&self, offset: u64, bytes: &[u8]) -> nix::Result<()> {
        // SAFETY: a slice has its length.
        unsafe { self.write(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes of the object to the outside.
    pub(super) fn copy_to(&self, offset: u64, bytes: &mut [u8]) -> nix::Result<()> {
        // SAFETY: a slice has its length, and nobody else uses it.
        unsafe { self.read(offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Whether it is in the memory of a GPU.
    pub(super) fn is_vram(&self) -> bool {
        matches!(self.store, Store::Vram(..))
    }

    /// Whether it is memory of a process.
    pub(super) fn is_user(&self) -> bool {
        matches!(self.store, Store::User { .. })
    }

    fn check(&self, offset: u64, len: usize) -> nix::Result<()> {
        let end = offset.checked_add(len as u64).ok_or(Errno::EINVAL)?;
        if end <= self.size { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// The bytes that a CPU mapping or an engine sees directly, where there are such.
    pub(super) fn piece(&self) -> Option<&Piece> {
        match &self.store {
            Store::Vram(piece, _) | Store::Gtt(piece) | Store::Registers(piece) => Some(piece),
            Store::User { .. } => None,
        }
    }
}

/// A share of a GPU's VRAM, given back when dropped.
#[derive(Debug)]
pub(super) struct Used {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl Used {
    /// Takes `bytes` of a GPU that has `size` and uses `total`; `None` if it is full.
    pub(super) fn take(total: &Arc<AtomicU64>, size: u64, bytes: u64) -> Option<Used> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= size);
        total.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        Some(Used { total: Arc::clone(total), bytes })
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
