//! VRAM and GTT: memory that is there when it is written.
//!
//! An [`Arena`] is a sparse memory file that only grows at its end; a [`Piece`] is a range of it
//! that is given back to the machine when dropped. How much of it counts as used is the business of
//! whoever models a GPU's VRAM.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::{Whence, ftruncate, lseek64},
};

use crate::device::DeviceMemory;

/// A sparse memory file.
#[derive(Debug)]
pub(super) struct Arena {
    file: File,
    end: Mutex<u64>,
}

impl Arena {
    pub(super) fn new(name: &str) -> nix::Result<Arc<Self>> {
        let file = memfd_create(name, MFdFlags::MFD_CLOEXEC)?.into();
        Ok(Arc::new(Arena { file, end: Mutex::new(0) }))
    }

    /// A piece of zeros; `len` is a multiple of the page size.
    pub(super) fn piece(self: &Arc<Self>, len: u64) -> nix::Result<Piece> {
        // The lock is held while the file grows, so that it never becomes shorter.
        let mut last = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let start = *last;
        let end = start.checked_add(len).ok_or(Errno::ENOMEM)?;
        let signed = i64::try_from(end).map_err(|_| Errno::ENOMEM)?;
        ftruncate(&self.file, signed)?;
        *last = end;
        Ok(Piece { arena: Arc::clone(self), start, len, memory: OnceLock::new() })
    }
}

/// A range of an [`Arena`].
#[derive(Debug)]
pub(super) struct Piece {
    arena: Arc<Arena>,
    start: u64,
    len: u64,
    memory: OnceLock<DeviceMemory>,
}

impl Piece {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The memory, mapped at first use and for the rest of the piece's life.
    pub(super) fn memory(&self) -> nix::Result<&DeviceMemory> {
        if let Some(memory) = self.memory.get() {
            return Ok(memory);
        }
        let memory = self.view(0, self.len).map()?;
        Ok(self.memory.get_or_init(|| memory))
    }

    /// The file, and where this piece begins in it.
    pub(super) fn file(&self) -> (BorrowedFd<'_>, u64) {
        (self.arena.file.as_fd(), self.start)
    }

    /// What a process gets that asks for a mapping of a range.
    pub(super) fn view(&self, offset: u64, len: u64) -> View {
        View { arena: Arc::clone(&self.arena), start: self.start + offset, len }
    }

    /// Whether nothing was ever written to a range: it reads as zeros, and reading it through a
    /// mapping would cost memory.
    pub(super) fn is_hole(&self, offset: u64, len: u64) -> bool {
        matches!(self.extent(offset, len), Ok(Extent::Hole(hole)) if hole == len)
    }

    /// What a range of at least one byte begins with.
    pub(super) fn extent(&self, offset: u64, len: u64) -> nix::Result<Extent> {
        let start = self.start + offset;
        let data = self.seek(start, Whence::SeekData)?.map_or(len, |data| data - start);
        if data > 0 {
            return Ok(Extent::Hole(data.min(len)));
        }
        let hole = self.seek(start, Whence::SeekHole)?.map_or(len, |hole| hole - start);
        Ok(Extent::Data(hole.clamp(1, len)))
    }

    /// Where there is data, or a hole, from a place on.
    fn seek(&self, start: u64, what: Whence) -> nix::Result<Option<u64>> {
        let start = i64::try_from(start).map_err(|_| Errno::EINVAL)?;
        match lseek64(&self.arena.file, start, what) {
            Ok(at) => Ok(Some(at.cast_unsigned())),
            Err(Errno::ENXIO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// A range of memory that a process is to have mapped.
#[derive(Debug)]
pub(super) struct View {
    arena: Arc<Arena>,
    start: u64,
    len: u64,
}

impl View {
    /// Maps it in this process.
    pub(super) fn map(&self) -> nix::Result<DeviceMemory> {
        let len = usize::try_from(self.len).map_err(|_| Errno::EINVAL)?;
        DeviceMemory::map(&self.arena.file, self.start, len)
    }

    /// The file and where in it the range begins, for a mapping in another process.
    pub(super) fn file(&self) -> (BorrowedFd<'_>, u64) {
        (self.arena.file.as_fd(), self.start)
    }
}

/// What a range begins with, and how long that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Something was written.
    Data(u64),
    /// Nothing was: zeros.
    Hole(u64),
}

impl Drop for Piece {
    fn drop(&mut self) {
        let (Ok(start), Ok(len)) = (i64::try_from(self.start), i64::try_from(self.len)) else {
            return;
        };
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let _ = fallocate(&self.arena.file, hole, start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zero_and_apart_and_holes_until_written() {
        let arena = Arena::new("vram").unwrap();
        let (one, two) = (arena.piece(8192).unwrap(), arena.piece(4096).unwrap());
        assert!(one.is_hole(0, 8192) && two.is_hole(0, 4096));
        one.memory().unwrap().write(4096, b"one");
        assert!(one.is_hole(0, 4096) && !one.is_hole(0, 4097) && two.is_hole(0, 4096));
        let mut bytes = [1; 4];
        two.memory().unwrap().read(0, &mut bytes);
        assert_eq!(bytes, [0; 4]);
        one.view(4096, 4096).map().unwrap().read(0, &mut bytes);
        assert_eq!(&bytes, b"one\0");
    }

    #[test]
    fn what_was_freed_is_zero_again() {
        let arena = Arena::new("vram").unwrap();
        let piece = arena.piece(4096).unwrap();
        piece.memory().unwrap().write(0, b"x");
        let start = piece.start;
        drop(piece);
        let again = Piece { arena: Arc::clone(&arena), start, len: 4096, memory: OnceLock::new() };
        assert!(again.is_hole(0, 4096));
    }
}
