//! CRIU is killed in the middle of a dump.

use std::{fs, io};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use vramstream_tests::{
    deadline::Deadline,
    machine::{MachineSpec, SimulatedMachine},
    plugin::{App, Criu, Flavour, assert_runs, assert_same},
};

use super::{MIXED, Result, scene};

/// The guardians on a machine.
fn guardians(machine: &SimulatedMachine) -> io::Result<usize> {
    let (name, value) = machine.env();
    let variable = [name.as_bytes(), b"=", value.as_encoded_bytes()].concat();
    let is_one = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let is_guardian = fs::read(path.join("comm")).ok()? == b"vram-guardian\n";
        let environment = fs::read(path.join("environ")).ok()?;
        (is_guardian && environment.split(|&byte| byte == 0).any(|of| of == variable)).then_some(())
    };
    Ok(fs::read_dir("/proc")?.filter_map(is_one).count())
}

/// Kills CRIU when it is in a call.
fn kill_in(machine: &SimulatedMachine, criu: &Criu, apps: &[&App], call: &str) -> Result {
    let fault = machine.plan(&format!("{call} blocks"))?;
    let processes: Vec<_> = apps.iter().map(|app| app.process()).collect();
    let mut run = criu.begin_dump(machine, &processes)?;
    Deadline::step().until(call, || Ok((machine.hits(fault)? > 0).then_some(())))?;
    assert!(!machine.left_stopped()?.is_empty(), "{call}");
    assert_eq!(guardians(machine)?, 1, "{call}");
    run.kill()?;
    run.wait()?;
    Deadline::step()
        .until("the end of the guardian", || Ok((guardians(machine)? == 0).then_some(())))?;
    machine.release(fault)?;
    Ok(())
}

#[test]
fn the_queues_of_all_processes_run_again() -> Result {
    // The first process's checkpoint; a copy of its contents; the second's checkpoint (between them is
    // the question whether that one is stopped).
    for call in ["CRIU_OP nth=2", "CS", "CRIU_OP nth=5"] {
        let (machine, one, criu) = scene(&MachineSpec::gpus(2), MIXED, Flavour::Criu42)?;
        let two = App::start(&machine, "--bo vram:0:4K")?;
        kill_in(&machine, &criu, &[&one, &two], call)?;
        assert_runs(&machine, one.pid())?;
        assert_runs(&machine, two.pid())?;
        // Nobody traces them any more, and they are what they were.
        machine.ask("forget")?;
        let criu = Criu::new(Flavour::Criu42)?;
        criu.dump(&machine, &[one.process(), two.process()])?.assert_good();
        assert_eq!(guardians(&machine)?, 0);
        assert_runs(&machine, one.pid())?;
        let restored = criu.restore(&machine)?;
        restored.assert_good();
        assert_same((&machine, one.pid()), (&machine, restored.tasks[0].pid))?;
    }
    Ok(())
}

#[test]
fn a_process_that_is_killed_too_needs_nobody() -> Result {
    let (machine, one, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Dev)?;
    let two = App::start(&machine, "--bo vram:0:4K")?;
    let fault = machine.plan("CRIU_OP nth=5 blocks")?;
    let mut run = criu.begin_dump(&machine, &[one.process(), two.process()])?;
    Deadline::step().until("the call", || Ok((machine.hits(fault)? > 0).then_some(())))?;
    // (Nobody sees the end of a process while it is traced.)
    kill(Pid::from_raw(one.pid().cast_signed()), Signal::SIGKILL)?;
    run.kill()?;
    run.wait()?;
    Deadline::step()
        .until("the end of the guardian", || Ok((guardians(&machine)? == 0).then_some(())))?;
    machine.release(fault)?;
    assert_runs(&machine, two.pid())
}

/// CRIU waits for all its children at the end, and would wait for ever.
#[test]
fn a_dump_leaves_no_guardian_and_no_child() -> Result {
    for options in ["", "--kill", "--fail-after 2"] {
        let (machine, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Dev)?;
        let criu = criu.with_options(options);
        let run = criu.dump(&machine, &[app.process()])?;
        assert_eq!(run.said("children"), ["children none"], "{options}: {run:#?}");
        assert_eq!(run.blame(), [""; 0], "{run:#?}");
        assert_eq!(guardians(&machine)?, 0);
    }
    Ok(())
}
