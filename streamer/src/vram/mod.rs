//! GPU contents as files of an image.
//!
//! The contents of each GPU are one file, named and framed as CRIU's amdgpu plugin does it, so that
//! either can read what the other wrote:
//!
//! ```text
//!  amdgpu-pages-ID-GPU.img     ID: the number CRIU gave the process's /dev/kfd, decimal
//!                              GPU: gpu_id, lower-case hexadecimal, at least four digits
//!  ┌─────────────────┬─────────────────────────────────────────────────────────┐
//!  │ size, 8 bytes,  │ BO, BO, BO ...: in the kernel's order, nothing between  │
//!  │ little-endian   │ them; VRAM and GTT only                                 │
//!  └─────────────────┴─────────────────────────────────────────────────────────┘
//! ```
//!
//! [`VramFeed`] is the end of a dump's GPU workers: chunks that SDMA has filled go to the stages and
//! the shards as they are. [`VramSink`] is the end of what reads an image: payloads are read from
//! the network or the disk into the chunk that SDMA then reads.
//!
//! This module does not know what else is in the image.

mod feed;
mod name;
mod sink;
#[cfg(test)]
mod tests;
mod transfer;

pub use feed::VramFeed;
pub use name::PagesFile;
pub use sink::VramSink;
pub use transfer::{Moved, Options, dump, restore};

/// Bytes of the size in front of the contents.
pub(crate) const SIZE_LEN: usize = size_of::<u64>();
/// The same, as a place in a file.
pub const SIZE_BYTES: u64 = SIZE_LEN as u64;
