//! CRIU is killed in the middle of a dump: the application goes on, with all of its queues.

use std::{fs, time::Duration};

use vramstream_tests::{
    machine::MachineSpec,
    real::{
        process::{Process, session_members},
        wait_for,
    },
};

use crate::support::{App, Case, Criu, Machine, Result, case, criu::Options, each_criu};

const PATIENCE: Duration = Duration::from_secs(60);

/// How many guardians there are.
fn guardians() -> Result<usize> {
    let name = |entry: fs::DirEntry| fs::read(entry.path().join("comm")).unwrap_or_default();
    Ok(fs::read_dir("/proc")?.flatten().map(name).filter(|name| name == b"vram-guardian\n").count())
}

/// Kills CRIU when it is in a call.
fn kill_in(case: &Case, criu: &Criu, machine: &Machine, app: &mut App, call: &str) -> Result<()> {
    let fault = machine.plan(&format!("{call} blocks"))?;
    let pid = app.pid().to_string();
    let images = case.dir("killed")?;
    let words = ["dump", "-t", &pid];
    let mut command = criu.command(case, "killed", &words, &images, &Options::default())?;
    let mut dump = Process::start("criu", &mut command)?;
    wait_for(call, PATIENCE, || {
        if let Some(status) = dump.ended()? {
            return Err(format!("criu has ended: {status}").into());
        }
        Ok((machine.hits(fault)? > 0).then_some(()))
    })?;
    assert!(!machine.left_stopped()?.is_empty(), "{call}");
    assert_eq!(guardians()?, 1);
    dump.kill()?;
    dump.wait(PATIENCE)?;
    wait_for("the end of the guardian", PATIENCE, || Ok((guardians()? == 0).then_some(())))?;
    machine.release(fault)?;
    assert_eq!(machine.left_stopped()?, [""; 0]);
    for pid in session_members(app.pid())? {
        let queues = machine.queues(pid)?;
        assert!(queues.iter().all(|(_, runs)| *runs), "{pid}: {queues:?}");
    }
    Ok(())
}

fn goes_on(case: &Case, criu: &Criu, call: &str) -> Result<()> {
    let machine = Machine::start(&MachineSpec::gpus(2))?;
    let mut app = App::start(case, &["--bytes", "32768", "--children", "2"])?;
    let had = app.facts(&machine)?;
    kill_in(case, criu, &machine, &mut app, call)?;
    app.goes_on()?;

    // What is left of the dump that was killed is no hindrance.
    machine.ask("forget")?;
    let images = case.dir("images")?;
    criu.dump(case, "dump", app.pid(), &images, &Options::default())?;
    assert_eq!(guardians()?, 0);
    app.gone()?;
    let (pid, _) = criu.restore(case, "restore", &images, &Options::default())?;
    app.set_restored();
    assert_eq!(pid, app.pid());
    assert!(machine.resumed(pid)?, "its queues do not run");
    app.goes_on()?;
    let has = app.facts(&machine)?;
    assert_eq!(has.descriptors, had.descriptors);
    assert_eq!(has.mappings, had.mappings);
    assert_eq!(has.driver, had.driver);
    app.end()?;
    assert_eq!(machine.stop()?, [""; 0]);
    Ok(())
}

#[test]
fn in_the_checkpoint_of_a_process() -> Result<()> {
    each_criu(&case!()?, |case, criu| goes_on(case, criu, "CRIU_OP nth=2"))
}

#[test]
fn in_a_copy_of_contents() -> Result<()> {
    let criu = Criu::all()?.pop().ok_or("no CRIU")?;
    goes_on(&case!()?, &criu, "CS")
}
