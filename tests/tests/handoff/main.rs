//! GPU contents that a plugin hands over: captured and served with a fake CRIU beside it, on
//! simulated GPUs.

mod damage;
mod dying;
mod round_trip;
mod sinks;
mod support;
