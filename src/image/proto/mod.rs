//! The messages of `proto/criu_amdgpu.proto` and `proto/vramstream_plugin.proto`, as prost generates
//! them;
//! `tests/tests/proto_is_current.rs` fails when they and that file differ.
#![allow(missing_docs, unreachable_pub, clippy::doc_markdown)]

mod messages;
mod plugin;

pub(super) use messages::*;
pub(super) use plugin::*;
