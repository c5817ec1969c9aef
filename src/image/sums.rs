//! What this plugin writes beside the files of CRIU's own: checksums.
//!
//! CRIU's files have none, so a flipped bit in them is restored. `vramstream-kfd-ID.img` has the
//! CRC-32 of the process's `amdgpu-kfd-ID.img` and of each block of its contents; it is written last
//! and read first.

use std::io::{Read, Write};

use prost::Message;

use super::{ImageError, error::File, fields::limit, framing, proto};
use crate::stage::Crc32;

/// Bytes of contents that have a checksum of their own.
pub const BLOCK_BYTES: u32 = 4 << 20;
/// The most blocks of all of a process's contents: 4 TiB of them.
pub(super) const MOST_BLOCKS: usize = 1 << 20;
/// The most GPUs of a process.
const MOST_GPUS: usize = 1 << 10;

/// The name of the file with a process's checksums.
pub fn sums_name(kfd_id: u32) -> String {
    format!("vramstream-kfd-{kfd_id}.img")
}

/// Checksums of a process's files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sums {
    /// Of the whole `amdgpu-kfd-ID.img`: its size and its CRC-32.
    pub kfd: (u64, u32),
    /// Of the contents of each GPU.
    pub gpus: Vec<GpuSums>,
}

/// Checksums of the contents of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuSums {
    /// The GPU, as the process calls it.
    pub gpu_id: u32,
    /// Bytes of contents.
    pub bytes: u64,
    /// The CRC-32 of each block of [`BLOCK_BYTES`]; the last may be shorter.
    pub blocks: Vec<u32>,
}

impl Sums {
    /// Reads the file; `file` is for messages.
    pub fn read(file: &str, from: &mut impl Read) -> Result<Self, ImageError> {
        let file = File(file);
        let message = framing::read_message(file, from)?;
        limit(file, &message, &[4], "GPUs", MOST_GPUS)?;
        let mut message: proto::ProcessSums = framing::decode(file, message)?;
        let said = std::mem::take(&mut message.crc);
        let found = Crc32::of(&message.encode_to_vec()).value;
        if said != found {
            return Err(
                file.invalid(format!("its checksum is {found:08x}, and it says {said:08x}"))
            );
        }
        if message.block_bytes != BLOCK_BYTES {
            return Err(file.invalid(format!("its blocks have {} bytes", message.block_bytes)));
        }
        let gpu = |gpu: proto::GpuSums| {
            let blocks = gpu.bytes.div_ceil(BLOCK_BYTES.into());
            if gpu.block_crcs.len() > MOST_BLOCKS || gpu.block_crcs.len() as u64 != blocks {
                let (found, bytes) = (gpu.block_crcs.len(), gpu.bytes);
                return Err(file.invalid(format!("{found} checksums are not of {bytes} bytes")));
            }
            Ok(GpuSums { gpu_id: gpu.gpu_id, bytes: gpu.bytes, blocks: gpu.block_crcs })
        };
        let gpus = message.gpus.into_iter().map(gpu).collect::<Result<_, _>>()?;
        Ok(Sums { kfd: (message.kfd_bytes, message.kfd_crc), gpus })
    }

    /// Writes the file.
    pub fn write(&self, file: &str, to: &mut impl Write) -> Result<(), ImageError> {
        let gpu = |gpu: &GpuSums| proto::GpuSums {
            gpu_id: gpu.gpu_id,
            bytes: gpu.bytes,
            block_crcs: gpu.blocks.clone(),
        };
        let mut message = proto::ProcessSums {
            kfd_bytes: self.kfd.0,
            kfd_crc: self.kfd.1,
            block_bytes: BLOCK_BYTES,
            gpus: self.gpus.iter().map(gpu).collect(),
            crc: 0,
        };
        message.crc = Crc32::of(&message.encode_to_vec()).value;
        framing::write(file, &framing::framed(&message), to)
    }

    /// Those of a GPU.
    pub fn gpu(&self, gpu_id: u32) -> Option<&GpuSums> {
        self.gpus.iter().find(|gpu| gpu.gpu_id == gpu_id)
    }
}

/// Computes the checksums of contents that come in order.
#[derive(Debug, Clone, Default)]
pub struct BlockSums {
    blocks: Vec<u32>,
    block: Crc32,
}

impl BlockSums {
    /// The bytes that come next.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = u64::from(BLOCK_BYTES) - self.block.len;
            let take = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
            let (now, later) = bytes.split_at(take);
            self.block = self.block.followed_by(Crc32::of(now));
            if self.block.len == u64::from(BLOCK_BYTES) {
                self.blocks.push(std::mem::take(&mut self.block).value);
            }
            bytes = later;
        }
    }

    /// The checksums of the blocks that are full.
    pub fn full(&self) -> &[u32] {
        &self.blocks
    }

    /// The checksums of all of it.
    pub fn finish(mut self) -> Vec<u32> {
        if self.block.len > 0 {
            self.blocks.push(self.block.value);
        }
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let gpu = GpuSums { gpu_id: 7, bytes: 1 + u64::from(BLOCK_BYTES), blocks: vec![3, 4] };
        let sums = Sums { kfd: (100, 0xdead_beef), gpus: vec![gpu, GpuSums::default()] };
        let mut bytes = Vec::new();
        sums.write("x", &mut bytes).unwrap();
        assert_eq!(Sums::read("x", &mut bytes.as_slice()).unwrap(), sums);
    }

    #[test]
    fn checksums_that_are_not_of_the_contents_are_refused() {
        let gpu = GpuSums { gpu_id: 7, bytes: 1, blocks: vec![3, 4] };
        let mut bytes = Vec::new();
        Sums { kfd: (0, 0), gpus: vec![gpu] }.write("x", &mut bytes).unwrap();
        let error = Sums::read("x", &mut bytes.as_slice()).unwrap_err().to_string();
        assert_eq!(error, "x: damaged: 2 checksums are not of 1 bytes");
    }

    /// Whatever bit is flipped, it is not taken for the checksums of something else.
    #[test]
    fn checksums_have_a_checksum() {
        let gpu = GpuSums { gpu_id: 7, bytes: 1, blocks: vec![3] };
        let mut bytes = Vec::new();
        Sums { kfd: (100, 5), gpus: vec![gpu] }.write("x", &mut bytes).unwrap();
        for bit in framing::SIZE_BYTES * 8..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = Sums::read("x", &mut damaged.as_slice()).unwrap_err().to_string();
            assert!(error.starts_with("x: "), "bit {bit}: {error}");
        }
    }

    #[test]
    fn blocks_do_not_depend_on_the_pieces_that_bytes_come_in() {
        let bytes: Vec<u8> = (0..BLOCK_BYTES * 2 + 5).map(|n| (n % 251) as u8).collect();
        let of = |piece: usize| {
            let mut sums = BlockSums::default();
            bytes.chunks(piece).for_each(|piece| sums.update(piece));
            sums.finish()
        };
        let whole: Vec<_> =
            bytes.chunks(BLOCK_BYTES as usize).map(|b| Crc32::of(b).value).collect();
        for piece in [4096, 1_000_003, 5 << 20, bytes.len()] {
            assert_eq!(of(piece), whole);
        }
    }
}
