//! Bytes from one object to another: one copy, straight between the two memories.
//!
//! VRAM that was never written reads as zeros without becoming memory, and zeros that go where
//! nothing was written are not written.

use nix::errno::Errno;

use crate::device::sim::{
    arena::{Extent, Piece},
    caller::UserMemory,
    object::{Object, Store},
};

/// How much goes through the engine's own memory where neither side can be reached by address.
const BOUNCE: usize = 64 << 10;

/// Zeros for memory that can only be written by copying.
static ZEROS: [u8; BOUNCE] = [0; BOUNCE];

/// One end of a copy.
#[derive(Clone, Copy)]
enum End<'a> {
    /// In a memory file of ours.
    Piece(&'a Piece, u64),
    /// In this process's own memory.
    Here(*mut u8),
    /// In another process.
    There(&'a dyn UserMemory, u64),
}

impl<'a> End<'a> {
    fn of(object: &'a Object, offset: u64, len: u64) -> nix::Result<Self> {
        let end = offset.checked_add(len).ok_or(Errno::EINVAL)?;
        if end > object.size {
            return Err(Errno::EINVAL);
        }
        Ok(match &object.store {
            Store::Vram(piece, _) | Store::Gtt(piece) | Store::Registers(piece) => {
                End::Piece(piece, offset)
            }
            Store::User { memory, address, .. } => match memory.local(address + offset) {
                Some(here) => End::Here(here),
                None => End::There(memory.as_ref(), address + offset),
            },
        })
    }

    /// # Safety
    ///
    /// The end has that many more bytes.
    unsafe fn skip(self, len: usize) -> Self {
        match self {
            End::Piece(piece, offset) => End::Piece(piece, offset + len as u64),
            // SAFETY: the caller says that there are so many.
            End::Here(start) => End::Here(unsafe { start.add(len) }),
            End::There(memory, address) => End::There(memory, address + len as u64),
        }
    }
}

/// Copies `len` bytes between objects, which may be the same; EINVAL outside of one.
pub(super) fn copy(
    from: &Object,
    from_offset: u64,
    to: &Object,
    to_offset: u64,
    len: u64,
) -> nix::Result<()> {
    let (mut source, mut target) = (End::of(from, from_offset, len)?, End::of(to, to_offset, len)?);
    let mut left = index(len)?;
    while left > 0 {
        let (done, zeros) = match source {
            End::Piece(piece, offset) => piece.extent(offset, left as u64)?.parts(),
            _ => (len, false),
        };
        let done = index(done)?.min(left);
        if zeros {
            clear(target, done)?;
        } else {
            put(source, target, done)?;
        }
        left -= done;
        // SAFETY: both have `left` bytes more than `done`.
        source = unsafe { source.skip(done) };
        // SAFETY: as above.
        target = unsafe { target.skip(done) };
    }
    Ok(())
}

/// Fills `len` bytes of an object with a pattern of up to four bytes.
pub(super) fn fill(to: &Object, offset: u64, len: u64, pattern: &[u8]) -> nix::Result<()> {
    let target = End::of(to, offset, len)?;
    if pattern.iter().all(|&byte| byte == 0) {
        return clear(target, index(len)?);
    }
    let block: Vec<u8> = pattern.iter().copied().cycle().take(4096).collect();
    let mut done = 0;
    while done < len {
        let piece = (len - done).min(block.len() as u64);
        to.fill_from(offset + done, &block[..index(piece)?])?;
        done += piece;
    }
    Ok(())
}

fn put(source: End<'_>, target: End<'_>, len: usize) -> nix::Result<()> {
    let remote = match (pointer(source)?, target) {
        // SAFETY: as below.
        (Ok(from), End::Piece(piece, offset)) => return unsafe { piece.write(offset, from, len) },
        (Ok(from), End::Here(to)) => {
            // SAFETY: both have so many bytes: pieces were checked by `End::of`, and who made a
            // userptr BO said that a device may use its memory. They may overlap.
            unsafe { std::ptr::copy(from, to, len) };
            return Ok(());
        }
        // SAFETY: as above.
        (Ok(from), End::There(memory, address)) => unsafe {
            return memory.write(address, from, len);
        },
        (Err(remote), _) => remote,
    };
    let (from, from_address) = remote;
    match pointer(target)? {
        // SAFETY: as above.
        Ok(to) => unsafe { from.read(from_address, to, len) },
        Err((to, to_address)) => {
            let mut bounce = vec![0; BOUNCE.min(len)];
            let mut done = 0;
            while done < len {
                let piece = bounce.len().min(len - done);
                let at = done as u64;
                // SAFETY: the buffer has room for a piece.
                unsafe { from.read(from_address + at, bounce.as_mut_ptr(), piece) }?;
                // SAFETY: the buffer has a piece.
                unsafe { to.write(to_address + at, bounce.as_ptr(), piece) }?;
                done += piece;
            }
            Ok(())
        }
    }
}

/// Zeros, but not where there are zeros because nothing was ever written.
fn clear(target: End<'_>, len: usize) -> nix::Result<()> {
    match target {
        // SAFETY: `End::of` has checked the range.
        End::Piece(piece, offset) => unsafe { piece.clear(offset, len) },
        End::Here(start) => {
            // SAFETY: as in `put`.
            unsafe { start.write_bytes(0, len) };
            Ok(())
        }
        End::There(memory, address) => {
            let mut done = 0;
            while done < len {
                let part = ZEROS.len().min(len - done);
                // SAFETY: there are so many zeros.
                unsafe { memory.write(address + done as u64, ZEROS.as_ptr(), part) }?;
                done += part;
            }
            Ok(())
        }
    }
}

type Remote<'a> = (&'a dyn UserMemory, u64);

/// Where an end is, if it can be reached by address.
fn pointer(end: End<'_>) -> nix::Result<Result<*mut u8, Remote<'_>>> {
    Ok(match end {
        // SAFETY: `End::of` has checked the range.
        End::Piece(piece, offset) => Ok(unsafe { piece.at(offset) }?),
        End::Here(start) => Ok(start),
        End::There(memory, address) => Err((memory, address)),
    })
}

/// Where a part of an object is in this process's memory, if it is there.
pub(super) fn address(object: &Object, offset: u64, len: u64) -> nix::Result<Option<*mut u8>> {
    Ok(pointer(End::of(object, offset, len)?)?.ok())
}

fn index(len: u64) -> nix::Result<usize> {
    usize::try_from(len).map_err(|_| Errno::EINVAL)
}

impl Extent {
    fn parts(self) -> (u64, bool) {
        match self {
            Extent::Data(len) => (len, false),
            Extent::Hole(len) => (len, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{abi::amdgpu::GemCreateIn, device::sim::arena::Arena};

    /// Memory that cannot be reached by address, as another process's.
    #[derive(Debug, Default)]
    struct Elsewhere(Mutex<Vec<u8>>);

    impl UserMemory for Elsewhere {
        unsafe fn read(&self, address: u64, to: *mut u8, len: usize) -> nix::Result<()> {
            let memory = self.0.lock().unwrap();
            let from = &memory[index(address)?..][..len];
            // SAFETY: the caller says that there is room.
            unsafe { std::ptr::copy(from.as_ptr(), to, len) };
            Ok(())
        }

        unsafe fn write(&self, address: u64, from: *const u8, len: usize) -> nix::Result<()> {
            let mut memory = self.0.lock().unwrap();
            let to = &mut memory[index(address)?..][..len];
            // SAFETY: the caller says that there are so many bytes.
            unsafe { std::ptr::copy(from, to.as_mut_ptr(), len) };
            Ok(())
        }

        fn check(&self, _: u64, _: u64) -> nix::Result<()> {
            Ok(())
        }
    }

    const SIZE: u64 = 3 << 16;
    const LEN: usize = 3 << 16;

    fn object(store: Store) -> Object {
        Object { gpu: 0, size: SIZE, store, create: GemCreateIn::default(), mmap_offset: 0 }
    }

    fn piece(arena: &Arc<Arena>) -> Object {
        object(Store::Gtt(arena.piece(SIZE).unwrap()))
    }

    fn elsewhere(byte: u8) -> (Arc<Elsewhere>, Object) {
        let memory = Arc::new(Elsewhere(Mutex::new(vec![byte; 4096 + LEN])));
        let store = Store::User { memory: memory.clone(), address: 4096, pid: 1 };
        (memory, object(store))
    }

    fn bytes(object: &Object) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        object.copy_to(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn holes_stay_holes() {
        let arena = Arena::new("test").unwrap();
        let (from, to) = (piece(&arena), piece(&arena));
        from.fill_from(70_000, b"data").unwrap();
        copy(&from, 0, &to, 0, SIZE).unwrap();
        let is_hole = |object: &Object, from, len| object.piece().unwrap().is_hole(from, len);
        assert_eq!(&bytes(&to)[69_999..70_005], b"\0data\0");
        for object in [&from, &to] {
            assert!(is_hole(object, 0, 69_632) && !is_hole(object, 69_632, 4096));
            assert!(is_hole(object, 73_728, SIZE - 73_728));
        }
        // Zeros over data are written, zeros over nothing are not.
        fill(&to, 0, SIZE, &[0; 4]).unwrap();
        assert!(bytes(&to).iter().all(|&byte| byte == 0) && is_hole(&to, 0, 69_632));
    }

    #[test]
    fn between_processes_and_memory_of_ours() {
        let arena = Arena::new("test").unwrap();
        let ((memory, there), (_, other), here) = (elsewhere(1), elsewhere(2), piece(&arena));
        copy(&there, 5, &here, 100, 70_000).unwrap();
        assert_eq!((bytes(&here)[99], bytes(&here)[100], bytes(&here)[70_099]), (0, 1, 1));
        assert_eq!(bytes(&here)[70_100], 0);
        copy(&other, 0, &there, 0, SIZE - 1).unwrap();
        assert_eq!(memory.0.lock().unwrap()[4095..4097], [1, 2]);
        assert_eq!(memory.0.lock().unwrap()[4096 + LEN - 2..], [2, 1]);
        // From a hole: zeros.
        copy(&here, 2 << 16, &there, 0, 1 << 16).unwrap();
        assert_eq!(memory.0.lock().unwrap()[4095..4097], [1, 0]);
        assert_eq!(copy(&here, 1, &there, 0, SIZE), Err(Errno::EINVAL));
        fill(&there, 1, 6, &[7, 8, 9, 10]).unwrap();
        assert_eq!(memory.0.lock().unwrap()[4096..4104], [0, 7, 8, 9, 10, 7, 8, 0]);
    }
}
