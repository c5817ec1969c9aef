//! `amdgpu-renderD-ID.img`: an open render node.

use std::io::{Read, Write};

use super::{
    ImageError, MOST_BOS, MOST_MAPPINGS,
    error::File,
    fields::limit,
    framing,
    proto::{self, DrmBoEntry, DrmVmEntry},
};

/// A place at which a BO is mapped into the GPU's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrmVm {
    /// The GPU address.
    pub addr: u64,
    /// How many bytes.
    pub size: u64,
    /// From where in the BO.
    pub offset: u64,
    /// How.
    pub flags: u64,
}

/// A BO of a render node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrmBo {
    /// Its last GPU address.
    pub addr: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Where it is in the render node, for mmap.
    pub offset: u64,
    /// How it was allocated.
    pub alloc_flags: u64,
    /// At what it is aligned.
    pub alignment: u64,
    /// Where it likes to be.
    pub preferred_domains: u32,
    /// Its GEM handle.
    pub handle: u32,
    /// Whether it was imported.
    pub is_import: bool,
    /// Where it is mapped.
    pub mappings: Vec<DrmVm>,
}

/// An open render node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderNode {
    /// Its GPU, as the process calls it.
    pub gpu_id: u32,
    /// CRIU's id of the file; later. Written as 0 if there is none.
    pub id: Option<u32>,
    /// The number of the render node; later. Written as 0 if there is none.
    pub render_minor: Option<u32>,
    /// Its BOs; later.
    pub bos: Vec<DrmBo>,
}

impl RenderNode {
    /// Reads the image; `file` is for messages.
    pub fn read(file: &str, from: &mut impl Read) -> Result<Self, ImageError> {
        let file = File(file);
        let message = framing::read_message(file, from)?;
        limit(file, &message, &[5], "BOs", MOST_BOS)?;
        limit(file, &message, &[5, 10], "mappings", MOST_MAPPINGS)?;
        let message: proto::CriuRenderNode = framing::decode(file, message)?;
        let gpu_id = file.need(message.gpu_id, "gpu_id")?;
        let bos = message.bo_entries.iter().enumerate().map(|(at, entry)| bo(file, at, entry));
        let bos = bos.collect::<Result<Vec<_>, _>>()?;
        // Without any, an image from before there were such.
        if message.num_of_bos.is_some() || !bos.is_empty() {
            let said = file.need(message.num_of_bos, "num_of_bos")?;
            file.count(said, bos.len(), "num_of_bos", "of them")?;
        }
        Ok(RenderNode { gpu_id, id: message.id, render_minor: message.drm_render_minor, bos })
    }

    /// Writes the image.
    pub fn write(&self, file: &str, to: &mut impl Write) -> Result<(), ImageError> {
        let mappings: usize = self.bos.iter().map(|bo| bo.mappings.len()).sum();
        for (what, count, most) in
            [("BOs", self.bos.len(), MOST_BOS), ("mappings", mappings, MOST_MAPPINGS)]
        {
            if count > most {
                return Err(ImageError::TooMany { file: file.into(), what, most });
            }
        }
        let message = proto::CriuRenderNode {
            gpu_id: Some(self.gpu_id),
            id: Some(self.id.unwrap_or(0)),
            drm_render_minor: Some(self.render_minor.unwrap_or(0)),
            num_of_bos: Some(self.bos.len() as u64),
            bo_entries: self.bos.iter().map(entry).collect(),
        };
        framing::write(file, &framing::framed(&message), to)
    }
}

fn entry(bo: &DrmBo) -> DrmBoEntry {
    let mapping = |vm: &DrmVm| DrmVmEntry {
        addr: Some(vm.addr),
        size: Some(vm.size),
        offset: Some(vm.offset),
        flags: Some(vm.flags),
    };
    DrmBoEntry {
        addr: Some(bo.addr),
        size: Some(bo.size),
        offset: Some(bo.offset),
        alloc_flags: Some(bo.alloc_flags),
        alignment: Some(bo.alignment),
        preferred_domains: Some(bo.preferred_domains),
        handle: Some(bo.handle),
        is_import: Some(bo.is_import.into()),
        num_of_vms: Some(u32::try_from(bo.mappings.len()).unwrap_or(u32::MAX)),
        vm_entries: bo.mappings.iter().map(mapping).collect(),
    }
}

fn bo(file: File, at: usize, entry: &DrmBoEntry) -> Result<DrmBo, ImageError> {
    let missing = |field: &str| file.missing(format!("bo_entries[{at}].{field}"));
    let mapping = |(vm, entry): (usize, &DrmVmEntry)| {
        let missing = |field: &str| missing(&format!("vm_entries[{vm}].{field}"));
        Ok(DrmVm {
            addr: entry.addr.ok_or_else(|| missing("addr"))?,
            size: entry.size.ok_or_else(|| missing("size"))?,
            offset: entry.offset.ok_or_else(|| missing("offset"))?,
            flags: entry.flags.ok_or_else(|| missing("flags"))?,
        })
    };
    let mappings = entry.vm_entries.iter().enumerate().map(mapping);
    let mappings = mappings.collect::<Result<Vec<_>, ImageError>>()?;
    let said = entry.num_of_vms.ok_or_else(|| missing("num_of_vms"))?;
    file.count(said.into(), mappings.len(), &format!("bo_entries[{at}].num_of_vms"), "of them")?;
    Ok(DrmBo {
        addr: entry.addr.ok_or_else(|| missing("addr"))?,
        size: entry.size.ok_or_else(|| missing("size"))?,
        offset: entry.offset.ok_or_else(|| missing("offset"))?,
        alloc_flags: entry.alloc_flags.ok_or_else(|| missing("alloc_flags"))?,
        alignment: entry.alignment.ok_or_else(|| missing("alignment"))?,
        preferred_domains: entry.preferred_domains.ok_or_else(|| missing("preferred_domains"))?,
        handle: entry.handle.ok_or_else(|| missing("handle"))?,
        is_import: entry.is_import.ok_or_else(|| missing("is_import"))? != 0,
        mappings,
    })
}

#[cfg(test)]
mod tests;
