//! Memory for an image that comes: mapped and populated by threads of its own, ahead of the thread
//! that reads.
//!
//! Getting pages from the kernel costs more than filling them does, so the two go side by side. Huge
//! pages cost least by far, where the kernel has them at hand; where it must move memory about first
//! to make them, they cost ten times as much as small ones. Only trying tells: a block's price is
//! looked at, and while it is high, small pages are used.

use std::{ops::Range, time::Duration};

use crossbeam_channel::{Receiver, Sender};
use memmap2::{Advice, MmapMut};
use nix::sys::resource::{UsageWho, getrusage};
use vramstream::ring::page_bytes;

use crate::{
    error::{Error, Result},
    format::MAX_CHUNK_BYTES,
};

/// A block. Holds the largest chunk; its unused end is a small part of it.
const BLOCK_BYTES: usize = MAX_CHUNK_BYTES as usize;
/// How many threads populate for one reader. Where pages are dear (a virtual machine whose host has
/// taken free memory back) one of them is slower than a reader.
const THREADS: usize = 2;
/// A block that huge pages are tried with: small, since it may be dear.
const TRIAL_BYTES: usize = 2 << 20;
/// What a trial may cost: twice what small pages of that size cost where this was measured
/// (0.3 s of processor time for 10^9 bytes).
const TRIAL_LIMIT: Duration = Duration::from_micros(1200);
/// How many blocks of small pages come before huge ones are tried again, after the first time that
/// they were dear; twice as many after each further time.
const BLOCKS_BETWEEN_TRIALS: u32 = 32;

/// Blocks, one after the other.
#[derive(Debug)]
pub(super) struct Blocks {
    supply: Option<Receiver<Result<MmapMut>>>,
    current: Option<MmapMut>,
    used: usize,
}

impl Blocks {
    /// Nothing is mapped before it is needed.
    pub(super) fn new() -> Self {
        Blocks { supply: None, current: None, used: 0 }
    }

    /// A range of `len` bytes, page aligned, in the block that is being filled; `None` if it has no
    /// room for it.
    pub(super) fn reserve(&mut self, len: usize) -> Option<Range<usize>> {
        let start = self.used.next_multiple_of(page_bytes());
        let end = start.checked_add(len)?;
        (end <= self.current.as_ref()?.len()).then(|| {
            self.used = end;
            start..end
        })
    }

    /// The bytes of a range that [`reserve`](Self::reserve) gave.
    pub(super) fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        self.current.as_mut().and_then(|block| block.get_mut(range)).unwrap_or_default()
    }

    /// Takes the block that was being filled, if there was one.
    pub(super) fn take(&mut self) -> Option<MmapMut> {
        self.used = 0;
        self.current.take()
    }

    /// Goes on to a block that has room for `len` bytes, at most [`MAX_CHUNK_BYTES`].
    pub(super) fn next(&mut self, len: usize) -> Result<()> {
        loop {
            let supply = match &self.supply {
                Some(supply) => supply,
                None => self.supply.insert(start()?),
            };
            let block = supply.recv().map_err(|_| Error::Panicked("memory".into()))??;
            if block.len() >= len {
                self.current = Some(block);
                self.used = 0;
                return Ok(());
            }
        }
    }
}

/// Starts the threads that map; they end when nobody takes blocks any more.
fn start() -> Result<Receiver<Result<MmapMut>>> {
    let (supply, taker) = crossbeam_channel::bounded(1);
    for _ in 0..THREADS {
        let supply = supply.clone();
        std::thread::Builder::new()
            .name("memory".into())
            .spawn(move || prepare(&supply))
            .map_err(Error::io(|| "start a thread that maps memory"))?;
    }
    Ok(taker)
}

fn prepare(supply: &Sender<Result<MmapMut>>) {
    let (mut huge, mut patience) = (Huge::Trial, BLOCKS_BETWEEN_TRIALS);
    loop {
        let bytes = if huge == Huge::Trial { TRIAL_BYTES } else { BLOCK_BYTES };
        let before = processor_time();
        let block = map(bytes, huge);
        huge = match huge {
            Huge::Trial | Huge::Yes => {
                let limit = TRIAL_LIMIT * u32::try_from(bytes / TRIAL_BYTES).unwrap_or(1);
                let dear = processor_time().saturating_sub(before) > limit;
                if dear {
                    patience = patience.saturating_mul(2);
                    Huge::No(patience / 2)
                } else {
                    Huge::Yes
                }
            }
            Huge::No(0) => Huge::Trial,
            Huge::No(left) => Huge::No(left - 1),
        };
        if supply.send(block).is_err() {
            return;
        }
    }
}

/// Whether to ask for huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Huge {
    Trial,
    Yes,
    No(u32),
}

fn map(bytes: usize, huge: Huge) -> Result<MmapMut> {
    let block = MmapMut::map_anon(bytes);
    let block = block.map_err(Error::io(|| format!("map {bytes} bytes of memory")))?;
    // Both are wishes: without them pages come one by one, when they are first written.
    if !matches!(huge, Huge::No(_)) {
        let _ = block.advise(Advice::HugePage);
    }
    let _ = block.advise(Advice::PopulateWrite);
    Ok(block)
}

/// What this thread has used.
fn processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Duration::ZERO };
    let micros = |time: nix::sys::time::TimeVal| {
        u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap_or(0)
    };
    Duration::from_micros(micros(usage.user_time()) + micros(usage.system_time()))
}
