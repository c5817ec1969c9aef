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
        (Ok(from), End::Piece(piece, offset)) => return put_in_piece(from, piece, offset, len),
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

/// Where there is memory already it is written, elsewhere the file is.
fn put_in_piece(from: *mut u8, piece: &Piece, start: u64, len: usize) -> nix::Result<()> {
    let mut done = 0;
    while done < len {
        let offset = start + done as u64;
        let (part, hole) = piece.extent(offset, (len - done) as u64)?.parts();
        let part = index(part)?;
        // SAFETY: there are `len` bytes (see `put`).
        let next = unsafe { from.add(done) };
        if hole {
            // SAFETY: as above.
            unsafe { piece.write_file(offset, next, part) }?;
        } else {
            let to = at(piece, offset)?;
            // SAFETY: as above; `End::of` has checked the range of the piece.
            unsafe { std::ptr::copy(next, to, part) };
        }
        done += part;
    }
    Ok(())
}

/// Zeros, but not where there are zeros because nothing was ever written.
fn clear(target: End<'_>, len: usize) -> nix::Result<()> {
    match target {
        End::Piece(piece, start) => {
            let mut done = 0;
            while done < len as u64 {
                let (part, zeros) = piece.extent(start + done, len as u64 - done)?.parts();
                if !zeros {
                    let to = at(piece, start + done)?;
                    // SAFETY: the part is inside the piece, whose range `End::of` has checked.
                    unsafe { to.write_bytes(0, index(part)?) };
                }
                done += part;
            }
            Ok(())
        }
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
        End::Piece(piece, offset) => Ok(at(piece, offset)?),
        End::Here(start) => Ok(start),
        End::There(memory, address) => Err((memory, address)),
    })
}

fn at(piece: &Piece, offset: u64) -> nix::Result<*mut u8> {
    if offset > piece.len() {
        return Err(Errno::EINVAL);
    }
    let start = piece.memory()?.as_ptr();
    // SAFETY: not past the end of the mapping, which is as long as the piece.
    Ok(unsafe { start.add(index(offset)?) })
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
