//! How many bytes went which way.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::sim::object::Object;

/// What engines have copied so far, in bytes. Zeros that needed no writing count as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// From VRAM to memory of the host.
    pub to_host: u64,
    /// From memory of the host to VRAM.
    pub to_device: u64,
    /// From VRAM to VRAM.
    pub within_device: u64,
    /// From memory of the host to memory of the host.
    pub within_host: u64,
    /// Filled and written, without a source.
    pub filled: u64,
}

/// The same, counting.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// By whether the source and the target are VRAM.
    copied: [[AtomicU64; 2]; 2],
    filled: AtomicU64,
}

impl Traffic {
    pub(super) fn copied(&self, from: &Object, to: &Object, len: u64) {
        let counter = &self.copied[usize::from(from.is_vram())][usize::from(to.is_vram())];
        counter.fetch_add(len, Ordering::Relaxed);
    }

    pub(super) fn filled(&self, len: u64) {
        self.filled.fetch_add(len, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Copied {
        let copied = |from: usize, to: usize| self.copied[from][to].load(Ordering::Relaxed);
        Copied {
            to_host: copied(1, 0),
            to_device: copied(0, 1),
            within_device: copied(1, 1),
            within_host: copied(0, 0),
            filled: self.filled.load(Ordering::Relaxed),
        }
    }
}

impl std::ops::Add for Copied {
    type Output = Copied;

    fn add(self, other: Copied) -> Copied {
        Copied {
            to_host: self.to_host + other.to_host,
            to_device: self.to_device + other.to_device,
            within_device: self.within_device + other.within_device,
            within_host: self.within_host + other.within_host,
            filled: self.filled + other.filled,
        }
    }
}
