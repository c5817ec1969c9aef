//! The bounded pool of page-aligned chunks: the memory budget is enforced here and only here.
//!
//! A [`Ring`] maps all its memory once, when it is made, and never more. [`Ring::take`] lends a
//! [`Chunk`]; dropping the chunk, on whatever path, gives it back. So a process that moves its
//! data in chunks cannot need more memory than the ring has, and a stage that is slow makes the
//! stage before it wait.
//!
//! A chunk has exactly one owner at a time and is not shared: whoever holds it may read it and
//! write it, and whoever hands it to the kernel (an io_uring write, a device) hands over the value
//! and gets it back with the completion. That is why there never is a `&[u8]` over memory that
//! somebody else is writing.
//!
//! A chunk that a device may be writing to when everybody has given up waiting is condemned: it is
//! never lent again, and the memory stays mapped for the rest of the process's life.
//!
//! How much memory that is for a process with GPUs, a [`Budget`] says.
//!
//! Free chunks are kept last-in first-out: the chunk that was used last is the one whose pages and
//! cache lines are warm, and a run that needs three chunks touches the memory of three.

mod budget;
mod lender;
#[allow(unsafe_code)] // loom's cells give pointers
#[cfg(all(test, vramstream_loom))]
mod loom_tests;
#[allow(unsafe_code)] // vmsplice(2) takes addresses
mod pages;
#[allow(unsafe_code)] // the pool cuts one mapping into chunks that have one owner each
mod pool;
mod size;

pub use budget::{Budget, BudgetError, BudgetReason, VARIABLE as BUDGET_VARIABLE};
pub use pages::refer_pages;
pub use pool::{Chunk, Ring, RingError, page_bytes};
pub use size::{ByteSize, ByteSizeError};
