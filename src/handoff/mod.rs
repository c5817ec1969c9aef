//! The plugin hands GPU contents over to the streamer: the protocol, and both ends of it.
//!
//! The plugin is the control plane: it knows the process, and stops and restores it. The streamer is
//! the data mover: its GPU workers copy the contents. What goes between them is descriptors and
//! sizes, so no byte of VRAM passes through CRIU or a pipe.
//!
//! # The protocol
//!
//! **The socket** is [`SOCKET`] in CRIU's images directory: `AF_UNIX`, `SOCK_SEQPACKET`, mode 0600.
//! Each side asks the kernel who the other is, and goes on only with root or its own effective user.
//! Where there is no such socket, or nobody listens at it, nothing is handed over.
//!
//! **A connection is one job**: all GPUs of one process, to be dumped or restored. A record is a
//! message, at most 4096 bytes, little-endian: a kind and a number, 32 bits each, and a body.
//!
//! | kind | from | message | number | body | descriptors |
//! |---|---|---|---|---|---|
//! | 1 | plugin | job | version: 1 | 24 bytes, see below | none |
//! | 2 | plugin | GPU | what the image calls it: `gpu_id` | 32 bits: how many BOs; then the path of its render node, for messages, 1 to 1024 bytes | 1: its render node |
//! | 3 | plugin | BOs | how many, 1 to 253 | 64 bits for each: its size | as many: its dma-buf |
//! | 101 | streamer | next | 0 | none | none |
//! | 102 | streamer | accepted | 0 | none | none |
//! | 103 | streamer | done | 0 | none | none |
//! | 104 | streamer | failed | 0 | why, UTF-8, at most 2048 bytes | none |
//!
//! | bytes of a job | field |
//! |---|---|
//! | 0..4 | 1: dump, contents go from the BOs to the image; 2: restore, from the image to the BOs |
//! | 4..8 | the number that CRIU gave the process's `/dev/kfd`: the first one in `amdgpu-pages-ID-GPU.img` |
//! | 8..16 | `KFD_MAX_BUFFER_SIZE` of the plugin, in bytes; 0: not given |
//! | 16..20 | how many GPUs, at most 256, each `gpu_id` once |
//! | 20..24 | how many BOs altogether, at most 2^20 |
//!
//! **Order.** The plugin sends the job, then for each GPU its record and the records of its BOs, in
//! the order of the image. The streamer answers each record with *next* before the plugin sends
//! another, so that no more descriptors than those of one record are ever on their way: the kernel
//! limits those too. After the last *next* it sends *accepted*: it has every descriptor, and the
//! plugin needs none of its own any more. Nothing has been copied by then. *Done* says that all
//! contents have been copied: into the streamer, or into the BOs, their fences having signalled.
//! *Failed* may come instead of any of these, and is the last.
//!
//! **Render nodes** must have been opened for this: their address spaces are empty and belong to the
//! streamer from then on. A streamer may refuse descriptors that are no render nodes, or no memory
//! of at least the size that was said.
//!
//! **The end.** Whoever closes the connection before *done* or *failed* has died or given up, and the
//! other side gives the job up: a dump is not complete then, and a restore has failed. A connection
//! that is closed before its first record has asked for nothing. Another version is answered with
//! *failed*. During the handover neither side waits longer than two minutes for the other.
//!
//! This module does not know what is in an image or how contents are copied.

use nix::errno::Errno;

use crate::gpu;

mod client;
mod link;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use client::{Pending, Streamer};
pub use server::Plugin;

/// The name of the socket in CRIU's images directory.
pub const SOCKET: &str = "vramstream-gpu.sock";

/// The most GPUs of a job.
pub const MOST_GPUS: u32 = 256;
/// The most BOs of a job, of all GPUs together: as many descriptors as Linux allows a process.
pub const MOST_BOS: u32 = 1 << 20;

/// Which way contents go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the BOs to the image.
    Dump,
    /// From the image to the BOs.
    Restore,
}

/// What is handed over: the GPUs of one process.
#[derive(Debug)]
pub struct Job {
    /// Which way.
    pub direction: Direction,
    /// The number that CRIU gave the process's `/dev/kfd`.
    pub kfd_id: u32,
    /// `KFD_MAX_BUFFER_SIZE` of the plugin, in bytes, where it was given.
    pub cap_bytes: Option<u64>,
    /// The GPUs. To be handed over, each needs a render node that is [open](gpu::Render::Open).
    pub gpus: Vec<gpu::Contents>,
}

/// Why a handover, or what was to follow it, failed.
#[derive(Debug, thiserror::Error)]
pub enum HandoffError {
    /// The system refused something.
    #[error("handing GPU contents over: cannot {doing}: {errno}")]
    System {
        /// What.
        doing: &'static str,
        /// What it answered.
        errno: Errno,
    },
    /// The other side is somebody else's.
    #[error(
        "the process at the other end of {SOCKET} belongs to user {uid}, and only root and user {euid} are trusted: look who listens in the images directory"
    )]
    Stranger {
        /// Whose it is.
        uid: u32,
        /// Who we are.
        euid: u32,
    },
    /// The streamer says why.
    #[error("the image streamer could not move the GPU contents: {0}")]
    Failed(String),
    /// The connection has ended.
    #[error("{who} ended or gave up while {doing}: see its messages")]
    Gone {
        /// The other side.
        who: &'static str,
        /// In which state.
        doing: &'static str,
    },
    /// No answer.
    #[error("{who} has not answered for {seconds} s while {doing}: it is stopped or hangs")]
    Silent {
        /// The other side.
        who: &'static str,
        /// In which state.
        doing: &'static str,
        /// How long.
        seconds: u64,
    },
    /// Another version of the protocol.
    #[error(
        "the plugin and the image streamer are of different releases: one hands over GPU contents in version {theirs}, the other in {ours}; install both from the same one"
    )]
    Version {
        /// The other side's.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The other side does not keep to the protocol.
    #[error("{who} does not keep to the protocol of {SOCKET}: {what}")]
    Protocol {
        /// The other side.
        who: &'static str,
        /// What it did.
        what: String,
    },
    /// There is no room for so many descriptors.
    #[error(
        "the process has {bos} BOs on its GPUs, and each takes a file descriptor of the image streamer, whose limit on open files is {limit}: raise the hard limit (ulimit -Hn, LimitNOFILE=) to at least {needed}"
    )]
    Limit {
        /// BOs of the job.
        bos: u32,
        /// The limit that is.
        limit: u64,
        /// The limit that would do.
        needed: u64,
    },
    /// There is more than a job may have.
    #[error("{what} are more than can be handed over")]
    TooMany {
        /// What and how many.
        what: String,
    },
    /// A render node to hand over was not opened.
    #[error(
        "internal error: the render node of GPU {gpu_id:#06x} was not opened; please report this"
    )]
    NotOpen {
        /// Which GPU.
        gpu_id: u32,
    },
}
