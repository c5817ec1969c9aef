//! VRAM and GTT: memory that is there when it is written.
//!
//! An [`Arena`] is a sparse memory file that only grows at its end; a [`Piece`] is a range of it
//! that is given back to the machine when dropped. How much of it counts as used is the business of
//! whoever models a GPU's VRAM.
//!
//! What was never written is a hole in the file. A piece can say where its holes are, and remembers
//! where it has none, since to ask the file costs more than to copy a few pages.

use std::{
    any::Any,
    collections::HashMap,
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    libc,
    sys::memfd::{MFdFlags, memfd_create},
    unistd::{Whence, ftruncate, lseek64},
};

use crate::device::DeviceMemory;

/// Between two pieces there is a page that is never written, so that a search for the next hole does
/// not go on into the next piece.
const GAP: u64 = 4096;

/// The unit in which a piece remembers that all of it was written.
const BLOCK: u64 = 64 << 10;

/// Pieces that are much smaller than this share mappings of so many bytes: thousands of mappings
/// would make every look at the list of them slow.
const SEGMENT: u64 = 256 << 20;

/// A sparse memory file.
#[derive(Debug)]
pub(super) struct Arena {
    file: File,
    end: Mutex<u64>,
    /// What is mapped for small pieces, by where it begins in the file.
    segments: Mutex<HashMap<u64, Arc<DeviceMemory>>>,
}

impl Arena {
    pub(super) fn new(name: &str) -> nix::Result<Arc<Self>> {
        let file = memfd_create(name, MFdFlags::MFD_CLOEXEC)?.into();
        Ok(Arc::new(Arena { file, end: Mutex::new(0), segments: Mutex::default() }))
    }

    /// A piece of zeros; `len` is a multiple of the page size.
    pub(super) fn piece(self: &Arc<Self>, len: u64) -> nix::Result<Piece> {
        // The lock is held while the file grows, so that it never becomes shorter.
        let mut last = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let mut start = *last;
        if is_small(len) && start / SEGMENT != (start + len) / SEGMENT {
            start = start.next_multiple_of(SEGMENT);
        }
        let end = start.checked_add(len).and_then(|end| end.checked_add(GAP));
        let end = end.ok_or(Errno::ENOMEM)?;
        let signed = i64::try_from(end).map_err(|_| Errno::ENOMEM)?;
        ftruncate(&self.file, signed)?;
        *last = end;
        Ok(Piece {
            arena: Arc::clone(self),
            start,
            len,
            memory: OnceLock::new(),
            segment: OnceLock::new(),
            written: OnceLock::new(),
        })
    }

    /// The mapping in which a small piece is that begins at a place.
    fn segment(&self, start: u64) -> nix::Result<Arc<DeviceMemory>> {
        let begins = start / SEGMENT * SEGMENT;
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(segment) = segments.get(&begins) {
            return Ok(Arc::clone(segment));
        }
        let len = usize::try_from(SEGMENT).map_err(|_| Errno::ENOMEM)?;
        // (It may be longer than the file is yet.)
        let segment = Arc::new(DeviceMemory::map(&self.file, begins, len)?);
        segments.insert(begins, Arc::clone(&segment));
        Ok(segment)
    }
}

fn is_small(len: u64) -> bool {
    len <= SEGMENT / 16
}

/// A range of an [`Arena`].
#[derive(Debug)]
pub(super) struct Piece {
    arena: Arc<Arena>,
    start: u64,
    len: u64,
    memory: OnceLock<DeviceMemory>,
    /// For a small piece, the mapping that it shares with others.
    segment: OnceLock<Arc<DeviceMemory>>,
    /// A bit for each block all of which was written. (Pages do not become holes again.)
    written: OnceLock<Box<[AtomicU64]>>,
}

impl Piece {
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
        View { arena: Arc::clone(&self.arena), start: self.start + offset, len, _keeps: None }
    }

    /// Whether nothing was ever written to a range: it reads as zeros, and reading it through a
    /// mapping would cost memory.
    #[cfg(test)]
    pub(super) fn is_hole(&self, offset: u64, len: u64) -> bool {
        matches!(self.extent(offset, len), Ok(Extent::Hole(hole)) if hole == len)
    }

    /// What a range of at least one byte begins with.
    pub(super) fn extent(&self, offset: u64, len: u64) -> nix::Result<Extent> {
        let known = self.known(offset, offset + len);
        if known > offset {
            return Ok(Extent::Data(len.min(known - offset)));
        }
        let start = self.start + offset;
        let data = self.seek(start, Whence::SeekData)?.map_or(len, |data| data - start);
        if data > 0 {
            return Ok(Extent::Hole(data.min(len)));
        }
        let hole = self.seek(start, Whence::SeekHole)?.map_or(len, |hole| hole - start).max(1);
        self.remember(offset, (offset + hole).min(self.len));
        Ok(Extent::Data(hole.min(len)))
    }

    /// Copies from a range, without making memory of its holes.
    ///
    /// # Safety
    ///
    /// The range is inside the piece, and `to` has room for `len` bytes that nobody else uses.
    pub(super) unsafe fn read(&self, offset: u64, to: *mut u8, len: usize) -> nix::Result<()> {
        let mut done = 0;
        while done < len {
            let (part, hole) = self.part(offset + done as u64, len - done)?;
            // SAFETY: there is room for more than `done` bytes.
            let next = unsafe { to.add(done) };
            if hole {
                // SAFETY: the part is not longer than what is left.
                unsafe { next.write_bytes(0, part) };
            } else {
                // SAFETY: the range is inside the piece.
                let from = unsafe { self.at(offset + done as u64) }?;
                // SAFETY: both have a part more; they may overlap.
                unsafe { std::ptr::copy(from, next, part) };
            }
            done += part;
        }
        Ok(())
    }

    /// Copies to a range: where there is no memory yet through the file, which costs less.
    ///
    /// # Safety
    ///
    /// The range is inside the piece, and `from` has `len` bytes.
    pub(super) unsafe fn write(&self, offset: u64, from: *const u8, len: usize) -> nix::Result<()> {
        let mut done = 0;
        while done < len {
            let (part, hole) = self.part(offset + done as u64, len - done)?;
            // SAFETY: there are more than `done` bytes.
            let next = unsafe { from.add(done) };
            if hole {
                // SAFETY: there is a part more.
                unsafe { self.write_file(offset + done as u64, next, part) }?;
            } else {
                // SAFETY: the range is inside the piece.
                let to = unsafe { self.at(offset + done as u64) }?;
                // SAFETY: both have a part more; they may overlap.
                unsafe { std::ptr::copy(next, to, part) };
            }
            done += part;
        }
        Ok(())
    }

    /// Writes zeros to a range where anything else may be.
    ///
    /// # Safety
    ///
    /// The range is inside the piece.
    pub(super) unsafe fn clear(&self, offset: u64, len: usize) -> nix::Result<()> {
        let mut done = 0;
        while done < len {
            let (part, hole) = self.part(offset + done as u64, len - done)?;
            if !hole {
                // SAFETY: the range is inside the piece.
                let to = unsafe { self.at(offset + done as u64) }?;
                // SAFETY: there is a part more.
                unsafe { to.write_bytes(0, part) };
            }
            done += part;
        }
        Ok(())
    }

    /// How long what a range begins with is, and whether it is a hole.
    fn part(&self, offset: u64, len: usize) -> nix::Result<(usize, bool)> {
        let (part, hole) = match self.extent(offset, len as u64)? {
            Extent::Data(part) => (part, false),
            Extent::Hole(part) => (part, true),
        };
        Ok((usize::try_from(part).map_err(|_| Errno::EINVAL)?, hole))
    }

    /// Where a byte is in memory.
    ///
    /// # Safety
    ///
    /// The offset is inside the piece.
    pub(super) unsafe fn at(&self, offset: u64) -> nix::Result<*mut u8> {
        let (memory, offset) = if is_small(self.len) {
            (self.segment()?, self.start % SEGMENT + offset)
        } else {
            (self.memory()?, offset)
        };
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the mapping is as long as the piece, or has all of it.
        Ok(unsafe { memory.as_ptr().add(offset) })
    }

    fn segment(&self) -> nix::Result<&DeviceMemory> {
        if let Some(segment) = self.segment.get() {
            return Ok(segment);
        }
        let segment = self.arena.segment(self.start)?;
        Ok(self.segment.get_or_init(|| segment))
    }

    /// # Safety
    ///
    /// `from` has `len` bytes.
    unsafe fn write_file(&self, offset: u64, from: *const u8, len: usize) -> nix::Result<()> {
        let mut done = 0;
        while done < len {
            let at = i64::try_from(self.start + offset + done as u64).map_err(|_| Errno::EINVAL)?;
            // SAFETY: there are more than `done` bytes.
            let next = unsafe { from.add(done) };
            let fd = self.arena.file.as_raw_fd();
            // SAFETY: `next` has the rest of the bytes.
            let written = unsafe { libc::pwrite(fd, next.cast(), len - done, at) };
            done += usize::try_from(Errno::result(written)?).map_err(|_| Errno::EIO)?;
        }
        Ok(())
    }

    /// Up to where it is known that all was written, from an offset on.
    fn known(&self, offset: u64, end: u64) -> u64 {
        let Some(written) = self.written.get() else { return offset };
        let mut block = offset / BLOCK;
        while block * BLOCK < end {
            let bit = usize::try_from(block / 64).ok().and_then(|index| written.get(index));
            if bit.is_none_or(|bits| bits.load(Ordering::Relaxed) & 1 << (block % 64) == 0) {
                break;
            }
            block += 1;
        }
        (block * BLOCK).clamp(offset, end)
    }

    /// All of a range was written.
    fn remember(&self, offset: u64, end: u64) {
        let first = offset.div_ceil(BLOCK);
        // The last block may be short.
        let last = if end == self.len { end.div_ceil(BLOCK) } else { end / BLOCK };
        if first >= last {
            return;
        }
        let words = usize::try_from(self.len.div_ceil(BLOCK * 64)).unwrap_or(0);
        let written = self.written.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
        for block in first..last {
            if let Some(bits) = usize::try_from(block / 64).ok().and_then(|at| written.get(at)) {
                bits.fetch_or(1 << (block % 64), Ordering::Relaxed);
            }
        }
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
    _keeps: Option<Arc<dyn Any + Send + Sync>>,
}

impl View {
    /// The same, and as long as somebody has it what it is of stays too, as an object does that is
    /// mapped.
    pub(super) fn keeping(self, what: Arc<dyn Any + Send + Sync>) -> Self {
        View { _keeps: Some(what), ..self }
    }

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
    fn small_pieces_share_a_mapping_and_never_cross_its_end() {
        let arena = Arena::new("vram").unwrap();
        let pieces: Vec<_> = (0..40).map(|_| arena.piece(SEGMENT / 16).unwrap()).collect();
        for (n, piece) in (0_u8..).zip(&pieces) {
            assert_eq!(piece.start / SEGMENT, (piece.start + piece.len - 1) / SEGMENT);
            // SAFETY: the offset is that of the last byte.
            let last = unsafe { piece.at(piece.len - 1) }.unwrap();
            // SAFETY: nobody else uses it.
            unsafe { last.write_volatile(n) };
        }
        for (n, piece) in (0_u8..).zip(&pieces) {
            let mut byte = [0xff];
            piece.memory().unwrap().read(usize::try_from(piece.len - 1).unwrap(), &mut byte);
            assert_eq!(byte, [n]);
        }
        assert_eq!(arena.segments.lock().unwrap().len(), 3);
    }

    #[test]
    fn what_was_freed_is_zero_again() {
        let arena = Arena::new("vram").unwrap();
        let piece = arena.piece(4096).unwrap();
        piece.memory().unwrap().write(0, b"x");
        let start = piece.start;
        drop(piece);
        let again = Piece {
            arena: Arc::clone(&arena),
            start,
            len: 4096,
            segment: OnceLock::new(),
            memory: OnceLock::new(),
            written: OnceLock::new(),
        };
        assert!(again.is_hole(0, 4096));
    }

    #[test]
    fn what_was_written_is_found_and_remembered() {
        let arena = Arena::new("vram").unwrap();
        let (piece, _next) = (arena.piece(5 * BLOCK + 4096).unwrap(), arena.piece(4096).unwrap());
        let block = usize::try_from(BLOCK).unwrap();
        let ones = vec![1; 2 * block];
        piece.memory().unwrap().write(4096, &ones);
        // SAFETY: there are so many ones.
        unsafe { piece.write_file(5 * BLOCK, ones.as_ptr(), 4096) }.unwrap();
        for _ in 0..2 {
            assert_eq!(piece.extent(0, 8 * BLOCK), Ok(Extent::Hole(4096)));
            assert_eq!(piece.extent(5000, 10), Ok(Extent::Data(10)));
            assert_eq!(piece.extent(BLOCK, 3), Ok(Extent::Data(3)));
            assert_eq!(piece.extent(2 * BLOCK, BLOCK), Ok(Extent::Data(4096)));
            assert_eq!(
                piece.extent(2 * BLOCK + 4096, 9 * BLOCK),
                Ok(Extent::Hole(3 * BLOCK - 4096))
            );
            assert_eq!(piece.extent(5 * BLOCK, 4096), Ok(Extent::Data(4096)));
        }
        assert_eq!(piece.known(0, 6 * BLOCK), 0);
        assert_eq!(piece.known(BLOCK + 5, 2 * BLOCK), 2 * BLOCK);
        assert_eq!(piece.known(5 * BLOCK, 5 * BLOCK + 4096), 5 * BLOCK + 4096);
        let mut byte = [0];
        piece.memory().unwrap().read(5 * block + 4095, &mut byte);
        assert_eq!(byte, [1]);
    }
}
