//! The render nodes as a client sees them, through the path that the product takes.

mod client;
mod complaints;
mod copies;
mod faulty;
mod nodes;
mod objects;
mod schedule;
mod submissions;

use super::{KernelRelease, Machine, Profile, SimHost};

/// A machine with GPUs of 1 GiB.
fn host(gpus: u32) -> SimHost {
    SimHost::new(machine(gpus)).unwrap()
}

fn machine(gpus: u32) -> Machine {
    Machine::new(&Profile::gfx90a(), gpus).vram_bytes(1 << 30)
}

/// A machine of one GPU with another kernel.
fn with_kernel(kernel: KernelRelease) -> SimHost {
    SimHost::new(Machine { kernel, ..machine(1) }).unwrap()
}

/// Nothing is open, and nobody did anything wrong.
#[track_caller]
fn assert_clean(host: &SimHost) {
    assert_eq!(complaints_of(host), [""; 0]);
}

fn complaints_of(host: &SimHost) -> Vec<String> {
    host.check().iter().map(ToString::to_string).collect()
}
