//! A number that a process shares with those that it forks.

use std::{
    num::NonZeroUsize,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::{
    libc::c_void,
    sys::mman::{MapFlags, ProtFlags, mmap_anonymous},
};

/// A counter. It is never unmapped: tasks that CRIU restores come to an end in which nothing is given
/// back, and CRIU itself ends soon.
#[derive(Debug)]
pub(super) struct Counter(NonNull<c_void>);

// SAFETY: the memory is read and written as an atomic alone, and stays mapped.
unsafe impl Send for Counter {}

impl Counter {
    /// A counter at 0; `None` if there is no memory for it.
    pub(super) fn new() -> Option<Self> {
        let len = NonZeroUsize::new(size_of::<AtomicU32>())?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room.
        unsafe { mmap_anonymous(None, len, access, MapFlags::MAP_SHARED) }.ok().map(Counter)
    }

    fn atomic(&self) -> &AtomicU32 {
        // SAFETY: mapped for as long as the process lives, aligned to a page, zero at first, and
        // used as an atomic by all.
        unsafe { self.0.cast::<AtomicU32>().as_ref() }
    }

    pub(super) fn count(&self) {
        self.atomic().fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn value(&self) -> u32 {
        self.atomic().load(Ordering::Acquire)
    }
}
