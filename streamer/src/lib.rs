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
//! | [`criu_image_streamer`] | the image format of criu-image-streamer: bytes only, no I/O |
//! | [`transport`] | where shards go and come from: pipes, files, TCP |
//! | [`absorb`] | reads all shards of an image, checks everything, hands the files to a sink |
//! | [`payload`] | the bytes of a chunk on their way to a shard |
//! | [`proto`] | generated protobuf messages |
#![forbid(unsafe_code)]

pub mod absorb;
pub mod capture;
pub mod cli;
pub mod commit_gate;
pub mod criu;
pub mod criu_image_streamer;
pub mod error;
pub mod extract;
mod fault;
pub mod format;
pub mod limits;
pub mod payload;
pub mod progress;
pub mod proto;
pub mod serve;
pub mod signals;
pub mod store;
pub mod transport;

pub use error::{Error, Result};

/// What this program calls itself in the images it writes.
pub const WRITER: &str = concat!("vramstream ", env!("CARGO_PKG_VERSION"));
