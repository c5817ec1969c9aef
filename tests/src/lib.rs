//! What the whole-program tests are made of.
#![forbid(unsafe_code)]

pub mod bench;
pub mod bench_plugin;
pub mod deadline;
pub mod fake_criu;
pub mod images;
pub mod legacy;
pub mod machine;
pub mod plugin;
pub mod real;
pub mod rounds;
pub mod shards;
pub mod streamer;
