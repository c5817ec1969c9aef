//! The queue itself.

use std::{
    collections::VecDeque,
    os::fd::BorrowedFd,
    path::Path,
    time::{Duration, Instant},
};

use super::{
    BoId, Direction, Finished, Limits, MOST_PIECES, Piece, bos::Bos, engines::rings_for,
    space::Space,
};
use crate::{
    abi::{amdgpu::BoListEntry, sdma},
    device::{DeviceError, DeviceMemory, Driver, RenderInfo, RenderNode},
    ring::{Chunk, Ring},
};

/// A page of zeros, to copy from.
const ZERO_PAGE_BYTES: usize = 4096;
/// Bytes of one slot for packets.
const SLOT_BYTES: usize = 64 << 10;

/// See the [module](super).
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
    bos: Bos,
    flights: VecDeque<Flight>,
    submitted: usize,
    // Kept between copies so that none allocates.
    packets: Vec<u32>,
    list: Vec<BoListEntry>,
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
        CopyQueue::new(RenderNode::open(driver, path)?, ring, direction, limits)
    }

    /// Prepares a render node for copies. Its address space must be empty, and nobody else may map
    /// anything there.
    pub fn new(
        render: RenderNode,
        ring: &Ring,
        direction: Direction,
        limits: Limits,
    ) -> Result<Self, DeviceError> {
        let info = render.info()?;
        let dma_rings = rings_for(&info, direction);
        let copies = limits.copies.min(limits.copies_per_ring * dma_rings.len()).max(1);
        let limits = Limits { copies, ..limits };
        let mut queue = CopyQueue {
            packet_bytes: sdma::packet_bytes(info.sdma_version.0, info.sdma_version.1),
            bos: Bos::new(Space::new(info.addresses.clone())),
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
        let (address, bytes) = (self.ring.address(), self.ring.memory().1);
        // SAFETY: the ring's memory stays mapped as long as `self.ring`, which is dropped after the
        // handle is closed; commands touch only chunks that this queue owns, and those whose end
        // is not known are condemned, which keeps the memory for ever.
        self.ring_handle = unsafe { self.render.user_memory(address, bytes as u64) }?;
        self.ring_address = self.bos.map(&self.render, self.ring_handle, bytes as u64)?;
        let ib_bytes = self.limits.copies * SLOT_BYTES + ZERO_PAGE_BYTES;
        let (handle, memory) = self.render.shared_memory(ib_bytes)?;
        (self.ib_handle, self.ib) = (handle, Some(memory));
        self.ib_address = self.bos.map(&self.render, handle, ib_bytes as u64)?;
        Ok(())
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
        self.bos.import(&self.render, dma_buf, size)
    }

    /// Unmaps a BO and closes its handle.
    pub fn release(&mut self, id: BoId) -> Result<(), DeviceError> {
        self.bos.release(&self.render, id)
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
        let chunk_address = self.ring_address + chunk.offset() as u64;
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

    /// Fills pieces of BOs with zeros: at most [`MOST_ZEROS`](super::MOST_ZEROS) bytes in
    /// [`MOST_ZERO_PIECES`](super::MOST_ZERO_PIECES).
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
        #[allow(clippy::expect_used)] // the caller's contract
        self.bos.address_of(piece).expect("a piece is inside its BO")
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
        for handle in pieces.iter().filter_map(|piece| self.bos.handle(piece.bo)) {
            // Pieces of one BO follow each other, and naming it once is enough.
            if self.list.last().is_none_or(|last| last.bo_handle != handle) {
                self.list.push(entry(handle));
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

    /// Waits for the oldest copy; `None` if there is none. After an error the queue is of no more use.
    pub fn finish_one(&mut self) -> Result<Option<Finished>, DeviceError> {
        let Some(flight) = self.flights.front() else { return Ok(None) };
        if !self.is_done(flight, self.limits.fence_deadline)? {
            return Err(DeviceError::Hung {
                node: self.render.node().path().to_owned(),
                seconds: self.limits.fence_deadline.as_secs(),
            });
        }
        Ok(self.flights.pop_front().map(|flight| {
            self.free_slots.push(flight.slot);
            Finished { tag: flight.tag, chunk: flight.chunk }
        }))
    }

    /// Whether a copy is done, waiting until so long after it was submitted.
    fn is_done(&self, flight: &Flight, deadline: Duration) -> Result<bool, DeviceError> {
        let left = deadline.saturating_sub(flight.since.elapsed());
        self.render.wait(self.context, flight.dma_ring, flight.number, left)
    }

    /// Ends what is in flight. Where nobody can say when the device will be done with a chunk, it is
    /// condemned.
    fn settle(&mut self) {
        while let Some(mut flight) = self.flights.pop_front() {
            let done = self.is_done(&flight, self.limits.fence_deadline);
            if let (Some(chunk), false) = (flight.chunk.take(), done == Ok(true)) {
                chunk.condemn();
            }
        }
    }
}

impl CopyQueue {
    /// Gives everything back. Stops at the first call that fails, since the others would as well, and
    /// closing the file releases what is left.
    fn release_all(&mut self) -> Result<(), DeviceError> {
        self.bos.release_all(&self.render)?;
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
        self.settle();
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
    use super::{
        super::{MOST_ZERO_PIECES, MOST_ZEROS},
        *,
    };

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
