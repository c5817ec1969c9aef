//! The pool itself: one anonymous mapping, cut into chunks, lent and given back.

use std::{
    fmt,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use memmap2::MmapMut;

use super::lender::Lender;

/// Why a ring could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The chunk is not a whole number of pages, or there is no chunk.
    #[error(
        "a ring of {chunks} chunks of {chunk_bytes} bytes cannot be: chunks are whole pages of {} bytes, at least one",
        page_bytes()
    )]
    Shape {
        /// Bytes asked for in each chunk.
        chunk_bytes: usize,
        /// Number of chunks asked for.
        chunks: usize,
    },
    /// The kernel gave no memory.
    #[error(
        "cannot map {bytes} bytes for the chunk ring: give a smaller --memory or KFD_MAX_BUFFER_SIZE, or raise the limit on address space"
    )]
    Map {
        /// Bytes of the whole ring.
        bytes: usize,
        /// What mmap(2) answered.
        #[source]
        source: std::io::Error,
    },
}

/// The size of a page of this machine, in bytes.
pub fn page_bytes() -> usize {
    // The call cannot fail on Linux; 4096 is right on the only architecture that has KFD.
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(4096)
}

/// A fixed number of page-aligned chunks of one size. Clones share the same chunks.
#[derive(Clone)]
pub struct Ring {
    shared: Arc<Shared>,
}

struct Shared {
    /// Keeps the memory that every chunk points into.
    _memory: Mutex<MmapMut>,
    base: NonNull<u8>,
    chunk_bytes: usize,
    chunks: usize,
    lender: Lender,
    cpu_writes: AtomicU64,
}

// SAFETY: `base` is only ever used to make the slice of one chunk, and the free list hands each
// chunk index to one owner at a time, so no two threads reach the same bytes.
unsafe impl Send for Shared {}
// SAFETY: as above; everything else in `Shared` is Sync by itself.
unsafe impl Sync for Shared {}

impl Ring {
    /// Maps `chunks` chunks of `chunk_bytes` (a multiple of the page size) each, and takes their
    /// pages from the machine: what a run needs it has from its start.
    pub fn new(chunk_bytes: usize, chunks: usize) -> Result<Self, RingError> {
        let shape = RingError::Shape { chunk_bytes, chunks };
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(page_bytes()) || chunks == 0 {
            return Err(shape);
        }
        let (Some(bytes), Ok(count)) = (chunk_bytes.checked_mul(chunks), u32::try_from(chunks))
        else {
            return Err(shape);
        };
        let mut memory =
            MmapMut::map_anon(bytes).map_err(|source| RingError::Map { bytes, source })?;
        // Huge pages where they can be had: fewer faults and fewer entries to walk for splice.
        // Only for chunks of that size: smaller ones would make a run touch more than it uses.
        if chunk_bytes >= 2 << 20 {
            let _ = memory.advise(memmap2::Advice::HugePage);
        }
        // Older kernels do not know this and give pages when they are first written.
        let _ = memory.advise(memmap2::Advice::PopulateWrite);
        let base = NonNull::from(&mut memory[..]).cast();
        let shared = Shared {
            _memory: Mutex::new(memory),
            base,
            chunk_bytes,
            chunks,
            lender: Lender::new(count),
            cpu_writes: AtomicU64::new(0),
        };
        Ok(Ring { shared: Arc::new(shared) })
    }

    /// Bytes in each chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.shared.chunk_bytes
    }

    /// Number of chunks, free or lent.
    pub fn chunks(&self) -> usize {
        self.shared.chunks
    }

    /// Chunks that are free now.
    pub fn free(&self) -> usize {
        self.shared.lender.free()
    }

    /// Chunks that will never be free again, because a device may still be writing to them.
    pub fn condemned(&self) -> usize {
        self.shared.lender.condemned()
    }

    /// How often somebody in this process has taken a chunk's memory to write to it. What devices and
    /// the kernel write does not count, so this shows whether bytes were copied on their way.
    pub fn cpu_writes(&self) -> u64 {
        self.shared.cpu_writes.load(Ordering::Relaxed)
    }

    /// A chunk if one is free. Its contents are whatever its last owner left there.
    pub fn try_take(&self) -> Option<Chunk> {
        self.shared.lender.lend().map(|index| self.lend(index))
    }

    /// A chunk, waiting at most `timeout` for one to come back.
    pub fn take(&self, timeout: Duration) -> Option<Chunk> {
        self.shared.lender.wait(timeout).map(|index| self.lend(index))
    }

    fn lend(&self, index: u32) -> Chunk {
        Chunk { shared: Arc::clone(&self.shared), index }
    }

    /// The whole memory of the ring, for registering it with a kernel interface.
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize) {
        (self.shared.base, self.shared.chunk_bytes * self.shared.chunks)
    }

    /// Where the memory begins, for a device that reads and writes chunks by address. Whoever gives
    /// the address away gives a chunk with it, or takes care that the device keeps off the others.
    pub(crate) fn address(&self) -> u64 {
        // A simulated device makes pointers of addresses again.
        self.shared.base.as_ptr().expose_provenance() as u64
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("chunk_bytes", &self.chunk_bytes())
            .field("chunks", &self.chunks())
            .field("free", &self.free())
            .finish()
    }
}

/// A chunk on loan from a [`Ring`]; dropping it gives it back.
pub struct Chunk {
    shared: Arc<Shared>,
    index: u32,
}

impl Chunk {
    /// Which chunk of its ring this is, from 0.
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// Whether this chunk is of that ring.
    pub fn is_of(&self, ring: &Ring) -> bool {
        Arc::ptr_eq(&self.shared, &ring.shared)
    }

    /// The ring this chunk is of.
    pub fn ring(&self) -> Ring {
        Ring { shared: Arc::clone(&self.shared) }
    }

    /// Where the chunk begins in the memory of its ring, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.index() * self.shared.chunk_bytes
    }

    /// Gives the chunk up, because a device that was told to write to it never said that it is
    /// done. Nobody gets this chunk again, and the memory of the ring stays mapped until the
    /// process ends: what else might be mapped there would be written over.
    pub(crate) fn condemn(self) {
        // Not dropped, it does not come back, and its share of the ring is never given up.
        let chunk = ManuallyDrop::new(self);
        chunk.shared.lender.condemn();
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: the index came from the free list, so it is below `chunks`, and the mapping has
        // `chunks * chunk_bytes` bytes: the result is inside it.
        unsafe { self.shared.base.add(self.offset()) }
    }
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as `shared`, anonymous memory is initialised (zero),
        // and this value is the only owner of the range, so nothing writes it while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.shared.chunk_bytes) }
    }
}

impl DerefMut for Chunk {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.shared.cpu_writes.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as in `deref`, and the exclusive borrow of the only owner makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.shared.chunk_bytes) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.shared.lender.give_back(self.index);
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk").field("index", &self.index).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shapes_that_cannot_be() {
        for (bytes, chunks) in [(0, 1), (4096, 0), (4097, 1), (usize::MAX & !4095, 2)] {
            assert!(matches!(Ring::new(bytes, chunks), Err(RingError::Shape { .. })));
        }
    }

    #[test]
    fn a_dropped_chunk_wakes_the_one_who_waits() {
        let ring = Ring::new(page_bytes(), 1).unwrap();
        let chunk = ring.try_take().unwrap();
        assert!(ring.try_take().is_none());
        assert!(ring.take(Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| ring.take(Duration::from_secs(60)).is_some());
            drop(chunk);
            assert!(waiter.join().unwrap());
        });
        assert_eq!(ring.free(), 1);
    }

    #[test]
    fn a_panic_gives_the_chunk_back() {
        let ring = Ring::new(page_bytes(), 1).unwrap();
        let chunk = ring.try_take().unwrap();
        let outcome = std::thread::spawn(move || {
            let _held = chunk;
            panic!("on purpose");
        })
        .join();
        assert!(outcome.is_err());
        assert_eq!(ring.free(), 1);
    }

    #[test]
    fn a_condemned_chunk_never_comes_back_and_its_memory_stays() {
        let ring = Ring::new(page_bytes(), 2).unwrap();
        let mut chunk = ring.try_take().unwrap();
        chunk.fill(7);
        let address = ring.address() + chunk.offset() as u64;
        assert_eq!(chunk.as_ptr().addr() as u64, address);
        chunk.condemn();
        assert_eq!((ring.free(), ring.condemned()), (1, 1));
        let other = ring.try_take().unwrap();
        assert_ne!(other.index(), 0);
        assert!(ring.take(Duration::from_millis(1)).is_none());
        drop((other, ring));
        // What a device that is late would find there.
        let late = std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(address).unwrap());
        // SAFETY: the ring's memory is never unmapped, and nobody else has this chunk.
        unsafe { late.write_volatile(8) };
        let next = late.wrapping_add(1);
        // SAFETY: as above.
        assert_eq!(unsafe { next.read_volatile() }, 7);
    }

    #[test]
    fn a_wait_without_end_is_a_wait() {
        let ring = Ring::new(page_bytes(), 1).unwrap();
        let chunk = ring.take(Duration::MAX).unwrap();
        assert!(ring.take(Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| ring.take(Duration::MAX).is_some());
            drop(chunk);
            assert!(waiter.join().unwrap());
        });
    }

    #[test]
    fn chunks_outlive_the_ring() {
        let ring = Ring::new(page_bytes(), 2).unwrap();
        let mut chunk = ring.try_take().unwrap();
        drop(ring);
        chunk.fill(7);
        assert!(chunk.iter().all(|&b| b == 7));
    }

    proptest! {
        /// Whatever is taken and dropped in whatever order: chunks never overlap, none is lost.
        #[test]
        fn chunks_are_disjoint_and_come_back(steps in prop::collection::vec(any::<(bool, u8)>(), 0..200)) {
            let ring = Ring::new(page_bytes(), 5).unwrap();
            let mut held: Vec<(u8, Chunk)> = Vec::new();
            for (take, n) in steps {
                if take {
                    match ring.try_take() {
                        Some(mut chunk) => { chunk.fill(n); held.push((n, chunk)); }
                        None => prop_assert_eq!(held.len(), 5),
                    }
                } else if !held.is_empty() {
                    held.swap_remove(n as usize % held.len());
                }
                for (n, chunk) in &held {
                    prop_assert!(chunk.iter().all(|b| b == n));
                }
                prop_assert_eq!(ring.free() + held.len(), 5);
            }
        }
    }
}
