//! GPU contents that a plugin hands over: captured and served with a fake CRIU beside it, on
//! simulated GPUs.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are not seen as tests

mod damage;
mod dying;
mod round_trip;
mod sinks;
mod support;
