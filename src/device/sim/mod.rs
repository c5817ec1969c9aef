//! Simulated GPUs behind the ioctls of the real ones.
//!
//! A [`SimHost`] is a machine with any number of GPUs. A [`SimProcess`] is a process on it, with a
//! pid and credentials of its own, and the [`Driver`](super::Driver) of everything that this
//! process opens; so one test can be an application, CRIU that stops it, and the task that CRIU
//! restores. What they see is what Linux 6.12's amdgpu and amdkfd answer (kernels differ; a
//! [`Machine`] says which one it is), down to errno.
//!
//! ```text
//!  door       in this process: arguments are copied in and out, memory of the caller is reached by
//!             address, descriptors are real ones (a memfd each, known by its inode)
//!  daemon     the same for callers in other processes, which come through a socket
//!  relay      the same for callers of real device nodes, which a kernel module passes on
//!  remote     a caller in another process: its memory, its descriptors, its rights
//!  dispatch   number → handler; the fault plan has its say first
//!  drm, kfd   the handlers
//!  interrupt  how a call that waits is let go
//!  vm, object GPU address spaces and what is mapped in them
//!  engine     SDMA engines: threads that execute the packets of indirect buffers
//!  profile    models of GPUs; machine and sysfs make a host and its topology of them
//!  app        an application, for those who need something to checkpoint
//!  arena      VRAM and GTT: sparse memory files
//! ```
//!
//! It also checks its callers. What a kernel would let pass, or answer with a corrupted machine,
//! becomes a [`Complaint`]: a handle, mapping or context that was left behind when a file was
//! closed, a copy past the end of a BO, an unaligned userptr. Tests assert that there are none.
//!
//! # Limits
//!
//! No shader runs here. The packets of a user queue of an SDMA engine are executed; one for compute
//! is state, and on request a thread that goes on writing to
//! VRAM until the queue is stopped, so that a dump without a pause shows.

mod app;
mod arena;
mod caller;
mod daemon;
mod dispatch;
mod dma_buf;
mod door;
mod drm;
mod engine;
mod faults;
mod fence;
mod flight;
mod host;
mod interrupt;
mod kfd;
mod link;
mod locked;
mod log;
mod machine;
mod names;
mod object;
mod profile;
mod relay;
mod remote;
mod sysfs;
#[cfg(test)]
mod tests;
mod vm;

pub use app::{ADDRESSES_END, AppBo, AppQueue, Application, BoPlan, Program, ProgramPlan};
pub use caller::Credentials;
pub use daemon::Daemon;
pub use door::SimProcess;
pub use engine::Copied;
pub use faults::{Fault, Planned};
pub use host::SimHost;
pub use kfd::{BoInfo, EventInfo, Fill, QueueInfo, QueueProgress, QueueState, Scribble};
pub use log::Complaint;
pub use machine::{GpuSpec, KernelRelease, Machine, Speed};
pub use profile::{Profile, ProfileError};
pub use relay::{Relay, RelayError};
pub use sysfs::SysfsError;
