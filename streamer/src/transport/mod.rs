//! Where shards go to and come from.
//!
//! A [`Destination`] opens one [`ShardWriter`] for each shard. Threads write them independently;
//! when all have [finished](ShardWriter::finish), everything is safe but nothing is visible, and
//! [`Destination::commit`] publishes all shards or none. An [`Origin`] is the inverse: its
//! [`ShardReader`]s are read independently, and it learns what became of the image.
//!
//! | transport | safe after `finish` | visible after `commit` |
//! |---|---|---|
//! | [`pipe`] | the kernel has the bytes and the reader is alive | nothing more to do |
//! | [`file`](mod@file) | fsync of each shard under a temporary name | renamed, shard 0 last, and the directory fsynced |
//! | [`tcp`] | the kernel has the bytes, and the receiver's heartbeats come | the receiver has said that it verified and committed |
//! | [`throttle`] | whatever it wraps says so | the same |
//! | [`null`] | never: it keeps nothing | never |
//!
//! All of them but [`null`] keep to one contract, which `tests/tests/transport_conformance.rs` checks:
//! bytes arrive as they were written; a shard that was not committed is never read as an image; a
//! failure names the file, descriptor or peer; dropping a destination without `commit` leaves
//! nothing behind.

use std::{fs::File, io::Read};

use crate::{
    error::{Error, Result},
    format::ImageId,
    payload::Payload,
};

pub mod file;
pub mod null;
pub mod pipe;
pub mod tcp;
pub mod throttle;

/// Takes the bytes of one shard, in order.
pub trait ShardWriter: Send {
    /// The shard by where it goes, for messages.
    fn describe(&self) -> &str;

    /// What the payloads of raw chunks should be aligned to within the shard, so that they can be
    /// written without being copied. A power of two.
    fn payload_alignment(&self) -> Option<u32> {
        None
    }

    /// Writes bytes that are not payload.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Writes `head`, then a payload.
    fn write_chunk(&mut self, head: &[u8], payload: Payload) -> Result<()>;

    /// No more comes. Returns when the shard is as safe as it can be without being visible.
    fn finish(&mut self) -> Result<()>;
}

/// A place for all shards of an image.
pub trait Destination: Send {
    /// How many shards the image will have.
    fn shards(&self) -> u32;

    /// Opens them. Called once.
    fn open(&mut self, image: ImageId) -> Result<Vec<Box<dyn ShardWriter>>>;

    /// The size of chunk that it takes best, in bytes.
    fn chunk_bytes(&self) -> usize {
        1 << 20
    }

    /// Memory that its shards need beside the chunks, in bytes.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// Whether the destination is still there, asked about once a second while there may be nothing
    /// to write.
    fn health(&mut self) -> Result<()> {
        Ok(())
    }

    /// Publishes: every shard has finished. A commit that has to wait for somebody asks `check` now
    /// and then whether to go on.
    fn commit(&mut self, check: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Gives up. The writers, if they could, have said so in the shards. Leaves nothing behind.
    fn abort(&mut self, reason: &str);

    /// The cause behind an error that a writer met, where the destination knows more than errno.
    fn explain(&mut self, error: Error) -> Error {
        error
    }
}

/// Gives the bytes of one shard, in order.
pub trait ShardReader: Read + Send {
    /// The shard by where it comes from, for messages.
    fn describe(&self) -> &str;

    /// The file it is, if it is one and can be read at any place.
    fn file(&self) -> Option<&File> {
        None
    }
}

/// A place that all shards of an image come from.
pub trait Origin: Send {
    /// Opens them, in any order. Called once.
    fn open(&mut self) -> Result<Vec<Box<dyn ShardReader>>>;

    /// The image was verified and is where it should be.
    fn committed(&mut self, files: u32, raw_bytes: u64) -> Result<()> {
        let _ = (files, raw_bytes);
        Ok(())
    }

    /// The image was refused, or could not be kept.
    fn failed(&mut self, reason: &str) {
        let _ = reason;
    }

    /// The cause behind an error that a reader met, where the origin knows more than the bytes.
    fn explain(&mut self, error: Error) -> Error {
        error
    }
}
