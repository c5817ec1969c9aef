//! The plugin, whole: loaded by a program that plays CRIU, in processes as CRIU has them, against
//! simulated GPUs in another process.
//!
//! | module | what it shows |
//! |---|---|
//! | [`descriptor`] | every CRIU loads it, and one that nobody knows is refused |
//! | [`nothing`] | where there is nothing to do it is as if it were not there |
//! | [`memory`] | CRIU needs little memory, whatever the size of the VRAM |
//! | [`moves`] | processes go from machine to machine and are what they were |
//! | [`files`] | open files in every order and number |
//! | [`failures`] | whatever fails is named, and the process goes on |
//! | [`killed`] | CRIU is killed, and the process goes on |
//! | [`images`] | damaged images are refused by name |
//! | [`handed_over`] | a streamer that takes contents itself, and fails |
//! | [`hostile`] | what somebody has put in the way |
//! | [`streams`] | the same through pipes |
//! | [`reports`] | what people have reported of what this replaces |
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests

mod descriptor;
mod failures;
mod files;
mod handed_over;
mod hostile;
mod images;
mod killed;
mod memory;
mod moves;
mod nothing;
mod reports;
mod streams;

use std::io;

use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{App, Criu, Flavour},
};

type Result = io::Result<()>;

/// Something of everything on each GPU: what a test uses that is about something else.
const MIXED: &str = "--bo vram:0:3M --bo vram:0:4K:visible --bo gtt:0:64K:visible \
                     --bo userptr:0:16K --bo vram:0:1M";

/// A machine, an application on it whose memory is filled, and a CRIU.
fn scene(
    spec: &MachineSpec,
    app: &str,
    flavour: Flavour,
) -> io::Result<(SimulatedMachine, App, Criu)> {
    let machine = SimulatedMachine::start(spec)?;
    let app = App::start(&machine, app)?;
    machine.fill(app.pid(), "random", 1)?;
    Ok((machine, app, Criu::new(flavour)?))
}
