//! Shared virtual memory: ranges of addresses with attributes, as state only.

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::{Io, process::KfdProcess};
use crate::abi::{
    Plain,
    kfd::{SvmArgs, SvmAttribute},
};

const PAGE: u64 = 4096;
const SET_ATTR: u32 = 0;
const GET_ATTR: u32 = 1;

/// Attributes by their numbers in `kfd_ioctl.h`.
mod attribute {
    pub(super) const PREFERRED_LOC: u32 = 0;
    pub(super) const PREFETCH_LOC: u32 = 1;
    pub(super) const ACCESS: u32 = 2;
    pub(super) const NO_ACCESS: u32 = 4;
    pub(super) const SET_FLAGS: u32 = 5;
    pub(super) const CLR_FLAGS: u32 = 6;
    pub(super) const GRANULARITY: u32 = 7;
}

/// No location is preferred.
const UNDEFINED: u32 = u32::MAX;
/// 2 MiB.
const DEFAULT_GRANULARITY: u32 = 9;

/// The ranges of a process, by their first address.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, Range>);

/// A range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    pub size: u64,
    pub attributes: Attributes,
}

/// What is wanted of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    preferred: u32,
    prefetch: u32,
    flags: u32,
    granularity: u32,
    /// How each GPU reaches it, by the GPU's name in the process.
    access: BTreeMap<u32, u32>,
}

impl Default for Attributes {
    fn default() -> Self {
        Attributes {
            preferred: UNDEFINED,
            prefetch: UNDEFINED,
            flags: 0,
            granularity: DEFAULT_GRANULARITY,
            access: BTreeMap::new(),
        }
    }
}

impl Attributes {
    fn set(&mut self, attribute: SvmAttribute) {
        let SvmAttribute { kind, value } = attribute;
        match kind {
            attribute::PREFERRED_LOC => self.preferred = value,
            attribute::PREFETCH_LOC => self.prefetch = value,
            attribute::ACCESS..=attribute::NO_ACCESS => {
                self.access.insert(value, kind);
            }
            attribute::SET_FLAGS => self.flags |= value,
            attribute::CLR_FLAGS => self.flags &= !value,
            _ => self.granularity = value.min(63),
        }
    }

    /// As a checkpoint has them: four, and one for each of these GPUs.
    pub(super) fn list(&self, gpus: impl Iterator<Item = u32>) -> Vec<SvmAttribute> {
        let common = [
            (attribute::PREFERRED_LOC, self.preferred),
            (attribute::PREFETCH_LOC, self.prefetch),
            (attribute::SET_FLAGS, self.flags),
            (attribute::GRANULARITY, self.granularity),
        ];
        let access =
            gpus.map(|gpu| (self.access.get(&gpu).copied().unwrap_or(attribute::NO_ACCESS), gpu));
        let all = common.into_iter().chain(access);
        all.map(|(kind, value)| SvmAttribute { kind, value }).collect()
    }
}

/// How many attributes a range has in a checkpoint of a process with so many GPUs.
pub(super) const fn attribute_count(gpus: usize) -> usize {
    4 + gpus
}

impl Ranges {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Range)> {
        self.0.iter().map(|(&start, range)| (start, range))
    }

    pub(super) fn overlaps(&self, start: u64, size: u64) -> bool {
        let end = start.saturating_add(size);
        self.0.range(..end).next_back().is_some_and(|(&at, range)| at + range.size > start)
    }

    /// The range of an address that a GPU, by its name in the process, may use: start and size.
    pub(super) fn for_gpu(&self, gpu_id: u32, address: u64) -> Option<(u64, u64)> {
        let (&start, range) = self.0.range(..=address).next_back()?;
        let access = range.attributes.access.get(&gpu_id);
        let usable = access.is_some_and(|&access| access != attribute::NO_ACCESS);
        (usable && address - start < range.size).then_some((start, range.size))
    }

    /// Whether every address belongs to a range.
    pub(super) fn covers(&self, start: u64, size: u64) -> bool {
        let (mut at, end) = (start, start.saturating_add(size));
        while at < end {
            match self.0.range(..=at).next_back() {
                Some((&first, range)) if first + range.size > at => at = first + range.size,
                _ => return false,
            }
        }
        true
    }

    /// Sets attributes of all addresses of a range.
    pub(super) fn set(&mut self, start: u64, size: u64, attributes: &[SvmAttribute]) {
        let end = start + size;
        self.cut(start);
        self.cut(end);
        let mut at = start;
        while at < end {
            let next = self.0.range(at..end).next().map_or(end, |(&next, _)| next);
            if next > at {
                let range = Range { size: next - at, attributes: Attributes::default() };
                self.0.insert(at, range);
            }
            let Some(range) = self.0.get_mut(&at) else { return };
            attributes.iter().for_each(|&attribute| range.attributes.set(attribute));
            at += range.size;
        }
    }

    /// Makes `at` a border, if it is inside of a range.
    fn cut(&mut self, at: u64) {
        let Some((&start, range)) = self.0.range_mut(..at).next_back() else { return };
        let end = start + range.size;
        if end > at {
            range.size = at - start;
            let rest = Range { size: end - at, attributes: range.attributes.clone() };
            self.0.insert(at, rest);
        }
    }
}

/// The structure is followed by its attributes, so its size is in the number of the request.
pub(super) fn ioctl(io: &mut Io<'_, '_>, argument: &mut [u8]) -> nix::Result<()> {
    let args = SvmArgs::from_prefix(argument);
    let tail = argument.get_mut(size_of::<SvmArgs>()..).unwrap_or_default();
    let len = (args.nattr as usize).checked_mul(size_of::<SvmAttribute>()).ok_or(Errno::EINVAL)?;
    let tail = tail.get_mut(..len).ok_or(Errno::EINVAL)?;
    let pages = args.start_addr.is_multiple_of(PAGE) && args.size.is_multiple_of(PAGE);
    if !pages || args.size == 0 || args.start_addr.checked_add(args.size).is_none() {
        return Err(Errno::EINVAL);
    }
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    match args.op {
        SET_ATTR => {
            let attributes: Vec<_> = tail
                .chunks_exact(size_of::<SvmAttribute>())
                .map(SvmAttribute::from_prefix)
                .collect();
            check(process, &attributes)?;
            if overlaps_bo(process, args.start_addr, args.size) {
                return Err(Errno::EADDRINUSE);
            }
            process.ranges.set(args.start_addr, args.size, &attributes);
            Ok(())
        }
        GET_ATTR => {
            let range = process.ranges.0.get(&args.start_addr);
            let attributes = range.map(|range| range.attributes.clone()).unwrap_or_default();
            for bytes in tail.chunks_exact_mut(size_of::<SvmAttribute>()) {
                let mut asked = SvmAttribute::from_prefix(bytes);
                match asked.kind {
                    attribute::PREFERRED_LOC => asked.value = attributes.preferred,
                    attribute::PREFETCH_LOC => asked.value = attributes.prefetch,
                    attribute::ACCESS..=attribute::NO_ACCESS => {
                        process.device(asked.value)?;
                        let access = attributes.access.get(&asked.value);
                        asked.kind = access.copied().unwrap_or(attribute::NO_ACCESS);
                    }
                    attribute::SET_FLAGS => asked.value = attributes.flags,
                    attribute::CLR_FLAGS => asked.value = !attributes.flags,
                    attribute::GRANULARITY => asked.value = attributes.granularity,
                    _ => return Err(Errno::EINVAL),
                }
                bytes.copy_from_slice(asked.as_bytes());
            }
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    }
}

fn check(process: &mut KfdProcess, attributes: &[SvmAttribute]) -> nix::Result<()> {
    for &SvmAttribute { kind, value } in attributes {
        let good = match kind {
            attribute::PREFERRED_LOC | attribute::PREFETCH_LOC => {
                value == 0 || value == UNDEFINED || process.device(value).is_ok()
            }
            attribute::ACCESS..=attribute::NO_ACCESS => process.device(value).is_ok(),
            attribute::SET_FLAGS..=attribute::GRANULARITY => true,
            _ => false,
        };
        if !good {
            return Err(Errno::EINVAL);
        }
    }
    Ok(())
}

fn overlaps_bo(process: &KfdProcess, start: u64, size: u64) -> bool {
    process.devices.iter().filter_map(|d| d.bound.as_ref()).any(|b| b.vm().overlaps(start, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_a_part_of_a_range_cuts_it() {
        let mut ranges = Ranges::default();
        let flag = |value| [SvmAttribute { kind: attribute::SET_FLAGS, value }];
        ranges.set(0x1000, 0x3000, &flag(1));
        ranges.set(0x2000, 0x4000, &flag(2));
        let all: Vec<_> =
            ranges.iter().map(|(start, r)| (start, r.size, r.attributes.flags)).collect();
        assert_eq!(all, [(0x1000, 0x1000, 1), (0x2000, 0x2000, 3), (0x4000, 0x2000, 2)]);
        ranges.set(0x2000, 0x1000, &flag(4));
        let cut = [(0x1000, 0x1000, 1), (0x2000, 0x1000, 7), (0x3000, 0x1000, 3)];
        let all: Vec<_> =
            ranges.iter().map(|(start, r)| (start, r.size, r.attributes.flags)).collect();
        assert_eq!(all[..3], cut);
        assert!(ranges.covers(0x1000, 0x5000) && !ranges.covers(0x1000, 0x6000));
        assert!(ranges.overlaps(0x5000, 0x1000) && !ranges.overlaps(0x6000, 0x1000));
        assert!(!ranges.overlaps(0, 0x1000) && ranges.overlaps(0, 0x1001));
    }
}
