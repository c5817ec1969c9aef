//! The `vramstream` program.
#![forbid(unsafe_code)]

fn main() {}
