//! Chunks that the kernel knows already: it looks their pages up once, not at each write.
//!
//! Every chunk is registered when it is first written, not the whole ring at once: registering pins
//! memory, and a run that needs three chunks shall take the memory of three. Where the limit on
//! locked memory or the kernel forbids it, chunks are simply not registered, and written all the
//! same.

use io_uring::Submitter;
use nix::libc::iovec;

use crate::ring::{Chunk, Ring};

/// How many chunks one writer can have registered. More work unregistered.
const TABLE: u16 = 1024;

/// Which chunks are registered with one io_uring, and as what.
#[derive(Debug, Default)]
pub(super) struct Registered {
    /// The rings whose chunks have places in the table. Kept here, their memory stays mapped for as
    /// long as it is registered.
    rings: Vec<Places>,
    used: u16,
    /// Cleared for good at the first refusal.
    registers: bool,
}

#[derive(Debug)]
struct Places {
    ring: Ring,
    first: u16,
    known: Vec<bool>,
}

impl Registered {
    /// An empty table in the kernel; an absent one where the kernel has no such thing.
    pub(super) fn new(submitter: &Submitter<'_>) -> Self {
        let registers = submitter.register_buffers_sparse(TABLE.into()).is_ok();
        Registered { registers, ..Registered::default() }
    }

    /// The place of a chunk in the table, registering it if it has none. `None` where it must be
    /// written unregistered.
    pub(super) fn place(&mut self, submitter: &Submitter<'_>, chunk: &Chunk) -> Option<u16> {
        let places = match self.rings.iter().position(|places| chunk.is_of(&places.ring)) {
            Some(known) => self.rings.get_mut(known)?,
            None if self.registers => {
                let ring = chunk.ring();
                let chunks = u16::try_from(ring.chunks()).ok()?;
                let first = self.used;
                self.used = first.checked_add(chunks).filter(|&used| used <= TABLE)?;
                self.rings.push(Places { ring, first, known: vec![false; chunks.into()] });
                self.rings.last_mut()?
            }
            None => return None,
        };
        let place = places.first + u16::try_from(chunk.index()).ok()?;
        let known = places.known.get_mut(chunk.index())?;
        if !*known && self.registers {
            let (base, _) = places.ring.memory();
            let (bytes, index) = (places.ring.chunk_bytes(), chunk.index());
            // SAFETY: the chunk is of this ring, so `index` is below its number of chunks and the
            // result is inside its memory.
            let start = unsafe { base.add(index * bytes) };
            let buffer = iovec { iov_base: start.as_ptr().cast(), iov_len: bytes };
            // SAFETY: the range is mapped, and stays so while it is registered: `places.ring` keeps
            // the mapping, and the io_uring is closed before this table is dropped. Registering
            // reads and writes no byte of it.
            *known = unsafe {
                submitter.register_buffers_update(place.into(), std::slice::from_ref(&buffer), None)
            }
            .is_ok();
            self.registers = *known;
        }
        known.then_some(place)
    }

    /// How many chunks are registered.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.rings.iter().flat_map(|places| &places.known).filter(|known| **known).count()
    }
}
