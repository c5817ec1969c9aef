//! The benchmark of the CRIU plugin; see `vramstream_tests::bench_plugin`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use vramstream_tests::bench_plugin::{self, options::Options};

fn main() -> ExitCode {
    match bench_plugin::run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-plugin: {error}");
            ExitCode::from(2)
        }
    }
}
