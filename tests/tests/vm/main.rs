//! Tests that need a kernel of their own: real device files, real CRIU, real ROCm libraries.
//!
//! `scripts/vm-test` runs them in a virtual machine, one at a time, as root. Those in a module called
//! `long` run only when they are asked for.
#![forbid(unsafe_code)]

mod app;
mod clients;
mod containers;
mod frameworks;
mod gpus;
mod killed;
mod pair;
mod plain;
mod relay;
mod reports;
mod support;
