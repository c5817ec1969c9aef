//! The `vramstream` program: see the library.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    vramstream_streamer::cli::main(std::env::args_os())
}
