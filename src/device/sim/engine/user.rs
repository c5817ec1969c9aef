//! The packets of a user queue, executed one at a time.
//!
//! A user queue belongs to a process, not to a submission: what it may touch is what the process has
//! mapped on the GPU, and what it does wrong is a fault of the process.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{self, AtomicU32, AtomicU64, Ordering},
};

use super::{
    Engines,
    packets::{self, Compare, Packet},
    transfer,
};
use crate::{
    abi::amdgpu::va_flag,
    device::sim::{fence::monotonic, object::Object, vm::Vm},
};

/// Most packets are not longer: the rest of the ring is read for those that are.
const WINDOW: u64 = 256;

/// Executes packets for a queue.
#[derive(Debug)]
pub(in super::super) struct UserEngine {
    engines: Arc<Engines>,
    vm: Arc<Mutex<Vm>>,
    ranges: Box<dyn SharedRanges>,
}

/// Memory of a process that a GPU reaches where the process has it, without a BO.
pub(in super::super) trait SharedRanges: std::fmt::Debug + Send {
    /// As an object, and how far into it the address is; `None` if there is none.
    fn at(&self, va: u64) -> Option<(Arc<Object>, u64)>;
}

/// What is in a ring.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Ring {
    pub address: u64,
    /// In bytes, a power of two.
    pub size: u64,
    /// Bytes that were executed, ever.
    pub read: u64,
    /// Bytes that were written, ever.
    pub write: u64,
}

/// What came of a packet of a length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Step {
    Done(u64),
    /// It is an interrupt, and the caller's to raise.
    Trap {
        context: u32,
        len: u64,
    },
    /// It waits for something, or for its own rest.
    NotYet,
}

/// What a queue does not survive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Trouble {
    /// Memory that is not there, or not for this.
    Page { va: u64, written: bool, why: String },
    /// A packet that makes no sense.
    Packet(String),
}

/// A stretch of an object.
struct Stretch {
    object: Arc<Object>,
    offset: u64,
    len: u64,
}

impl UserEngine {
    pub(in super::super) fn new(
        engines: &Arc<Engines>,
        vm: &Arc<Mutex<Vm>>,
        ranges: Box<dyn SharedRanges>,
    ) -> Self {
        UserEngine { engines: Arc::clone(engines), vm: Arc::clone(vm), ranges }
    }

    /// Executes the first packet of a ring that is not empty.
    pub(in super::super) fn step(&self, ring: Ring) -> Result<Step, Trouble> {
        let filled = ring.write.wrapping_sub(ring.read);
        if filled > ring.size || !filled.is_multiple_of(4) || !ring.read.is_multiple_of(4) {
            let Ring { read, write, size, .. } = ring;
            let what = format!("from {read:#x} to {write:#x} in a ring of {size:#x} bytes");
            return Err(Trouble::Packet(what));
        }
        let mut bytes = Vec::new();
        for window in [WINDOW.min(filled), filled] {
            self.read_ring(ring, window, &mut bytes)?;
            let (words, _) = bytes.as_chunks();
            match packets::next(words, 0, self.engines.dialect) {
                Ok((packet, words)) => return self.execute(packet, words as u64 * 4),
                Err(unknown) if unknown.is_short() => {}
                Err(unknown) => {
                    let word = ring.read % ring.size / 4;
                    let what = format!("the packet at word {word} of the ring: {}", unknown.why);
                    return Err(Trouble::Packet(what));
                }
            }
        }
        if filled == ring.size {
            return Err(Trouble::Packet("a packet that is longer than the ring".into()));
        }
        Ok(Step::NotYet)
    }

    fn read_ring(&self, ring: Ring, len: u64, bytes: &mut Vec<u8>) -> Result<(), Trouble> {
        let start = ring.read % ring.size;
        let first = len.min(ring.size - start);
        let index = |len: u64| {
            usize::try_from(len).map_err(|_| Trouble::Packet("a ring of this size".into()))
        };
        bytes.resize(index(len)?, 0);
        let (one, two) = bytes.split_at_mut(index(first)?);
        self.read(ring.address + start, one)?;
        self.read(ring.address, two)
    }

    fn execute(&self, packet: Packet<'_>, len: u64) -> Result<Step, Trouble> {
        match packet {
            Packet::Idle => {}
            Packet::Copy { from, to, len } => self.copy(from, to, len)?,
            Packet::Fill { to, len, value, unit } => self.fill(to, len, &value[..unit])?,
            Packet::Write { to, words } => self.write(to, words.as_flattened())?,
            Packet::Trap { context } => return Ok(Step::Trap { context, len }),
            Packet::Poll { at, mask, value, compare } => {
                let mut word = [0; 4];
                self.read(at, &mut word)?;
                if !compare.holds(u32::from_le_bytes(word) & mask, value) {
                    return Ok(Step::NotYet);
                }
            }
            Packet::Add { to, value, unit } => self.add(to, value, unit)?,
            // The clock of all GPUs goes at 100 MHz.
            Packet::Timestamp { to } => self.write(to, &(monotonic() / 10).to_le_bytes())?,
        }
        Ok(Step::Done(len))
    }

    /// Reads memory of the process as the GPU sees it.
    pub(in super::super) fn read(&self, va: u64, bytes: &mut [u8]) -> Result<(), Trouble> {
        let mut done = 0;
        while done < bytes.len() {
            let at = va.wrapping_add(done as u64);
            let stretch = self.stretch(at, false)?;
            let piece = piece(&stretch, bytes.len() - done);
            let into = &mut bytes[done..done + piece];
            stretch.object.copy_to(stretch.offset, into).map_err(|errno| gone(at, false, errno))?;
            done += piece;
        }
        Ok(())
    }

    /// Writes memory of the process, after all that was written before.
    pub(in super::super) fn write(&self, va: u64, bytes: &[u8]) -> Result<(), Trouble> {
        atomic::fence(Ordering::Release);
        let mut done = 0;
        while done < bytes.len() {
            let at = va.wrapping_add(done as u64);
            let stretch = self.stretch(at, true)?;
            let piece = piece(&stretch, bytes.len() - done);
            let from = &bytes[done..done + piece];
            let written = stretch.object.fill_from(stretch.offset, from);
            written.map_err(|errno| gone(at, true, errno))?;
            done += piece;
        }
        self.engines.traffic.filled(bytes.len() as u64);
        Ok(())
    }

    fn copy(&self, from: u64, to: u64, len: u64) -> Result<(), Trouble> {
        let mut done = 0;
        while done < len {
            let (at, there) = (from.wrapping_add(done), to.wrapping_add(done));
            let (source, target) = (self.stretch(at, false)?, self.stretch(there, true)?);
            let piece = (len - done).min(source.len).min(target.len);
            transfer::copy(&source.object, source.offset, &target.object, target.offset, piece)
                .map_err(|errno| gone(at, false, errno))?;
            self.engines.traffic.copied(&source.object, &target.object, piece);
            done += piece;
        }
        Ok(())
    }

    fn fill(&self, to: u64, len: u64, pattern: &[u8]) -> Result<(), Trouble> {
        let mut done = 0;
        while done < len {
            let at = to.wrapping_add(done);
            let target = self.stretch(at, true)?;
            let piece = (len - done).min(target.len);
            transfer::fill(&target.object, target.offset, piece, pattern)
                .map_err(|errno| gone(at, true, errno))?;
            self.engines.traffic.filled(piece);
            done += piece;
        }
        Ok(())
    }

    /// Adds to a number in memory, at once where this process has that memory; to memory of another
    /// process, which may see it change in between.
    fn add(&self, to: u64, value: u64, unit: usize) -> Result<(), Trouble> {
        if !to.is_multiple_of(unit as u64) {
            return Err(Trouble::Packet(format!("it adds to {to:#x}, inside of a number")));
        }
        let stretch = self.stretch(to, true)?;
        let place = transfer::address(&stretch.object, stretch.offset, unit as u64)
            .map_err(|errno| gone(to, true, errno))?;
        let low = u32::try_from(value & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        match (place, unit) {
            (Some(place), 8) => {
                // SAFETY: the number is inside the object, which is mapped, and aligned.
                let number = unsafe { AtomicU64::from_ptr(place.cast()) };
                number.fetch_add(value, Ordering::AcqRel);
            }
            (Some(place), _) => {
                // SAFETY: as above.
                let number = unsafe { AtomicU32::from_ptr(place.cast()) };
                number.fetch_add(low, Ordering::AcqRel);
            }
            (None, _) => {
                let mut bytes = [0; 8];
                self.read(to, &mut bytes[..unit])?;
                let sum = u64::from_le_bytes(bytes).wrapping_add(value).to_le_bytes();
                self.write(to, &sum[..unit])?;
            }
        }
        Ok(())
    }

    /// What is at an address, if the queue may do this with it.
    fn stretch(&self, va: u64, written: bool) -> Result<Stretch, Trouble> {
        let vm = self.vm.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = |why: &str| Trouble::Page { va, written, why: why.into() };
        let Some((mapped, offset)) = vm.lookup(va) else {
            drop(vm);
            let shared = self.ranges.at(va);
            let (object, offset) = shared.ok_or_else(|| fault("nothing is mapped there"))?;
            let len = object.size - offset;
            return Ok(Stretch { object, offset, len });
        };
        let needed = if written { va_flag::WRITEABLE } else { va_flag::READABLE };
        if mapped.flags & u64::from(needed) == 0 {
            return Err(fault("it is not mapped for this"));
        }
        Ok(Stretch {
            object: Arc::clone(&mapped.object),
            offset: mapped.offset + offset,
            len: mapped.len - offset,
        })
    }
}

fn piece(stretch: &Stretch, most: usize) -> usize {
    usize::try_from(stretch.len).map_or(most, |len| len.min(most))
}

fn gone(va: u64, written: bool, errno: nix::errno::Errno) -> Trouble {
    Trouble::Page { va, written, why: errno.to_string() }
}

impl Compare {
    fn holds(self, memory: u32, value: u32) -> bool {
        match self {
            Compare::Always => true,
            Compare::Less => memory < value,
            Compare::LessOrEqual => memory <= value,
            Compare::Equal => memory == value,
            Compare::NotEqual => memory != value,
            Compare::GreaterOrEqual => memory >= value,
            Compare::Greater => memory > value,
        }
    }
}
