//! The image formats from outside: what is written is read, and nothing else is.
#![forbid(unsafe_code)]
// The helpers of tests may fail as tests may.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_possible_truncation)]

mod damage;
mod golden;
mod hostile;
mod inspection;
mod markers;
mod native_image;
mod pieces;
mod round_trip;
mod support;
