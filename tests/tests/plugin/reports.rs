//! Rows of the collection of public reports, each by what must hold.

use std::fs;

use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{App, Criu, Flavour, Process, assert_restored, assert_runs, assert_same},
};

use super::{MIXED, Result, scene};

/// criu#2723: a container sees one GPU of eight.
#[test]
fn a_process_that_sees_fewer_gpus_than_sysfs_shows() -> Result {
    let spec = MachineSpec { cpu_nodes: 2, ..MachineSpec::gpus(8) };
    for seen in [vec![5], vec![1, 6]] {
        let here = SimulatedMachine::start(&spec)?;
        let hidden: Vec<usize> = (0..8).filter(|gpu| !seen.contains(gpu)).collect();
        let uses: Vec<String> = seen.iter().map(ToString::to_string).collect();
        let bos: String = seen.iter().map(|gpu| format!("--bo vram:{gpu}:2M ")).collect();
        let options = format!("--uses {} {bos}", uses.join(","));
        let app = App::start_without(&here, &options, &hidden)?;
        here.fill(app.pid(), "random", 1)?;
        let criu = Criu::new(Flavour::Criu42)?;
        criu.dump(&here, &[app.process()])?.assert_good();
        assert_runs(&here, app.pid())?;
        let ids = spec.machine().gpu_ids();
        let pages: Vec<_> =
            criu.plugin_images()?.into_iter().filter(|name| name.contains("pages")).collect();
        let mut expected: Vec<_> =
            seen.iter().map(|&gpu| format!("amdgpu-pages-7-{:04x}.img", ids[gpu])).collect();
        expected.sort();
        assert_eq!(pages, expected);
    }
    Ok(())
}

/// criu#2723: of eight equal GPUs only one can be opened where the process is restored.
#[test]
fn a_restore_takes_the_gpu_whose_node_can_be_opened() -> Result {
    let spec = MachineSpec::gpus(8);
    let here = SimulatedMachine::start(&spec)?;
    let options = "--uses 2 --bo vram:2:2M --bo vram:2:64K:visible";
    let app = App::start_without(&here, options, &[0, 1, 3, 4, 5, 6, 7])?;
    here.fill(app.pid(), "random", 1)?;
    let criu = Criu::new(Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let there = SimulatedMachine::start(&MachineSpec { first_minor: 140, ..spec })?;
    for gpu in (0..8).filter(|&gpu| gpu != 6) {
        there.plan(&format!("open gpu={gpu} always errno=2"))?;
        there.ask(&format!("hide 0 {gpu}"))?;
    }
    let restored = criu.restore(&there)?;
    restored.assert_good();
    let task = &restored.tasks[0];
    assert!(task.vmas.iter().any(|vma| vma.contains("renderD146")), "{:?}", task.vmas);
    assert_same((&here, app.pid()), (&there, task.pid))
}

/// criu#2723: none can be opened.
#[test]
fn a_restore_without_any_node_names_each_before_any_ioctl() -> Result {
    let (here, app, criu) = scene(&MachineSpec::gpus(1), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let there = SimulatedMachine::start(&MachineSpec { first_minor: 140, ..MachineSpec::gpus(3) })?;
    for gpu in 0..3 {
        there.plan(&format!("open gpu={gpu} always errno=2"))?;
    }
    let restored = criu.restore(&there)?;
    assert!(!restored.status.success());
    let errors = restored.messages(1).join("\n");
    for minor in 140..143 {
        assert!(errors.contains(&format!("renderD{minor}")), "{errors}");
    }
    assert!(errors.contains("ENOENT"), "{errors}");
    assert!(!there.calls()?.contains_key("CRIU_OP"));
    Ok(())
}

/// criu#1895 and pull 2340: RESUME comes for every task, whether it has GPU state or not.
#[test]
fn tasks_without_gpu_state_are_no_error() -> Result {
    let (here, app, criu) = scene(&MachineSpec::gpus(1), MIXED, Flavour::Criu42)?;
    let sleepers: Vec<_> = (0..3)
        .map(|_| std::process::Command::new("sleep").arg("600").spawn())
        .collect::<std::io::Result<_>>()?;
    let plain: Vec<_> = sleepers
        .iter()
        .map(|sleeper| Process { pid: sleeper.id(), ..Process::default() })
        .collect();
    let all: Vec<&Process> = std::iter::once(app.process()).chain(&plain).collect();
    let run = criu.dump(&here, &all);
    let restored = criu.restore(&here);
    for mut sleeper in sleepers {
        sleeper.kill()?;
        sleeper.wait()?;
    }
    let (run, restored) = (run?, restored?);
    run.assert_good();
    restored.assert_good();
    assert_eq!((run.stderr.as_str(), restored.stderr.as_str()), ("", ""));
    assert_eq!(restored.said("RESUME_DEVICES_LATE").len(), 4);
    assert_same((&here, app.pid()), (&here, restored.tasks[0].pid))
}

/// criu#1895: no ioctl where the image holds no GPU state, whatever /dev/kfd answers.
#[test]
fn a_plain_tree_is_restored_without_an_ioctl() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::gpus(1))?;
    for errno in [22, 25, 1, 3] {
        machine.plan(&format!("CRIU_OP always errno={errno}"))?;
    }
    let mut sleeper = std::process::Command::new("sleep").arg("600").spawn()?;
    let process = Process { pid: sleeper.id(), ..Process::default() };
    // An old CRIU has no list of plugins, and says nothing of whom an image needs.
    for flavour in Flavour::KNOWN {
        let criu = Criu::new(flavour)?;
        criu.dump(&machine, &[&process])?.assert_good();
        let restored = criu.restore(&machine)?;
        restored.assert_good();
        assert_eq!(restored.stderr, "");
    }
    sleeper.kill()?;
    sleeper.wait()?;
    assert!(machine.calls()?.is_empty());
    Ok(())
}

/// criu#2248: staging is bounded by default, whatever the size of BOs. The kernel holds the limit.
#[test]
fn a_large_bo_goes_through_little_memory() -> Result {
    let spec = MachineSpec { vram: 512 << 20, ..MachineSpec::default() };
    let (here, app, _) = scene(&spec, "--bo vram:0:384M", Flavour::Criu42)?;
    for (cap, limit) in [(None, 128 << 20), (Some("8M"), 48 << 20)] {
        let criu = Criu::new(Flavour::Criu42)?.with_data(limit);
        let criu = match cap {
            Some(cap) => criu.with_env("KFD_MAX_BUFFER_SIZE", cap),
            None => criu,
        };
        criu.dump(&here, &[app.process()])?.assert_good();
        assert_restored(&criu, (&here, app.pid()), &spec)?;
    }
    Ok(())
}

/// An engine that hangs ends neither the process nor the wait of who checkpoints it.
#[test]
fn a_hung_engine_is_named_and_the_process_goes_on() -> Result {
    for how in ["engine-hangs", "fence-never-signals"] {
        let (here, app, criu) = scene(&MachineSpec::gpus(2), MIXED, Flavour::Criu42)?;
        let fault = here.plan(&format!("{how} gpu=0"))?;
        let run = criu.dump(&here, &[app.process()])?;
        here.release(fault)?;
        run.assert_failed(&["renderD128", "hangs"]);
        assert_runs(&here, app.pid())?;
        criu.dump(&here, &[app.process()])?.assert_good();

        let there = SimulatedMachine::start(&MachineSpec::gpus(2))?;
        there.plan(&format!("{how} gpu=0"))?;
        let restored = criu.restore(&there)?;
        restored.assert_failed(&["renderD128", "hangs"]);
        assert!(restored.tasks.is_empty());
    }
    Ok(())
}

/// criu#2248: the cap is the total.
#[test]
fn the_cap_is_for_all_gpus_together() -> Result {
    let spec = MachineSpec::gpus(8);
    let bos: String = (0..8).map(|gpu| format!("--bo vram:{gpu}:6M ")).collect();
    let (here, app, criu) = scene(&spec, &bos, Flavour::Criu42)?;
    // Fewer chunks than GPUs: they take turns.
    let criu = criu.with_env("KFD_MAX_BUFFER_SIZE", "32K");
    criu.dump(&here, &[app.process()])?.assert_good();
    assert_restored(&criu, (&here, app.pid()), &spec)
}

/// ROCm#1763: staging memory that cannot be registered at once.
#[test]
fn memory_that_cannot_be_registered_is_asked_for_again_and_then_named() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    for times in [1, 5] {
        let there = SimulatedMachine::start(&MachineSpec::default())?;
        there.plan(&format!("GEM_USERPTR times={times} errno=16"))?;
        let restored = criu.restore(&there)?;
        restored.assert_good();
        assert_same((&here, app.pid()), (&there, restored.tasks[0].pid))?;
    }
    for errno in [16, 12] {
        let there = SimulatedMachine::start(&MachineSpec::default())?;
        there.plan(&format!("GEM_USERPTR always errno={errno}"))?;
        let restored = criu.restore(&there)?;
        if restored.status.success() {
            // Another way to the memory was found.
            restored.assert_good();
        } else {
            restored.assert_failed(&["GEM_USERPTR"]);
        }
        drop(restored);
        assert_eq!(there.end()?, [""; 0]);
    }
    Ok(())
}

/// ROCm#1763: 99 % of VRAM is in use.
#[test]
fn a_gpu_whose_vram_is_full_is_dumped_and_restored() -> Result {
    let spec = MachineSpec { vram: 32 << 20, ..MachineSpec::default() };
    let (here, app, criu) = scene(&spec, "--bo vram:0:31M", Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    assert_restored(&criu, (&here, app.pid()), &spec)
}

/// A process that needs more GPUs than there are, or other ones: why not, before anything is done.
#[test]
fn what_cannot_be_restored_here_is_said_before_any_device_is_touched() -> Result {
    let (here, app, criu) = scene(&MachineSpec::gpus(2), MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let other = MachineSpec { profile: "gfx908".into(), ..MachineSpec::gpus(2) };
    let smaller = MachineSpec { vram: 16 << 20, ..MachineSpec::gpus(2) };
    for spec in [MachineSpec::gpus(1), other, smaller] {
        let there = SimulatedMachine::start(&spec)?;
        let restored = criu.restore(&there)?;
        restored.assert_failed(&["cannot be restored here"]);
        assert!(!there.calls()?.contains_key("CRIU_OP"));
    }
    Ok(())
}

/// Old versions of libhsakmt share memory under a name.
#[test]
fn shared_memory_of_libhsakmt_is_there_again() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    let mut bytes = vec![0x5a; 4096];
    bytes[..4].copy_from_slice(b"kmt!");
    fs::write(here.dir().join("shm/hsakmt_shared_mem"), &bytes)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let there = SimulatedMachine::start(&MachineSpec::default())?;
    let restored = criu.restore(&there)?;
    restored.assert_good();
    let made = fs::read(there.dir().join("shm/hsakmt_shared_mem"))?;
    assert_eq!((made.len(), &made[..4]), (4096, &b"kmt!"[..]));
    let semaphore = fs::read(there.dir().join("shm/sem.hsakmt_semaphore"))?;
    assert_eq!(semaphore[..4], 1_u32.to_le_bytes());
    Ok(())
}

/// A file of that name that is too short to be it.
#[test]
fn shared_memory_that_is_cut_is_named() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    fs::write(here.dir().join("shm/hsakmt_shared_mem"), b"k")?;
    let run = criu.dump(&here, &[app.process()])?;
    run.assert_failed(&["hsakmt_shared_mem"]);
    assert_runs(&here, app.pid())
}

/// Cards in partitions are many GPUs.
#[test]
fn thirty_two_gpus_with_links_between_all_of_them() -> Result {
    let spec = MachineSpec { cpu_nodes: 2, hives_of: 8, ..MachineSpec::gpus(32) };
    let options = "--uses 3,31 --bo vram:3:64K --bo vram:31:1M:visible";
    let (here, app, criu) = scene(&spec, options, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    assert_restored(&criu, (&here, app.pid()), &spec)
}
