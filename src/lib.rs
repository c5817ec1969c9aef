//! The data path of vramstream, shared by the image streamer and the CRIU plugin.
//!
//! ```text
//!  source                        this crate                                     sink
//!  ┌────────────┐   ┌───────┐   ┌──────────────────────────────┐   ┌───────────────────────┐
//!  │ CRIU pipes ├──►│ ring  ├──►│ stage                        ├──►│ uring: files          │
//!  └────────────┘   │ chunks│   │ zero scan → CRC-32 → LZ4     │   │ streamer: pipes, TCP  │
//!                   └───▲───┘   └──────────────────────────────┘   └───────────┬───────────┘
//!                       └───────────────── chunk back on drop ─────────────────┘
//! ```
//!
//! | module | what it is | what it must not know |
//! |---|---|---|
//! | [`abi`] | foreign layouts and numbers: KFD, DRM, SDMA packets | everything else |
//! | [`device`] | open a node, issue an ioctl, map memory: the kernel's devices or simulated ones; copies by SDMA | what the contents are for |
//! | [`ring`] | the bounded pool of page-aligned chunks: the memory budget, and the only place of it | what is in a chunk, where it goes |
//! | [`stage`] | zero scan, checksum, compression and their inverses: pure functions on bytes | chunks, files, threads |
//! | [`uring`] | writes files from chunks, many writes at a time, with io_uring where it can be had | what is in a chunk, how a file is laid out |
//!
//! Arrows point down only: the streamer uses all of these, `uring` and `device` use `ring`,
//! `device` uses `abi`, nothing here uses the streamer. `unsafe` is allowed in `abi`, `device`,
//! `ring` and `uring`, and denied everywhere else.

#[allow(unsafe_code)] // structures are read and written as their bytes
pub mod abi;
#[allow(unsafe_code)] // ioctls take addresses, and devices share memory
pub mod device;
pub mod ring;
pub mod stage;
pub mod uring;
