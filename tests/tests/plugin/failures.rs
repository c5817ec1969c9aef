use std::collections::BTreeMap;

use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{App, Criu, Flavour, assert_runs, assert_same},
};

use super::{MIXED, Result, scene};

const EIO: i32 = 5;

/// How often each call comes between two counts.
fn since(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let times = |name: &String| before.get(name).copied().unwrap_or(0);
    let calls = after.iter().map(|(name, n)| (name.clone(), n - times(name)));
    calls.filter(|(_, n)| *n > 0).collect()
}

/// Files of contents, and files that are not finished.
fn contents(criu: &Criu) -> std::io::Result<Vec<String>> {
    let mut names = criu.plugin_images()?;
    names.retain(|name| name.contains("pages") || name.contains("unfinished"));
    Ok(names)
}

/// Calls that give something back, the last time: their failure is no failure of the dump.
const GIVE_BACK: [&str; 3] = ["GEM_CLOSE", "GEM_VA", "CTX"];

#[test]
fn whichever_call_fails_in_a_dump_it_is_named_and_the_process_goes_on() -> Result {
    let (machine, app, criu) = scene(&MachineSpec::gpus(2), MIXED, Flavour::Criu42)?;
    let before = machine.calls()?;
    criu.dump(&machine, &[app.process()])?.assert_good();
    let calls = since(&before, &machine.calls()?);
    assert!(calls.contains_key("CRIU_OP") && calls.contains_key("CS"), "{calls:?}");
    let mut failed = 0;
    for (name, times) in calls {
        // The last CRIU_OP starts the queues again: below.
        let places = if name == "CRIU_OP" { vec![1, 2] } else { vec![1, times] };
        for nth in places {
            let criu = Criu::new(Flavour::Criu42)?;
            let fault = machine.plan(&format!("{name} nth={nth} errno={EIO}"))?;
            let run = criu.dump(&machine, &[app.process()])?;
            assert_eq!(machine.release(fault)?, 1, "{name} {nth}");
            if run.status.success() {
                assert!(GIVE_BACK.contains(&name.as_str()), "{name} {nth}: {run:#?}");
            } else {
                let spelled = if name == "WAIT_CS" { "" } else { name.as_str() };
                run.assert_failed(&["/dev/", spelled, "EIO"]);
                assert_eq!(contents(&criu)?, [""; 0], "{name} {nth}");
                failed += 1;
            }
            assert_runs(&machine, app.pid())?;
            let mistakes = machine.ask("forget")?;
            // What could not be given back is left.
            if !GIVE_BACK.contains(&name.as_str()) {
                assert_eq!(mistakes, [""; 0], "{name} {nth}: {run:#?}");
            }
        }
    }
    assert!(failed > 10, "{failed}");
    Ok(())
}

#[test]
fn whichever_call_fails_in_a_restore_it_is_named() -> Result {
    let (here, app, criu) = scene(&MachineSpec::gpus(2), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let there = SimulatedMachine::start(&MachineSpec::gpus(2))?;
    let before = there.calls()?;
    criu.restore(&there)?.assert_good();
    let calls = since(&before, &there.calls()?);
    for (name, times) in calls {
        let places = if name == "CRIU_OP" { vec![1] } else { vec![1, times] };
        for nth in places {
            let fault = there.plan(&format!("{name} nth={nth} errno={EIO}"))?;
            let restored = criu.restore(&there)?;
            assert_eq!(there.release(fault)?, 1, "{name} {nth}");
            // CRIU does not fail for what happens after its tasks are there, and what maps is CRIU.
            if name == "mmap" && restored.said("error").join("").contains("Can't map") {
                assert!(restored.tasks.is_empty());
            } else if !restored.run.status.success() {
                restored.assert_failed(&["/dev/", "EIO"]);
                assert!(restored.tasks.is_empty());
            } else if !GIVE_BACK.contains(&name.as_str()) {
                assert!(!restored.messages(1).is_empty(), "{name} {nth}: {restored:#?}");
            }
        }
    }
    Ok(())
}

#[test]
fn queues_that_cannot_be_started_again_are_an_error_and_do_not_keep_others_stopped() -> Result {
    let (machine, one, criu) = scene(&MachineSpec::gpus(1), MIXED, Flavour::Criu42)?;
    let two = App::start(&machine, "--bo vram:0:4K")?;
    // Pause and checkpoint of both, then the first to be started.
    let fault = machine.plan(&format!("CRIU_OP nth=5 errno={EIO}"))?;
    let run = criu.dump(&machine, &[one.process(), two.process()])?;
    let hits = machine.release(fault)?;
    assert_eq!(hits, 1, "{run:#?}");
    assert!(run.messages(1).iter().any(|line| line.contains("EIO")), "{run:#?}");
    let stopped = machine.left_stopped()?;
    assert!(stopped.len() <= 1, "{stopped:?}");
    Ok(())
}

#[test]
fn a_dump_that_fails_elsewhere_starts_the_queues_again() -> Result {
    for flavour in Flavour::KNOWN {
        for after in [1, 2, 3] {
            let (machine, app, criu) = scene(&MachineSpec::gpus(2), MIXED, flavour)?;
            let criu = criu.with_options(&format!("--fail-after {after}"));
            let run = criu.dump(&machine, &[app.process()])?;
            assert!(!run.status.success());
            assert_eq!((run.blame(), run.messages(2)), (vec![], vec![]), "{run:#?}");
            assert_eq!(run.said("DUMP_DEVICES_LATE"), [""; 0]);
            assert_runs(&machine, app.pid())?;
        }
    }
    Ok(())
}

#[test]
fn who_is_not_the_tracer_is_told_so() -> Result {
    let (machine, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    let run = criu.with_options("--no-trace").dump(&machine, &[app.process()])?;
    run.assert_failed(&["/dev/kfd", "CRIU_OP", "EBADF"]);
    assert_runs(&machine, app.pid())
}

#[test]
fn a_failed_restore_leaves_no_task_and_asks_for_no_queue() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let there = SimulatedMachine::start(&MachineSpec::default())?;
    let restored = criu.with_options("--fail").restore(&there)?;
    assert!(!restored.run.status.success());
    assert_eq!(restored.blame(), [""; 0]);
    assert_eq!(restored.said("RESUME_DEVICES_LATE"), [""; 0]);
    assert_eq!(there.end()?, [""; 0]);
    Ok(())
}

/// CRIU goes on where RESUME fails: so it must be an error in the log.
#[test]
fn a_process_whose_queues_do_not_run_is_an_error() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    for errno in [EIO, 22, 1, 25] {
        let there = SimulatedMachine::start(&MachineSpec::default())?;
        // RESTORE, then RESUME.
        there.plan(&format!("CRIU_OP nth=2 errno={errno}"))?;
        let restored = criu.restore(&there)?;
        let errors = restored.messages(1);
        assert!(errors.iter().any(|line| line.contains("queues")), "{errno}: {restored:#?}");
        assert!(restored.results("RESUME_DEVICES_LATE")[0] < 0);
    }
    Ok(())
}

#[test]
fn a_busy_device_is_asked_again() -> Result {
    // EINTR and EAGAIN, a few times each.
    for (call, errno) in [("CS", 11), ("CS", 4), ("GEM_USERPTR", 16), ("open", 16), ("WAIT_CS", 4)]
    {
        let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
        let fault = here.plan(&format!("{call} times=5 errno={errno}"))?;
        let run = criu.dump(&here, &[app.process()])?;
        assert!(here.release(fault)? > 0, "{call}");
        run.assert_good();
        assert_runs(&here, app.pid())?;
        let restored = criu.restore(&here)?;
        restored.assert_good();
        assert_same((&here, app.pid()), (&here, restored.tasks[0].pid))?;
    }
    Ok(())
}
