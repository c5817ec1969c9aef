//! The benchmark of whole streamer programs; see `vramstream_tests::bench`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use vramstream_tests::bench::{self, options::Options};

fn main() -> ExitCode {
    match bench::run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-streamer: {error}");
            ExitCode::FAILURE
        }
    }
}
