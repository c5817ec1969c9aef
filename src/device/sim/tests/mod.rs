//! The render nodes as a client sees them, through the path that the product takes.

mod client;
mod copies;

use super::{Credentials, Machine, Profile, SimHost};

/// A machine with GPUs of 1 GiB.
fn host(gpus: u32) -> SimHost {
    SimHost::new(Machine::new(&Profile::gfx90a(), gpus).vram_bytes(1 << 30)).unwrap()
}

/// Nothing is open, and nobody did anything wrong.
#[track_caller]
fn assert_clean(host: &SimHost) {
    let complaints: Vec<String> = host.check().iter().map(ToString::to_string).collect();
    assert_eq!(complaints, [""; 0]);
}
