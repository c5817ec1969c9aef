//! A GPU's address space: which object is at which address.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use nix::errno::Errno;

use super::object::Object;

/// The first address that can be mapped.
pub(super) const VA_START: u64 = 0x10000;
/// Between these two there are no addresses.
pub(super) const HOLE: std::ops::Range<u64> = 0x0000_8000_0000_0000..0xffff_8000_0000_0000;
/// What the kernel keeps at the top for itself: 2 MiB + 2 MiB + 64 KiB.
pub(super) const RESERVED_TOP: u64 = (2 << 20) + (2 << 20) + (64 << 10);
const PAGE: u64 = 4096;

/// A mapping, from the address that is its key.
#[derive(Debug, Clone)]
pub(super) struct Mapped {
    pub object: Arc<Object>,
    /// Where in the object it begins.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
    /// Flags of GEM_VA.
    pub flags: u64,
    /// The handle that it was mapped by, or 0 for memory of KFD.
    pub handle: u32,
}

impl Mapped {
    /// EINVAL unless it is whole pages of its object.
    pub(super) fn check(&self) -> nix::Result<()> {
        let end = self.offset.checked_add(self.len).ok_or(Errno::EINVAL)?;
        let good = self.offset.is_multiple_of(PAGE) && end <= self.object.size;
        if good { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// An address space.
#[derive(Debug, Default)]
pub(super) struct Vm {
    mapped: BTreeMap<u64, Mapped>,
    /// The addresses of what was mapped by each handle, so that nobody who asks for those of one of
    /// many handles looks at the mappings of all.
    by_handle: HashMap<u32, Vec<u64>>,
}

impl Vm {
    /// Maps; EINVAL where the range is none, or not free.
    pub(super) fn map(&mut self, va: u64, mapped: Mapped) -> nix::Result<()> {
        check_range(va, mapped.len)?;
        mapped.check()?;
        if self.overlaps(va, mapped.len) {
            return Err(Errno::EINVAL);
        }
        self.insert(va, mapped);
        Ok(())
    }

    /// Unmaps what begins at an address; ENOENT where nothing does.
    pub(super) fn unmap(&mut self, va: u64) -> nix::Result<Mapped> {
        self.remove(va).ok_or(Errno::ENOENT)
    }

    fn insert(&mut self, va: u64, mapped: Mapped) {
        self.by_handle.entry(mapped.handle).or_default().push(va);
        self.mapped.insert(va, mapped);
    }

    fn remove(&mut self, va: u64) -> Option<Mapped> {
        let mapped = self.mapped.remove(&va)?;
        if let Some(addresses) = self.by_handle.get_mut(&mapped.handle) {
            addresses.retain(|&address| address != va);
            if addresses.is_empty() {
                self.by_handle.remove(&mapped.handle);
            }
        }
        Some(mapped)
    }

    /// What begins at an address.
    pub(super) fn at(&self, va: u64) -> Option<&Mapped> {
        self.mapped.get(&va)
    }

    /// All mappings, by address.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Mapped)> {
        self.mapped.iter().map(|(&va, mapped)| (va, mapped))
    }

    /// Whether anything is mapped in a range.
    pub(super) fn overlaps(&self, va: u64, len: u64) -> bool {
        let end = va.saturating_add(len);
        self.mapped.range(..end).next_back().is_some_and(|(&start, m)| start + m.len > va)
    }

    /// Whether anything is mapped by a handle.
    pub(super) fn has_any_of(&self, handle: u32) -> bool {
        self.by_handle.contains_key(&handle)
    }

    /// Removes every mapping that was made by a handle (0: by KFD).
    pub(super) fn remove_all_of(&mut self, handle: u32) {
        for va in self.by_handle.remove(&handle).unwrap_or_default() {
            self.mapped.remove(&va);
        }
    }

    /// The mapping that an address is in, and where in it.
    pub(super) fn lookup(&self, va: u64) -> Option<(&Mapped, u64)> {
        let (&start, mapped) = self.mapped.range(..=va).next_back()?;
        let offset = va - start;
        (offset < mapped.len).then_some((mapped, offset))
    }

    /// Makes a range free, also where it is a part of a mapping.
    pub(super) fn clear(&mut self, va: u64, len: u64) {
        let end = va.saturating_add(len);
        while let Some((&start, last)) = self.mapped.range(..end).next_back()
            && start + last.len > va
        {
            let Some(old) = self.remove(start) else { return };
            let old_end = start + old.len;
            if old_end > end {
                let skip = end - start;
                let rest = Mapped { offset: old.offset + skip, len: old_end - end, ..old.clone() };
                self.insert(end, rest);
            }
            if start < va {
                self.insert(start, Mapped { len: va - start, ..old });
            }
        }
    }
}

/// EINVAL unless the range is whole pages of addresses that can be mapped.
pub(super) fn check_range(va: u64, len: u64) -> nix::Result<()> {
    let end = va.checked_add(len).ok_or(Errno::EINVAL)?;
    let good = len > 0
        && va.is_multiple_of(PAGE)
        && len.is_multiple_of(PAGE)
        && va >= VA_START
        && end <= HOLE.start - RESERVED_TOP;
    if good { Ok(()) } else { Err(Errno::EINVAL) }
}
