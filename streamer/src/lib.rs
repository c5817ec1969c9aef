//! The image streamer, as a library: the `vramstream` program is a thin shell around it.
//!
//! ```text
//!  criu dump ──► capture ──► format ──► transport ··► transport ──► absorb ──► store ──► serve ──► criu restore
//!                (pipes →      (frames)   (pipe, file,              (verify)    extract
//!                 chunks)                  tcp)                                  verify, inspect
//!                   └─► pack ──┘
//!                       (stages)
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`format`](mod@format) | the native image format: bytes only, no I/O; its page is the specification |
//! | [`criu_image_streamer`] | the image format of criu-image-streamer: bytes only, no I/O |
//! | [`criu`] | CRIU's sockets and messages |
//! | [`capture`] | CRIU's pipes to shards: all or nothing |
//! | [`pack`] | chunks of files, from any thread, to shards: checksums, compression, all or nothing |
//! | [`transport`] | where shards go and come from: pipes, files, TCP |
//! | [`absorb`] | reads all shards of an image, checks everything, hands the files to a sink |
//! | [`store`] | an image in memory, between its arrival and CRIU's questions |
//! | [`seekable`] | an image in files, opened by its indexes and read chunk by chunk in any order |
//! | [`serve`] | files to CRIU's pipes, in whatever order it asks |
//! | [`extract`] | files to a directory |
//! | [`verify`] | reads an image and keeps nothing |
//! | [`inspect`] | what is in an image, for programs and for people |
//! | [`plan`](mod@plan) | which GPU here would take the place of which one of a checkpoint, or why none can |
//! | `plugins` | CRIU plugins that hand GPU contents over, and wait |
//! | [`doctor`] | what a person needs to know before the first dump |
//! | [`manual`] | man pages and completions, made from the definitions of the command line |
//! | [`commit_gate`] | holds CRIU until the image is safe |
//! | [`payload`] | the bytes of a chunk on their way to a shard |
//! | [`cli`], [`progress`], [`signals`], [`limits`] | the program around it |
//! | [`vram`] | GPU contents as files of an image: between GPU workers and `pack` or `absorb` |
//! | [`rig`], [`selftest`], [`mod@bench`] | processes on simulated GPUs, moved and measured |
//! | [`proto`] | generated protobuf messages |
#![forbid(unsafe_code)]

pub mod absorb;
pub mod bench;
pub mod capture;
pub mod cli;
pub mod commit_gate;
pub mod criu;
pub mod criu_image_streamer;
pub mod doctor;
pub mod error;
pub mod extract;
mod fault;
pub mod format;
pub mod inspect;
pub mod limits;
pub mod manual;
pub mod pack;
pub mod payload;
pub mod plan;
mod plugins;
mod poller;
pub mod progress;
pub mod proto;
pub mod rig;
pub mod seekable;
pub mod selftest;
pub mod serve;
pub mod signals;
pub mod store;
pub mod transport;
pub mod verify;
pub mod vram;

pub use error::{Error, Result};

/// What this program calls itself in the images it writes.
pub const WRITER: &str = concat!("vramstream ", env!("CARGO_PKG_VERSION"));
