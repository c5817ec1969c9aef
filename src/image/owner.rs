//! What belongs together: render nodes, dma-bufs and the processes on `/dev/kfd` whose they are.
//!
//! CRIU's own files name a BO by a handle, and each open render node has handles of its own from 1:
//! which BO is meant is not in them, nor which of several files of a render node has the address
//! space in which the process's queues run. These files have that, and checksums.

use std::io::{Read, Write};

use prost::Message;

use super::{
    BLOCK_BYTES, ImageError, ImageName, MOST_BOS,
    error::File,
    fields::limit,
    framing,
    proto::{self, bo_name::Owner},
    sums::MOST_BLOCKS,
};
use crate::stage::Crc32;

/// The name of the file that says what a render node is to its process.
pub fn owner_name(render_id: u32) -> String {
    format!("vramstream-renderD-{render_id}.img")
}

/// The name of the file that says which process came next after a render node: it may be that one's,
/// if it is not of the task of the one before.
pub fn next_owner_name(render_id: u32) -> String {
    format!("vramstream-next-{render_id}.img")
}

/// All names of files of one message that are about CRIU's file of this id, whatever that is.
pub fn all_names(id: u32) -> [String; 8] {
    [
        ImageName::Kfd { id }.to_string(),
        super::sums_name(id),
        shared_name(id),
        ImageName::Render { id }.to_string(),
        owner_name(id),
        next_owner_name(id),
        ImageName::Dmabuf { id }.to_string(),
        dmabuf_owner_name(id),
    ]
}

/// The name of the file that says whose BO a dma-buf is.
pub fn dmabuf_owner_name(id: u32) -> String {
    format!("vramstream-dmabuf-{id}.img")
}

/// The name of the file that says which BOs of a process on `/dev/kfd` others are of.
pub fn shared_name(kfd_id: u32) -> String {
    format!("vramstream-shared-{kfd_id}.img")
}

/// A BO, by who made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BoName {
    /// A process on `/dev/kfd`.
    Kfd {
        /// CRIU's id of its file.
        id: u32,
        /// The BO's place in its image.
        bo: u32,
    },
    /// An open render node.
    Render {
        /// CRIU's id of it.
        id: u32,
        /// The BO's handle in it.
        handle: u32,
    },
}

/// Checksums of the contents of a BO of a render node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BoSums {
    /// The BO, by its place in the image of the render node.
    pub bo: u32,
    /// Bytes of contents.
    pub bytes: u64,
    /// The CRC-32 of each block of [`BLOCK_BYTES`]; the last may be shorter.
    pub blocks: Vec<u32>,
}

/// What an open render node is to its process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RenderOwner {
    /// CRIU's id of the process's `/dev/kfd`.
    pub kfd_id: u32,
    /// Whether it comes after `/dev/kfd`.
    pub after_kfd: bool,
    /// Whether its address space is the process's, in which queues run.
    pub is_compute: Option<bool>,
    /// Of the whole `amdgpu-renderD-ID.img`: its size and its CRC-32. A size of 0 is of none.
    pub image: (u64, u32),
    /// Of the BOs that have contents.
    pub bos: Vec<BoSums>,
    /// The handles of BOs that somebody else has made.
    pub imports: Vec<(u32, BoName)>,
}

impl RenderOwner {
    /// Reads the file; `file` is for messages.
    pub fn read(file: &str, from: &mut impl Read) -> Result<Self, ImageError> {
        let file = File(file);
        let message = framing::read_message(file, from)?;
        limit(file, &message, &[7], "checksums", MOST_BOS)?;
        limit(file, &message, &[8], "imports", MOST_BOS)?;
        let message: proto::RenderOwner = decode(file, message)?;
        if !message.bos.is_empty() && message.block_bytes != BLOCK_BYTES {
            return Err(file.invalid(format!("its blocks have {} bytes", message.block_bytes)));
        }
        let sums = |sums: proto::BoSums| {
            let (found, bytes) = (sums.block_crcs.len(), sums.bytes);
            if found > MOST_BLOCKS || found as u64 != bytes.div_ceil(BLOCK_BYTES.into()) {
                return Err(file.invalid(format!("{found} checksums are not of {bytes} bytes")));
            }
            Ok(BoSums { bo: sums.bo, bytes, blocks: sums.block_crcs })
        };
        let import = |import: proto::BoImport| Ok((import.handle, bo_name(file, import.bo)?));
        Ok(RenderOwner {
            kfd_id: message.kfd_id,
            after_kfd: message.after_kfd,
            is_compute: message.is_compute,
            image: (message.image_bytes, message.image_crc),
            bos: message.bos.into_iter().map(sums).collect::<Result<_, _>>()?,
            imports: message.imports.into_iter().map(import).collect::<Result<_, _>>()?,
        })
    }

    /// Writes the file.
    pub fn write(&self, file: &str, to: &mut impl Write) -> Result<(), ImageError> {
        let sums = |sums: &BoSums| proto::BoSums {
            bo: sums.bo,
            bytes: sums.bytes,
            block_crcs: sums.blocks.clone(),
        };
        let import = |&(handle, bo): &(u32, BoName)| proto::BoImport {
            handle,
            bo: Some(bo_name_message(bo)),
        };
        let message = proto::RenderOwner {
            kfd_id: self.kfd_id,
            after_kfd: self.after_kfd,
            is_compute: self.is_compute,
            image_bytes: self.image.0,
            image_crc: self.image.1,
            block_bytes: BLOCK_BYTES,
            bos: self.bos.iter().map(sums).collect(),
            imports: self.imports.iter().map(import).collect(),
            crc: 0,
        };
        write(file, message, to)
    }

    /// Whose BO a handle is of, if somebody else has made it.
    pub fn import(&self, handle: u32) -> Option<BoName> {
        self.imports.iter().find(|(import, _)| *import == handle).map(|(_, bo)| *bo)
    }
}

/// Whose BO a dma-buf is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmabufOwner {
    /// The BO.
    pub bo: BoName,
    /// CRIU's id of the process's `/dev/kfd`.
    pub kfd_id: u32,
    /// Whether it comes after `/dev/kfd`.
    pub after_kfd: bool,
}

impl DmabufOwner {
    /// Reads the file; `file` is for messages.
    pub fn read(file: &str, from: &mut impl Read) -> Result<Self, ImageError> {
        let file = File(file);
        let message = framing::read_message(file, from)?;
        let message: proto::DmabufOwner = decode(file, message)?;
        let bo = bo_name(file, message.bo)?;
        Ok(DmabufOwner { bo, kfd_id: message.kfd_id, after_kfd: message.after_kfd })
    }

    /// Writes the file.
    pub fn write(&self, file: &str, to: &mut impl Write) -> Result<(), ImageError> {
        let message = proto::DmabufOwner {
            bo: Some(bo_name_message(self.bo)),
            kfd_id: self.kfd_id,
            after_kfd: self.after_kfd,
            crc: 0,
        };
        write(file, message, to)
    }
}

/// Reads which BOs of a process on `/dev/kfd` others are of, by their place in its image.
pub fn read_shared(file: &str, from: &mut impl Read) -> Result<Vec<u32>, ImageError> {
    let message = framing::read_message(File(file), from)?;
    // (Four bytes each in memory, and at least one in the file.)
    let message: proto::SharedBos = decode(File(file), message)?;
    if message.bos.len() > MOST_BOS {
        return Err(ImageError::TooMany { file: file.into(), what: "BOs", most: MOST_BOS });
    }
    Ok(message.bos)
}

/// Writes it.
pub fn write_shared(file: &str, bos: Vec<u32>, to: &mut impl Write) -> Result<(), ImageError> {
    write(file, proto::SharedBos { bos, crc: 0 }, to)
}

/// A message that has its own checksum.
trait Checked: Message + Default {
    fn crc(&mut self) -> &mut u32;
}

impl Checked for proto::RenderOwner {
    fn crc(&mut self) -> &mut u32 {
        &mut self.crc
    }
}

impl Checked for proto::DmabufOwner {
    fn crc(&mut self) -> &mut u32 {
        &mut self.crc
    }
}

impl Checked for proto::SharedBos {
    fn crc(&mut self) -> &mut u32 {
        &mut self.crc
    }
}

fn decode<T: Checked>(file: File, message: Vec<u8>) -> Result<T, ImageError> {
    let mut message: T = framing::decode(file, message)?;
    let said = std::mem::take(message.crc());
    let found = Crc32::of(&message.encode_to_vec()).value;
    if said != found {
        return Err(file.invalid(format!("its checksum is {found:08x}, and it says {said:08x}")));
    }
    Ok(message)
}

fn write<T: Checked>(file: &str, mut message: T, to: &mut impl Write) -> Result<(), ImageError> {
    let crc = Crc32::of(&message.encode_to_vec()).value;
    *message.crc() = crc;
    framing::write(file, &framing::framed(&message), to)
}

fn bo_name_message(bo: BoName) -> proto::BoName {
    match bo {
        BoName::Kfd { id, bo } => proto::BoName { owner: Some(Owner::KfdId(id)), number: bo },
        BoName::Render { id, handle } => {
            proto::BoName { owner: Some(Owner::RenderId(id)), number: handle }
        }
    }
}

fn bo_name(file: File, message: Option<proto::BoName>) -> Result<BoName, ImageError> {
    let message = message.ok_or_else(|| file.missing("bo"))?;
    Ok(match message.owner.ok_or_else(|| file.missing("bo.owner"))? {
        Owner::KfdId(id) => BoName::Kfd { id, bo: message.number },
        Owner::RenderId(id) => BoName::Render { id, handle: message.number },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let owner = RenderOwner {
            kfd_id: 5,
            after_kfd: true,
            is_compute: Some(false),
            image: (100, 0xdead_beef),
            bos: vec![BoSums { bo: 1, bytes: 1 + u64::from(BLOCK_BYTES), blocks: vec![3, 4] }],
            imports: vec![
                (2, BoName::Kfd { id: 5, bo: 7 }),
                (3, BoName::Render { id: 6, handle: 1 }),
            ],
        };
        for owner in [owner, RenderOwner::default()] {
            let mut bytes = Vec::new();
            owner.write("x", &mut bytes).unwrap();
            assert_eq!(RenderOwner::read("x", &mut bytes.as_slice()).unwrap(), owner);
        }
        let bo = BoName::Render { id: 1, handle: 2 };
        let owner = DmabufOwner { bo, kfd_id: 3, after_kfd: false };
        let mut bytes = Vec::new();
        owner.write("x", &mut bytes).unwrap();
        assert_eq!(DmabufOwner::read("x", &mut bytes.as_slice()).unwrap(), owner);
        let mut bytes = Vec::new();
        write_shared("x", vec![1, 0, 9], &mut bytes).unwrap();
        assert_eq!(read_shared("x", &mut bytes.as_slice()).unwrap(), [1, 0, 9]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let error = DmabufOwner::read("x", &mut &[0; 8][..]).unwrap_err().to_string();
        assert!(error.starts_with("x: damaged: "), "{error}");
        let mut bytes = Vec::new();
        write_shared("x", vec![1, 0, 9], &mut bytes).unwrap();
        bytes[8 + 3] ^= 1;
        let error = read_shared("x", &mut bytes.as_slice()).unwrap_err().to_string();
        assert!(error.starts_with("x: damaged: its checksum is "), "{error}");
        let bos = vec![BoSums { bo: 0, bytes: 1, blocks: vec![1, 2] }];
        let mut bytes = Vec::new();
        RenderOwner { bos, ..RenderOwner::default() }.write("x", &mut bytes).unwrap();
        let error = RenderOwner::read("x", &mut bytes.as_slice()).unwrap_err().to_string();
        assert_eq!(error, "x: damaged: 2 checksums are not of 1 bytes");
    }
}
