//! The data path of vramstream, shared by the image streamer and the CRIU plugin.
//!
//! ```text
//!  source                           this crate                                sink
//!  ┌─────────────┐ SDMA ┌───────┐   ┌──────────────────────────────┐   ┌───────────────────────┐
//!  │ VRAM and GTT├─────►│ ring  ├──►│ stage                        ├──►│ uring: files          │
//!  │ of each GPU │ gpu  │ chunks│   │ zero scan → CRC-32 → LZ4     │   │ streamer: pipes, TCP  │
//!  ├─────────────┤ read │       │   └──────────────────────────────┘   └───────────┬───────────┘
//!  │ CRIU pipes  ├─────►│       │                                                  │
//!  └─────────────┘      └───▲───┘                                                  │
//!                           └───────────────── chunk back on drop ─────────────────┘
//! ```
//!
//! A restore is the same from right to left: payloads are read into chunks, checked, and copied into
//! BOs by SDMA.
//!
//! # Where a byte of VRAM is
//!
//! | when | where | who may touch it |
//! |---|---|---|
//! | before | in its BO. The process's queues are stopped ([`gpu::Paused`]), so nothing changes it | nobody |
//! | submitted | on its way into a chunk: [`gpu`] has put the window of the contents that the byte is in into one submission of its [`device::copy::CopyQueue`] | the SDMA engine; the chunk is the queue's, and nobody can see it |
//! | fence signalled | in the chunk, which its worker gives away at once ([`gpu::Drain`]) | whoever has the chunk; there is one owner, always |
//! | staged | there still: [`stage`] has looked at it and computed its checksum; only LZ4 has made other bytes of it | the stage, then the shard |
//! | written | there still: the kernel reads it for `write`, `sendmsg` or io_uring ([`uring`]). No CPU of ours has copied it | the kernel |
//! | after | in the file, the socket or the pipe. The chunk is dropped, which gives it back to its [`ring`], and the next window goes into it | the next owner |
//!
//! If the engine never answers, the chunk is condemned: its memory is not used again, by anyone.
//!
//! # Modules
//!
//! | module | what it is | what it must not know |
//! |---|---|---|
//! | [`abi`] | foreign layouts and numbers: KFD, DRM, SDMA packets | everything else |
//! | [`device`] | open a node, issue an ioctl, map memory: the kernel's devices or simulated ones; copies by SDMA | what the contents are for |
//! | [`gpu`] | contents of GPUs to chunks and back: one worker per GPU, several copies in flight | where chunks go, formats, files |
//! | [`handoff`] | GPU contents from the plugin to the streamer: the protocol, both ends | what is in an image, how contents are copied |
//! | [`image`] | the image files of CRIU's amdgpu plugin: what is in them, read and written | where files are, devices |
//! | [`plugin`] | the CRIU plugin: which hook is whose business, dump, restore, the C edge | how CRIU, devices and streams work inside |
//! | [`ring`] | the bounded pool of page-aligned chunks: the memory budget, and the only place of it | what is in a chunk, where it goes |
//! | [`stage`] | zero scan, checksum, compression and their inverses: pure functions on bytes | chunks, files, threads |
//! | [`system`] | which machine this is: the kernel's, or a simulated one | what is done on it |
//! | [`topology`] | GPUs, CPUs and links of a machine; which GPU here takes the place of which one of a checkpoint, or why none can | devices, images, what a plan is for |
//! | [`uring`] | writes files from chunks, many writes at a time, with io_uring where it can be had | what is in a chunk, how a file is laid out |
//!
//! Arrows point down only: the streamer uses all of these but `plugin`, `plugin` uses the others, `gpu` uses `device` and `ring`, `uring`
//! and `device` use `ring`, `handoff` uses `gpu` and `device`, `image` and `system` use `topology`,
//! `system` uses `device`, `device` and `image` use `abi`, nothing here uses the streamer. `unsafe`
//! is allowed in `abi`, `device`, `ring` and `uring`, and denied everywhere else.

#[allow(unsafe_code)] // structures are read and written as their bytes
pub mod abi;
#[allow(unsafe_code)] // ioctls take addresses, and devices share memory
pub mod device;
pub mod gpu;
pub mod handoff;
pub mod image;
pub mod plugin;
pub mod ring;
pub mod stage;
pub mod system;
pub mod topology;
pub mod uring;
