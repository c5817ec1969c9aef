//! What the tests in the virtual machine are made of.
//!
//! | module | what it is |
//! |---|---|
//! | [`app`] | an application on real libhsakmt |
//! | [`case`] | a test: its name, its folders, the programs that it runs |
//! | [`container`] | containers of `runc` and `crun`, their checkpoints and restores |
//! | [`criu`] | the CRIU versions, and their dumps and restores with the plugin |
//! | [`machine`] | the simulated host behind the kernel's device files |
//! | [`snapshot`] | the files of a process as they were at its dump |
//! | [`way`] | the ways that an image goes |
//! | [`peer`] | the other one of two machines |

pub(crate) mod app;
pub(crate) mod case;
pub(crate) mod container;
pub(crate) mod criu;
pub(crate) mod machine;
pub(crate) mod peer;
pub(crate) mod snapshot;
pub(crate) mod way;

pub(crate) use app::App;
pub(crate) use case::{Case, case};
pub(crate) use criu::{Criu, each_criu};
pub(crate) use machine::Machine;
pub(crate) use peer::Peer;
pub(crate) use snapshot::Snapshot;

pub(crate) use vramstream_tests::real::Result;

/// Where the programs are.
pub(crate) const BIN: &str = "/vm/bin";
/// The directory with the plugin, for CRIU.
pub(crate) const PLUGIN: &str = "/vm/plugin";
