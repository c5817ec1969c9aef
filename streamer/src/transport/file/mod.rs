//! Shards as files of a directory: `shard-0000-of-0004.vst` and so on.
//!
//! [`FileDestination`] writes them under temporary names, past the page cache where the file system
//! lets it, and renames them when the image is complete. It holds a lock on the directory, so two
//! captures cannot mix their shards, and what a dead one has left is removed by the next.
//! [`FileOrigin`] opens them for reading; its shards can be read at any place.
//!
//! It must not know what is in a shard: an image is recognised by its names here, and by its
//! contents where it is read.

use vramstream::uring::Engine;

use crate::format::{ImageId, MAX_SHARDS};

mod destination;
mod directory;
mod origin;
mod shard;
#[cfg(test)]
mod tests;

pub use destination::FileDestination;
pub use origin::FileOrigin;
pub use shard::STAGING_PER_SHARD;

/// How files are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIo {
    /// Past the page cache (O_DIRECT), where the file system can.
    pub direct: bool,
    /// With io_uring or without.
    pub engine: Engine,
}

impl Default for FileIo {
    fn default() -> Self {
        FileIo { direct: true, engine: Engine::Auto }
    }
}

/// The name of a shard of a complete image.
fn shard_name(shard: u32, count: u32) -> String {
    format!("shard-{shard:04}-of-{count:04}.vst")
}

/// Number and count in the name of a shard, if it is one that [`shard_name`] gives.
fn parse_shard_name(name: &str) -> Option<(u32, u32)> {
    let (shard, count) = name.strip_prefix("shard-")?.strip_suffix(".vst")?.split_once("-of-")?;
    let (shard, count) = (shard.parse().ok()?, count.parse().ok()?);
    (shard < count && count <= MAX_SHARDS && shard_name(shard, count) == name)
        .then_some((shard, count))
}

/// Whether a file looks like a shard, if perhaps not one of ours.
fn resembles_shard(name: &str) -> bool {
    name.starts_with("shard-") && name.ends_with(".vst")
}

/// The name of a shard until its image is complete.
fn temporary_name(image: ImageId, shard: u32) -> String {
    format!(".vramstream-{image}-{shard:04}.tmp")
}

/// Whether a file is one that a capture has left, or is still writing.
fn is_temporary(name: &str) -> bool {
    name.starts_with(".vramstream-") && name.ends_with(".tmp")
}
