//! Decoders against bytes that nobody wrote.
//!
//! ```text
//! VRAMSTREAM_FUZZ_CASES=1000000 cargo nextest run --release -p vramstream-streamer --test fuzz
//! ```
//!
//! runs a million cases of each target; without it a test run does a few thousand, always the same
//! ones, which `VRAMSTREAM_FUZZ_SEED=N` changes. Targets are the tests of [`targets`]; a new decoder
//! gets one more function there. A finding is replayed by the seed and the case that the panic names.
//!
//! # Why not a coverage-guided fuzzer
//!
//! libFuzzer under `cargo fuzz`, and `bolero` where it guides, need a nightly compiler's sanitizer
//! flags; this project builds with stable. Without guidance a generic fuzzer does not get past the
//! first CRC-32 of these formats. So the cases are what guidance would have to find: valid inputs
//! with every kind of frame, message and codec, altered in a few places ([`mutate`]), and in three
//! cases of four with their lengths and checksums made right again ([`seal`]), which is what somebody
//! who means harm would do.
//!
//! # What was run
//!
//! A million cases of each target with seed 1, two million of `whole_image` (a million of each format):
//! no panic, no hang, no broken promise. That the targets can find something was tried by taking
//! checks out of the decoders: the place of an index record, names in an index, the length of a frame
//! header and the search for a missing record are each found. Limits that take two fields that
//! agree, or gigabytes, are beyond it; `tests/format/hostile.rs` has those.
#![forbid(unsafe_code)]
// The helpers of tests may fail as tests may.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::cast_possible_truncation)]

mod mutate;
mod seal;
mod targets;
