//! The one module that touches io_uring: is it usable here, and writing a file with many writes in
//! flight.
//!
//! [`FileWriter`] takes [ring chunks](crate::ring::Chunk) by value, hands their memory to the
//! kernel and drops them (so they go back to their ring) when the kernel has said that it is done
//! with them. That is what makes it sound and safe to call: nobody else can reach the bytes in
//! between, and dropping the writer waits for the kernel first.
//!
//! Containers often forbid io_uring, so everything here works without it: with
//! [`Engine::Auto`] a writer that cannot have it writes with `pwrite(2)`, one write at a time.
//!
//! It must not know what is in a chunk, how a file is laid out, or what the file is called.

#[allow(unsafe_code)] // memory is lent to the kernel here, and only here
mod queue;
#[allow(unsafe_code)] // registering memory promises the kernel that it stays mapped
mod registered;
mod writer;

pub use queue::{Unusable, probe};
pub use writer::{Engine, FileWriter, WriteError};
