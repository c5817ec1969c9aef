//! Whole dumps and restores through the plugin, without a GPU and without CRIU.
//!
//! | module | what it is |
//! |---|---|
//! | [`app`] | an application on a simulated machine |
//! | [`criu`] | a CRIU that is played (`criu-host-*`): which one, with what |
//! | [`run`] | what it did |
//! | [`stock`] | an image streamer that knows nothing of GPUs |
//!
//! A test has a machine ([`crate::machine`]), an application on it, and a CRIU:
//!
//! ```no_run
//! # use vramstream_tests::{machine::{MachineSpec, SimulatedMachine}, plugin::*};
//! let here = SimulatedMachine::start(&MachineSpec::gpus(2))?;
//! let app = App::start(&here, "--bo vram:0:4M --bo vram:1:64K")?;
//! here.fill(app.pid(), "random", 1)?;
//! let criu = Criu::new(Flavour::Criu42)?;
//! criu.dump(&here, &[app.process()])?.assert_good();
//! let there = SimulatedMachine::start(&MachineSpec::gpus(2).elsewhere())?;
//! let restored = criu.restore(&there)?;
//! restored.assert_good();
//! assert_same((&here, app.pid()), (&there, restored.tasks[0].pid))?;
//! # std::io::Result::Ok(())
//! ```

pub mod app;
pub mod criu;
pub mod run;
pub mod stock;

use std::io;

pub use app::{App, Process};
pub use criu::{Criu, Flavour, Restored, Task, plugin};
pub use run::Run;
pub use stock::StockStreamer;

use crate::machine::{BoState, MachineSpec, SimulatedMachine};

/// Two processes have the same memory with the same contents, and the same queues, which run.
#[track_caller]
pub fn assert_same(
    (here, pid): (&SimulatedMachine, u32),
    (there, other): (&SimulatedMachine, u32),
) -> io::Result<()> {
    assert!(there.resumed(other)?, "process {other} was not resumed");
    let (bos, others) = (here.bos(pid)?, there.bos(other)?);
    let of = |bo: &BoState| (bo.va, bo.size, bo.flags, bo.gpu_id, bo.handle);
    assert!(bos.iter().map(of).eq(others.iter().map(of)), "{bos:#?}\n{others:#?}");
    for (bo, other) in bos.iter().zip(&others) {
        assert_eq!(bo.crc, other.crc, "contents of the BO at {:#x}", bo.va);
    }
    let queues = there.queues(other)?;
    let numbers = |queues: &[(u32, bool)]| queues.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(numbers(&queues), numbers(&here.queues(pid)?));
    assert!(queues.iter().all(|(_, runs)| *runs), "{queues:?}");
    assert_eq!(there.ask(&format!("events {other}"))?, here.ask(&format!("events {pid}"))?);
    Ok(())
}

/// What was dumped of a process is the same when it is restored on a machine that is started for it.
#[track_caller]
pub fn assert_restored(
    criu: &Criu,
    dumped: (&SimulatedMachine, u32),
    there: &MachineSpec,
) -> io::Result<()> {
    let there = SimulatedMachine::start(there)?;
    let restored = criu.restore(&there)?;
    restored.assert_good();
    assert_same(dumped, (&there, restored.tasks[0].pid))
}

/// Nobody is left stopped on a machine, and all queues of a process run.
#[track_caller]
pub fn assert_runs(machine: &SimulatedMachine, pid: u32) -> io::Result<()> {
    assert_eq!(machine.left_stopped()?, [""; 0]);
    let queues = machine.queues(pid)?;
    assert!(queues.iter().all(|(_, runs)| *runs), "{queues:?}");
    Ok(())
}
