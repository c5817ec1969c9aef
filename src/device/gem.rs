//! The BOs of an open render node: what there are, what is known of each, and the same made again.
//!
//! What asks changes nothing of the file, so it may be another process's.

use nix::errno::Errno;

use super::{DeviceError, RenderNode};
use crate::abi::amdgpu::{
    GEM_CREATE, GEM_LIST_HANDLES, GEM_OP, GEM_VA, GEM_WAIT_IDLE, GemCreateIn, GemListHandles,
    GemListHandlesEntry, GemOp, GemVa, GemVmEntry, GemWaitIdleIn, gem_op, list_flag, va_op,
};

/// The most entries that are believed.
const MOST_ENTRIES: u32 = 4 << 20;
/// Room for so many at first: most files have fewer.
const FEW_ENTRIES: u32 = 64;
/// Whether there is a place in an mmap space shows in its first page.
const PAGE: usize = 4096;

/// A BO of an open render node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemBo {
    /// Its handle.
    pub handle: u32,
    /// Flags of the list: bit 0 is set for one of another device.
    pub flags: u32,
    /// What it was made with; its size is that of the BO.
    pub create: GemCreateIn,
}

impl RenderNode {
    /// The BOs that the file has handles of, by handle; `None` where the kernel does not tell (before
    /// Linux 7.2).
    pub fn bos(&self) -> Result<Option<Vec<GemBo>>, DeviceError> {
        let listed = self.entries("GEM_LIST_HANDLES", |entries: &mut Vec<GemListHandlesEntry>| {
            let mut args = GemListHandles {
                entries: entries.as_mut_ptr().expose_provenance() as u64,
                num_entries: room(entries),
                pad: 0,
            };
            // SAFETY: the vector has so many entries and lives until the call has returned.
            unsafe { self.node().call(&GEM_LIST_HANDLES, &mut args) }?;
            Ok(args.num_entries)
        });
        let mut listed = match listed {
            Ok(listed) => listed,
            Err(DeviceError::Call { errno: Errno::EINVAL | Errno::ENOTTY, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        listed.sort_by_key(|entry| entry.gem_handle);
        let bo = |entry: GemListHandlesEntry| {
            // (The list has the alignment in pages, and not all kernels know what else it will.)
            let create = self.created(entry.gem_handle)?;
            Ok(GemBo {
                handle: entry.gem_handle,
                flags: entry.flags,
                create: GemCreateIn {
                    bo_size: entry.size,
                    alignment: create.alignment,
                    domains: entry.preferred_domains,
                    domain_flags: entry.alloc_flags,
                },
            })
        };
        listed.into_iter().map(bo).collect::<Result<_, _>>().map(Some)
    }

    /// What a BO was made with.
    fn created(&self, handle: u32) -> Result<GemCreateIn, DeviceError> {
        let mut create = GemCreateIn::default();
        let value = (&raw mut create).expose_provenance() as u64;
        let op = gem_op::GET_GEM_CREATE_INFO;
        // SAFETY: the kernel writes one structure to `create`, during the call.
        unsafe { self.node().call(&GEM_OP, &mut GemOp { handle, op, value, ..GemOp::default() }) }?;
        Ok(create)
    }

    /// Where a BO is mapped in the file's GPU address space, by whomever. Nowhere, as far as is
    /// known, where the kernel does not tell.
    pub fn mappings(&self, handle: u32) -> Result<Vec<GemVmEntry>, DeviceError> {
        let listed = self.entries("GEM_OP", |entries: &mut Vec<GemVmEntry>| {
            let mut args = GemOp {
                handle,
                op: gem_op::GET_MAPPING_INFO,
                value: entries.as_mut_ptr().expose_provenance() as u64,
                num_entries: room(entries),
                pad: 0,
            };
            // SAFETY: the vector has so many entries and lives until the call has returned.
            unsafe { self.node().call(&GEM_OP, &mut args) }?;
            Ok(args.num_entries)
        });
        match listed {
            // Some kernels say so of one that was never mapped.
            Err(DeviceError::Call { errno: Errno::EINVAL | Errno::ENOENT, .. }) => Ok(Vec::new()),
            listed => listed,
        }
    }

    /// Asks for a list until there is room for all of it.
    fn entries<T: Default + Clone>(
        &self,
        call: &'static str,
        ask: impl Fn(&mut Vec<T>) -> Result<u32, DeviceError>,
    ) -> Result<Vec<T>, DeviceError> {
        let mut room = FEW_ENTRIES;
        loop {
            let mut entries = vec![T::default(); room as usize];
            let found = ask(&mut entries)?;
            if found <= room {
                entries.truncate(found as usize);
                return Ok(entries);
            }
            if found > MOST_ENTRIES {
                return Err(self.unsuitable(format!("{call} tells of {found} entries")));
            }
            room = found;
        }
    }

    /// Waits until no submission uses a BO, at most until this time of the monotonic clock: whether
    /// that is so.
    pub fn wait_idle(&self, handle: u32, deadline_ns: u64) -> Result<bool, DeviceError> {
        let mut args = GemWaitIdleIn { handle, flags: 0, timeout: deadline_ns };
        // SAFETY: the argument has no addresses.
        unsafe { self.node().call(&GEM_WAIT_IDLE, &mut args) }?;
        Ok(!args.busy())
    }

    /// Whether the file may map what is at a place of the node's mmap space: what it has a handle of,
    /// and memory of KFD if its address space is the process's. `None` if nothing is there.
    pub fn may_map(&self, offset: u64) -> Result<Option<bool>, DeviceError> {
        match self.node().map(offset, PAGE) {
            // It may, but this is nothing for a CPU.
            Ok(_) | Err(DeviceError::Call { errno: Errno::EPERM, .. }) => Ok(Some(true)),
            Err(DeviceError::Call { errno: Errno::EACCES, .. }) => Ok(Some(false)),
            Err(DeviceError::Call { errno: Errno::EINVAL, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// New memory, made with all of this: its handle, the lowest that is free.
    pub fn create_as(&self, create: GemCreateIn) -> Result<u32, DeviceError> {
        let mut create = create;
        // SAFETY: the argument has no addresses.
        unsafe { self.node().call(&GEM_CREATE, &mut create) }?;
        Ok(create.handle())
    }

    /// Maps a part of a BO at a GPU address, at once.
    pub fn map_as(&self, handle: u32, mapping: &GemVmEntry) -> Result<(), DeviceError> {
        let flags = u32::try_from(mapping.flags)
            .map_err(|_| self.unsuitable(format!("no mapping has the flags {mapping:?}")))?;
        let mut args = GemVa {
            handle,
            operation: va_op::MAP,
            flags,
            va_address: mapping.addr,
            offset_in_bo: mapping.offset,
            map_size: mapping.size,
            ..GemVa::default()
        };
        // SAFETY: the addresses are the GPU's.
        unsafe { self.node().call(&GEM_VA, &mut args) }
    }
}

impl GemBo {
    /// Whether it is of another device.
    pub fn is_foreign(&self) -> bool {
        self.flags & list_flag::IS_IMPORT != 0
    }
}

fn room<T>(entries: &[T]) -> u32 {
    u32::try_from(entries.len()).unwrap_or(0)
}
