//! The image streamer, as a library: the `vramstream` program is a thin shell around it.
//!
//! ```text
//!  criu dump ──► capture ──► format ──► transport ··► transport ──► absorb ──► store ──► serve ──► criu restore
//!                (pipes →      (frames)   (pipe, file,              (verify)    extract
//!                 chunks →                 tcp)                                  verify, inspect
//!                 stages)
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`format`](mod@format) | the native image format: bytes only, no I/O; its page is the specification |
//! | [`transport`] | where shards go and come from: pipes, files, TCP |
//! | [`absorb`] | reads all shards of an image, checks everything, hands the files to a sink |
//! | [`seekable`] | an image in files, opened by its indexes and read chunk by chunk in any order |
//! | [`payload`] | the bytes of a chunk on their way to a shard |
//! | [`proto`] | generated protobuf messages |
#![forbid(unsafe_code)]

pub mod absorb;
pub mod error;
pub mod format;
pub mod payload;
pub mod proto;
pub mod seekable;
pub mod transport;

pub use error::{Error, Result};
