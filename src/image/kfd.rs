//! `amdgpu-kfd-ID.img`: a process on /dev/kfd.

use std::io::{Read, Write};

use prost::bytes::Bytes;

use super::{
    ImageError, MOST_BOS, devices,
    error::File,
    fields::limit,
    framing,
    proto::{self, KfdBoEntry},
};
use crate::{
    abi::kfd::flags,
    topology::{MOST_LINKS, MOST_NODES, Topology},
};

/// The handle of a BO that has none.
pub const NO_HANDLE: u32 = u32::MAX;

/// A BO of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KfdBo {
    /// Its GPU address.
    pub addr: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Where it is in the render node, for mmap.
    pub offset: u64,
    /// How it was allocated.
    pub alloc_flags: u32,
    /// Its GPU, as the process calls it.
    pub gpu_id: u32,
    /// Its GEM handle in the dumper's render file; later. Written as [`NO_HANDLE`] if it has none.
    pub handle: Option<u32>,
}

impl KfdBo {
    /// Whether it has contents of its own, which are in the GPU's pages file.
    pub fn has_contents(&self) -> bool {
        self.alloc_flags & (flags::VRAM | flags::GTT) != 0
    }
}

/// libhsakmt's shared memory, which older versions of it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedMemory {
    /// Its size in bytes, never 0.
    pub size: u64,
    /// Its first four bytes.
    pub magic: u32,
}

/// A process on /dev/kfd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KfdImage {
    /// Its pid.
    pub pid: u32,
    /// The machine it ran on. Its GPUs have the ids that the process calls them by.
    pub topology: Topology,
    /// Its BOs, in the kernel's order.
    pub bos: Vec<KfdBo>,
    /// How many queues, events and SVM ranges it has.
    pub objects: u32,
    /// libhsakmt's shared memory.
    pub shared_memory: Option<SharedMemory>,
    /// What the kernel gave out, and takes back.
    pub priv_data: Bytes,
}

impl KfdImage {
    /// Reads the image; `file` is for messages.
    pub fn read(file: &str, from: &mut impl Read) -> Result<Self, ImageError> {
        let file = File(file);
        let message = framing::read_message(file, from)?;
        limit(file, &message, &[4], "device entries", MOST_NODES)?;
        limit(file, &message, &[4, 32], "links", MOST_NODES * MOST_LINKS)?;
        limit(file, &message, &[6], "BOs", MOST_BOS)?;
        let message: proto::CriuKfd = framing::decode(file, message)?;
        let need = |value: Option<u32>, field| file.need(value, field);
        let nodes = message.device_entries.len();
        let topology = devices::topology(file, message.device_entries)?;

        let gpus = need(message.num_of_gpus, "num_of_gpus")?;
        let found = topology.gpus().count();
        file.count(gpus.into(), found, "num_of_gpus", "of them")?;
        let cpus = need(message.num_of_cpus, "num_of_cpus")?;
        file.count(cpus.into(), nodes - found, "num_of_cpus", "of them")?;
        let bos = message.bo_entries.iter().enumerate().map(|(at, entry)| bo(file, at, entry));
        let bos = bos.collect::<Result<Vec<_>, _>>()?;
        let said = file.need(message.num_of_bos, "num_of_bos")?;
        file.count(said, bos.len(), "num_of_bos", "of them")?;
        if let Some(at) = bos.iter().position(|bo| topology.gpu(bo.gpu_id).is_none()) {
            let gpu_id = bos[at].gpu_id;
            return Err(file.invalid(format!(
                "bo_entries[{at}].gpu_id is {gpu_id:#06x}, and there is no such GPU"
            )));
        }
        if bos.iter().try_fold(0u64, |sum, bo| sum.checked_add(bo.size)).is_none() {
            return Err(file.invalid("the BOs together have more than 2^64 bytes"));
        }
        let size = file.need(message.shared_mem_size, "shared_mem_size")?;
        let magic = need(message.shared_mem_magic, "shared_mem_magic")?;
        Ok(KfdImage {
            pid: need(message.pid, "pid")?,
            topology,
            bos,
            objects: need(message.num_of_objects, "num_of_objects")?,
            shared_memory: (size > 0).then_some(SharedMemory { size, magic }),
            priv_data: file.need(message.priv_data, "priv_data")?,
        })
    }

    /// Writes the image. GPUs that are hidden, and links to them, are not in it.
    pub fn write(&self, file: &str, to: &mut impl Write) -> Result<(), ImageError> {
        if self.bos.len() > MOST_BOS {
            return Err(ImageError::TooMany { file: file.into(), what: "BOs", most: MOST_BOS });
        }
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let bo = |bo: &KfdBo| KfdBoEntry {
            addr: Some(bo.addr),
            size: Some(bo.size),
            offset: Some(bo.offset),
            alloc_flags: Some(bo.alloc_flags),
            gpu_id: Some(bo.gpu_id),
            handle: Some(bo.handle.unwrap_or(NO_HANDLE)),
        };
        let message = proto::CriuKfd {
            pid: Some(self.pid),
            num_of_gpus: Some(count(self.topology.gpus().count())),
            num_of_cpus: Some(count(self.topology.cpus().count())),
            device_entries: devices::entries(&self.topology),
            num_of_bos: Some(self.bos.len() as u64),
            bo_entries: self.bos.iter().map(bo).collect(),
            num_of_objects: Some(self.objects),
            shared_mem_size: Some(self.shared_memory.map_or(0, |memory| memory.size)),
            shared_mem_magic: Some(self.shared_memory.map_or(0, |memory| memory.magic)),
            priv_data: Some(self.priv_data.clone()),
        };
        framing::write(file, &framing::framed(&message), to)
    }

    /// The BOs of a GPU whose contents are in its pages file, in the order of that file.
    pub fn contents(&self, gpu_id: u32) -> impl Iterator<Item = &KfdBo> {
        self.bos.iter().filter(move |bo| bo.gpu_id == gpu_id && bo.has_contents())
    }
}

fn bo(file: File, at: usize, entry: &KfdBoEntry) -> Result<KfdBo, ImageError> {
    let missing = |field: &str| file.missing(format!("bo_entries[{at}].{field}"));
    Ok(KfdBo {
        addr: entry.addr.ok_or_else(|| missing("addr"))?,
        size: entry.size.ok_or_else(|| missing("size"))?,
        offset: entry.offset.ok_or_else(|| missing("offset"))?,
        alloc_flags: entry.alloc_flags.ok_or_else(|| missing("alloc_flags"))?,
        gpu_id: entry.gpu_id.ok_or_else(|| missing("gpu_id"))?,
        handle: entry.handle,
    })
}

#[cfg(test)]
mod tests;
