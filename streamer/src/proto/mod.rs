//! The protobuf messages of `proto/`, as prost generates them. The generated files are checked in,
//! so that a build needs no `protoc`; `tests/tests/proto_is_current.rs` fails when they and the
//! `.proto` files differ.
#![allow(missing_docs, clippy::doc_markdown)]

pub mod criu;
pub mod criu_image_streamer;
pub mod format;
pub mod transfer;
