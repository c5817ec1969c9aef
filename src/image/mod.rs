//! The image files of CRIU's amdgpu plugin, read and written.
//!
//! | file | what is in it |
//! |---|---|
//! | `amdgpu-kfd-ID.img` | a process on /dev/kfd: the machine it ran on, its BOs, the kernel's data ([`KfdImage`]) |
//! | `amdgpu-pages-ID-GPU.img` | the contents of its BOs on one GPU |
//! | `amdgpu-renderD-ID.img` | an open render node ([`RenderNode`]) |
//! | `amdgpu-drm-pages-ID-MINOR-BO.img` | the contents of one of its BOs; later |
//! | `amdgpu-dmabuf_ID.img` | a dma-buf ([`DmabufNode`]); later |
//! | `vramstream-kfd-ID.img` | ours: checksums of a process's files ([`Sums`]) |
//! | `vramstream-renderD-ID.img` | ours: what a render node is to its process ([`RenderOwner`]) |
//! | `vramstream-dmabuf-ID.img` | ours: whose BO a dma-buf is ([`DmabufOwner`]) |
//! | `vramstream-shared-ID.img` | ours: the BOs of a process on /dev/kfd that others are of ([`read_shared`]) |
//!
//! Each begins with its size in 8 bytes ([`framing`]); the rest is a protobuf message
//! (`proto/criu_amdgpu.proto`), or contents. "Later" is after CRIU 4.2: an image of 3.17 to 4.2 does
//! not have it, and is read all the same; what is written here always has all of it, so that each of
//! them can read it.
//!
//! What is read is checked before anybody acts on it: everything that must be there is, counts are
//! those of what follows, ids are of GPUs that exist, sizes add up; and there is a limit on every
//! length and count. An error names the file and the field.
//!
//! This module knows bytes, and the [topology](crate::topology) that is in them. It must not know
//! where files are, or what is done with what is in them.

mod devices;
mod dmabuf;
mod error;
mod fields;
pub mod framing;
mod kfd;
mod name;
mod owner;
mod proto;
mod render;
mod sums;

pub use dmabuf::DmabufNode;
pub use error::ImageError;
pub use kfd::{KfdBo, KfdImage, NO_HANDLE, SharedMemory};
pub use name::ImageName;
pub use owner::{
    BoName, BoSums, DmabufOwner, RenderOwner, all_names, dmabuf_owner_name, next_owner_name,
    owner_name, read_shared, shared_name, write_shared,
};
pub use render::{DrmBo, DrmVm, RenderNode};
pub use sums::{BLOCK_BYTES, BlockSums, GpuSums, Sums, sums_name};

/// The most bytes of a message: many times what a process with a million BOs has.
pub const MOST_MESSAGE_BYTES: u64 = 256 << 20;
/// The most BOs of a process.
pub const MOST_BOS: usize = 1 << 20;
/// The most places at which the BOs of a render node are mapped.
pub const MOST_MAPPINGS: usize = 4 << 20;
