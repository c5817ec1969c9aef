//! Copies between BOs and chunks by SDMA, several at a time.
//!
//! A [`CopyQueue`] has a render node of its own, and in that node's empty address space:
//!
//! ```text
//!  ┌ the ring, as one userptr BO ┐┌ IBs: a slot for each copy in flight ┐┌ BOs, while they are copied ···
//!  │ chunk 0 │ chunk 1 │ ...     ││ packets │ packets │ ...             ││
//!  └─────────────────────────────┘└─────────────────────────────────────┘└──────────────────────────────
//! ```
//!
//! [`read`](CopyQueue::read) and [`write`](CopyQueue::write) take a chunk by value; it belongs to
//! the device until [`finish_one`](CopyQueue::finish_one) gives it back after its fence. A chunk
//! whose fence never came, or came as an error, is condemned: nobody uses its memory again.
//!
//! Everything is made in the beginning, and nothing is allocated for a copy. Dropping the queue waits
//! for what is in flight (not longer than the deadline) and releases every mapping, handle and
//! context.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::BorrowedFd,
    path::Path,
    time::{Duration, Instant},
};

use super::{DeviceError, DeviceMemory, Driver, RenderInfo, RenderNode};
use crate::{
    abi::{amdgpu::BoListEntry, sdma},
    ring::{Chunk, Ring},
};

mod engines;
mod space;

use engines::rings_for;
use space::Space;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From BOs to chunks: a dump.
    ToHost,
    /// From chunks to BOs: a restore.
    ToDevice,
}

/// How much can be in flight, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Copies in flight on each DMA ring: two keep an engine busy.
    pub copies_per_ring: usize,
    /// Copies in flight altogether.
    pub copies: usize,
    /// How long a copy may take before the engine counts as hung.
    pub fence_deadline: Duration,
}

/// The most pieces of one copy: so many packets, and as many for pieces that are cut, fit in a slot.
pub const MOST_PIECES: usize = 1024;
/// A page of zeros, to copy from.
const ZERO_PAGE_BYTES: usize = 4096;
/// Bytes of one slot for packets.
const SLOT_BYTES: usize = 64 << 10;
/// The most pieces of one fill, each of which may need three packets.
pub const MOST_ZERO_PIECES: usize = 512;
/// The most bytes of one fill.
pub const MOST_ZEROS: u64 = 1 << 30;
/// GPU pages that are mapped together are found faster; larger BOs begin at such an address.
const LARGE: u64 = 2 << 20;

/// A BO that is mapped, by its place in the queue's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BoId(usize);

/// A range of a BO and where its bytes are in the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The BO.
    pub bo: BoId,
    /// Where in the BO.
    pub bo_offset: u64,
    /// Where in the chunk. A fill has no chunk and ignores this.
    pub chunk_offset: usize,
    /// How many bytes, at least one.
    pub len: u64,
}

/// A copy that is done.
#[derive(Debug)]
pub struct Finished {
    /// What the caller gave it.
    pub tag: u64,
    /// The chunk, if there was one: its bytes are readable now.
    pub chunk: Option<Chunk>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct CopyQueue {
    render: RenderNode,
    info: RenderInfo,
    ring: Ring,
    limits: Limits,
    packet_bytes: u64,
    dma_rings: Vec<u32>,
    context: u32,
    ring_handle: u32,
    ring_address: u64,
    ib_handle: u32,
    ib_address: u64,
    ib: Option<DeviceMemory>,
    free_slots: Vec<usize>,
    space: Space,
    bos: Vec<Option<Bound>>,
    free_bos: Vec<usize>,
    /// How many BOs have each handle: two dma-bufs of one BO have the same.
    handles: HashMap<u32, u32>,
    flights: VecDeque<Flight>,
    submitted: usize,
    // Kept between copies so that none allocates.
    packets: Vec<u32>,
    list: Vec<BoListEntry>,
}

/// A BO in the address space.
#[derive(Debug, Clone, Copy)]
struct Bound {
    handle: u32,
    address: u64,
    size: u64,
}

/// A copy that the engine has.
#[derive(Debug)]
struct Flight {
    tag: u64,
    chunk: Option<Chunk>,
    dma_ring: u32,
    number: u64,
    slot: usize,
    since: Instant,
}

impl CopyQueue {
    /// Opens the render node at `path` and prepares it for copies to and from chunks of `ring`.
    pub fn open(
        driver: &dyn Driver,
        path: &Path,
        ring: &Ring,
        direction: Direction,
        limits: Limits,
    ) -> Result<Self, DeviceError> {
        let render = RenderNode::open(driver, path)?;
        let info = render.info()?;
        let dma_rings = rings_for(&info, direction);
        let copies = limits.copies.min(limits.copies_per_ring * dma_rings.len()).max(1);
        let limits = Limits { copies, ..limits };
        let mut queue = CopyQueue {
            packet_bytes: sdma::packet_bytes(info.sdma_version.0, info.sdma_version.1),
            space: Space::new(info.addresses.clone()),
            render,
            info,
            ring: ring.clone(),
            limits,
            dma_rings,
            context: 0,
            ring_handle: 0,
            ring_address: 0,
            ib_handle: 0,
            ib_address: 0,
            ib: None,
            free_slots: (0..copies).rev().collect(),
            bos: Vec::new(),
            free_bos: Vec::new(),
            handles: HashMap::new(),
            flights: VecDeque::with_capacity(copies),
            submitted: 0,
            packets: Vec::with_capacity(SLOT_BYTES / 4),
            list: Vec::with_capacity(MOST_PIECES + 2),
        };
        // From here on dropping the queue releases whatever there is.
        queue.prepare()?;
        Ok(queue)
    }

    fn prepare(&mut self) -> Result<(), DeviceError> {
        self.context = self.render.new_context()?;
        let (start, bytes) = self.ring.memory();
        let address = start.as_ptr().expose_provenance() as u64;
        // SAFETY: the ring's memory stays mapped as long as `self.ring`, which is dropped after the
        // handle is closed; commands touch only chunks that this queue owns, and those whose end
        // is not known are condemned, which keeps the memory for ever.
        self.ring_handle = unsafe { self.render.user_memory(address, bytes as u64) }?;
        self.ring_address = self.map(self.ring_handle, bytes as u64)?;
        let ib_bytes = self.limits.copies * SLOT_BYTES + ZERO_PAGE_BYTES;
        let (handle, memory) = self.render.shared_memory(ib_bytes)?;
        (self.ib_handle, self.ib) = (handle, Some(memory));
        self.ib_address = self.map(handle, ib_bytes as u64)?;
        Ok(())
    }

    fn map(&mut self, handle: u32, bytes: u64) -> Result<u64, DeviceError> {
        let align = if bytes >= LARGE { LARGE } else { 4096 };
        let address = self.space.take(bytes, align).ok_or_else(|| DeviceError::Unsuitable {
            node: self.render.node().path().to_owned(),
            what: format!("no {bytes} bytes of GPU addresses are left"),
        })?;
        self.render.map(handle, address, bytes)?;
        Ok(address)
    }

    /// What the GPU is.
    pub fn info(&self) -> &RenderInfo {
        &self.info
    }

    /// How many copies can be in flight.
    pub fn depth(&self) -> usize {
        self.limits.copies
    }

    /// How many are.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Whether one more can be.
    pub fn has_room(&self) -> bool {
        !self.free_slots.is_empty()
    }

    /// Maps a BO of `size` bytes by its dma-buf.
    pub fn import(&mut self, dma_buf: BorrowedFd<'_>, size: u64) -> Result<BoId, DeviceError> {
        let handle = self.render.import(dma_buf)?;
        *self.handles.entry(handle).or_insert(0) += 1;
        let address = self.map(handle, size).inspect_err(|_| {
            let _ = self.close(handle);
        })?;
        let bound = Some(Bound { handle, address, size });
        let id = match self.free_bos.pop() {
            Some(id) => id,
            None => {
                self.bos.push(None);
                self.bos.len() - 1
            }
        };
        self.bos[id] = bound;
        Ok(BoId(id))
    }

    /// Unmaps a BO and closes its handle.
    pub fn release(&mut self, id: BoId) -> Result<(), DeviceError> {
        let Some(bound) = self.bos.get_mut(id.0).and_then(Option::take) else { return Ok(()) };
        self.free_bos.push(id.0);
        let unmapped = self.render.unmap(bound.handle, bound.address, bound.size);
        let closed = self.close(bound.handle);
        unmapped.and(closed)
    }

    fn close(&mut self, handle: u32) -> Result<(), DeviceError> {
        match self.handles.get_mut(&handle) {
            Some(users) if *users > 1 => {
                *users -= 1;
                Ok(())
            }
            _ => {
                self.handles.remove(&handle);
                self.render.close(handle)
            }
        }
    }

    /// Copies pieces of BOs into a chunk.
    ///
    /// # Panics
    ///
    /// If there is no room, the chunk is of another ring, there are more than [`MOST_PIECES`], or a
    /// piece is not inside its BO and the chunk.
    pub fn read(&mut self, chunk: Chunk, pieces: &[Piece], tag: u64) -> Result<(), DeviceError> {
        self.copy(chunk, pieces, tag, Direction::ToHost)
    }

    /// Copies from a chunk into pieces of BOs.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    pub fn write(&mut self, chunk: Chunk, pieces: &[Piece], tag: u64) -> Result<(), DeviceError> {
        self.copy(chunk, pieces, tag, Direction::ToDevice)
    }

    fn copy(
        &mut self,
        chunk: Chunk,
        pieces: &[Piece],
        tag: u64,
        direction: Direction,
    ) -> Result<(), DeviceError> {
        assert!(chunk.is_of(&self.ring), "the chunk is of another ring");
        let chunk_address = self.ring_address + (chunk.index() * self.ring.chunk_bytes()) as u64;
        self.packets.clear();
        for piece in pieces {
            let end =
                u64::try_from(piece.chunk_offset).ok().and_then(|at| at.checked_add(piece.len));
            assert!(end.is_some_and(|end| end <= chunk.len() as u64), "outside of the chunk");
            let host = chunk_address + piece.chunk_offset as u64;
            let device = self.address_of(piece);
            let (from, to) = match direction {
                Direction::ToHost => (device, host),
                Direction::ToDevice => (host, device),
            };
            for (at, bytes) in parts(piece.len, self.packet_bytes) {
                let packet = sdma::copy(self.info.family, from + at, to + at, bytes);
                self.packets.extend(packet);
            }
        }
        self.submit(Some(chunk), pieces, tag)
    }

    /// Fills pieces of BOs with zeros: at most [`MOST_ZEROS`] bytes in [`MOST_ZERO_PIECES`].
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    pub fn zero(&mut self, pieces: &[Piece], tag: u64) -> Result<(), DeviceError> {
        let (family, page) = (self.info.family, self.zero_page());
        self.packets.clear();
        for piece in pieces {
            let to = self.address_of(piece);
            // A fill is of whole words; what is before and after them is copied.
            let head = piece.len.min(to.next_multiple_of(4) - to);
            let tail = (piece.len - head) % 4;
            let middle = piece.len - head - tail;
            for (at, bytes) in parts(middle, sdma::FILL_BYTES) {
                self.packets.extend(sdma::fill_zero(family, to + head + at, bytes));
            }
            for (at, bytes) in [(0, head), (head + middle, tail)] {
                if let Ok(bytes @ 1..) = u32::try_from(bytes) {
                    self.packets.extend(sdma::copy(family, page, to + at, bytes));
                }
            }
        }
        self.submit(None, pieces, tag)
    }

    /// A page of zeros behind the slots.
    fn zero_page(&self) -> u64 {
        self.ib_address + (self.limits.copies * SLOT_BYTES) as u64
    }

    fn address_of(&self, piece: &Piece) -> u64 {
        let bound = self.bos.get(piece.bo.0).copied().flatten();
        let bound = bound.filter(|bound| {
            let end = piece.bo_offset.checked_add(piece.len);
            piece.len > 0 && end.is_some_and(|end| end <= bound.size)
        });
        #[allow(clippy::expect_used)] // the caller's contract
        let bound = bound.expect("a piece outside of its BO");
        bound.address + piece.bo_offset
    }

    /// Submits the packets.
    fn submit(
        &mut self,
        chunk: Option<Chunk>,
        pieces: &[Piece],
        tag: u64,
    ) -> Result<(), DeviceError> {
        assert!(self.packets.len() <= SLOT_BYTES / 4 - sdma::IB_ALIGN_WORDS, "too many pieces");
        while !self.packets.len().is_multiple_of(sdma::IB_ALIGN_WORDS) {
            self.packets.push(sdma::OP_NOP);
        }
        self.list.clear();
        let entry = |handle| BoListEntry { bo_handle: handle, bo_priority: 0 };
        self.list.extend([entry(self.ring_handle), entry(self.ib_handle)]);
        let bound = pieces.iter().filter_map(|piece| self.bos[piece.bo.0]);
        for bound in bound {
            // Pieces of one BO follow each other, and naming it once is enough.
            if self.list.last().is_none_or(|last| last.bo_handle != bound.handle) {
                self.list.push(entry(bound.handle));
            }
        }
        #[allow(clippy::expect_used)] // the caller's contract
        let slot = self.free_slots.pop().expect("no room for another copy");
        let at = slot * SLOT_BYTES;
        if let Some(memory) = &self.ib {
            memory.write_words(at, &self.packets);
        }
        let dma_ring = self.dma_rings[self.submitted % self.dma_rings.len()];
        let bytes = u32::try_from(4 * self.packets.len()).unwrap_or(u32::MAX);
        // SAFETY: the packets touch BOs of this address space, which nothing of ours refers to, and
        // ranges of `chunk` (both checked above), which is kept until the fence.
        let submitted = unsafe {
            self.render.submit(
                self.context,
                dma_ring,
                self.ib_address + at as u64,
                bytes,
                &self.list,
            )
        };
        match submitted {
            Ok(number) => {
                self.submitted += 1;
                let since = Instant::now();
                self.flights.push_back(Flight { tag, chunk, dma_ring, number, slot, since });
                Ok(())
            }
            Err(error) => {
                self.free_slots.push(slot);
                Err(error)
            }
        }
    }

    /// Waits for the oldest copy; `None` if there is none. After an error nothing is in flight, and
    /// the queue is of no more use.
    pub fn finish_one(&mut self) -> Result<Option<Finished>, DeviceError> {
        let deadline = self.limits.fence_deadline;
        self.finish_by(deadline)
    }

    fn finish_by(&mut self, deadline: Duration) -> Result<Option<Finished>, DeviceError> {
        let Some(flight) = self.flights.front() else { return Ok(None) };
        let left = deadline.saturating_sub(flight.since.elapsed());
        let done = self.render.wait(self.context, flight.dma_ring, flight.number, left);
        match done {
            Ok(true) => {
                let flight = self.flights.pop_front();
                Ok(flight.map(|flight| {
                    self.free_slots.push(flight.slot);
                    Finished { tag: flight.tag, chunk: flight.chunk }
                }))
            }
            Ok(false) => {
                self.condemn();
                Err(DeviceError::Hung {
                    node: self.render.node().path().to_owned(),
                    seconds: deadline.as_secs(),
                })
            }
            Err(error) => {
                self.condemn();
                Err(error)
            }
        }
    }

    /// Whether the oldest copy is done, without waiting.
    pub fn is_one_done(&self) -> bool {
        self.flights.front().is_some_and(|flight| {
            let now = Duration::ZERO;
            // An error is for `finish_one` to find.
            self.render.wait(self.context, flight.dma_ring, flight.number, now).unwrap_or(true)
        })
    }

    /// Nobody can say when the device will be done with what is in flight.
    fn condemn(&mut self) {
        for flight in self.flights.drain(..) {
            if let Some(chunk) = flight.chunk {
                chunk.condemn();
            }
        }
    }
}

impl CopyQueue {
    /// Gives everything back. Stops at the first call that fails, since the others would as well, and
    /// closing the file releases what is left.
    fn release_all(&mut self) -> Result<(), DeviceError> {
        for id in 0..self.bos.len() {
            self.release(BoId(id))?;
        }
        let ib_bytes = self.ib.take().map_or(0, |ib| ib.len());
        let ring_bytes = self.ring.memory().1;
        let memory = [
            (self.ib_handle, self.ib_address, ib_bytes),
            (self.ring_handle, self.ring_address, ring_bytes),
        ];
        for (handle, address, bytes) in memory {
            if address != 0 {
                self.render.unmap(handle, address, bytes as u64)?;
            }
            if handle != 0 {
                self.render.close(handle)?;
            }
        }
        if self.context != 0 {
            self.render.free_context(self.context)?;
        }
        Ok(())
    }
}

impl Drop for CopyQueue {
    fn drop(&mut self) {
        while let Ok(Some(_)) = self.finish_one() {}
        // Whoever drops a queue early has something more important to report.
        let _ = self.release_all();
    }
}

/// Cuts a length into parts of at most `most` bytes: where each begins and how long it is.
fn parts(len: u64, most: u64) -> impl Iterator<Item = (u64, u32)> {
    let count = len.div_ceil(most);
    (0..count).map(move |number| {
        let at = number * most;
        // A packet has far fewer than 2^32 bytes.
        (at, u32::try_from(most.min(len - at)).unwrap_or(u32::MAX))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_cut_into_packets() {
        assert_eq!(parts(10, 4).collect::<Vec<_>>(), [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(parts(8, 4).collect::<Vec<_>>(), [(0, 4), (4, 4)]);
        assert_eq!(parts(0, 4).count(), 0);
    }

    #[test]
    fn a_slot_has_room_for_the_most_pieces() {
        let words = SLOT_BYTES / 4 - sdma::IB_ALIGN_WORDS;
        assert!(2 * MOST_PIECES * sdma::COPY_WORDS <= words);
        let fills = usize::try_from(MOST_ZEROS / sdma::FILL_BYTES).unwrap() + MOST_ZERO_PIECES;
        let odd = 2 * MOST_ZERO_PIECES;
        assert!(fills * sdma::FILL_WORDS + odd * sdma::COPY_WORDS <= words);
    }
}
