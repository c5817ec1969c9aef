use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{App, Criu, Flavour, Run, assert_runs, assert_same},
};

use super::{MIXED, Result, scene};

/// A dump and a restore on another machine: what the dump said.
fn moved(gpus: u32, options: &str, flavour: Flavour) -> std::io::Result<Run> {
    let spec = MachineSpec::gpus(gpus);
    let (here, app, criu) = scene(&spec, options, flavour)?;
    let run = criu.dump(&here, &[app.process()])?;
    run.assert_good();
    assert_runs(&here, app.pid())?;
    let there = SimulatedMachine::start(&spec.elsewhere())?;
    let restored = criu.restore(&there)?;
    restored.assert_good();
    assert_same((&here, app.pid()), (&there, restored.tasks[0].pid))?;
    Ok(run)
}

#[test]
fn render_nodes_come_before_kfd() -> Result {
    for flavour in Flavour::KNOWN {
        let options = format!("--renders-first {MIXED} --bo vram:1:64K:visible");
        moved(2, &options, flavour)?;
    }
    Ok(())
}

/// Whose a render node is that comes before its `/dev/kfd`, when others came before it.
#[test]
fn two_processes_whose_render_nodes_come_before_kfd() -> Result {
    let spec = MachineSpec::gpus(2);
    let options = format!("--renders-first {MIXED} --bo vram:1:64K:visible");
    let (here, one, criu) = scene(&spec, &options, Flavour::Criu42)?;
    let two = App::start(&here, "--renders-first --uses 1 --bo vram:1:2M --bo gtt:1:8K:visible")?;
    let last = App::start(&here, MIXED)?;
    here.fill(two.pid(), "random", 5)?;
    here.fill(last.pid(), "random", 6)?;
    let apps = [&one, &two, &last];
    criu.dump(&here, &apps.map(App::process))?.assert_good();
    let there = SimulatedMachine::start(&spec.elsewhere())?;
    let restored = criu.restore(&there)?;
    restored.assert_good();
    for (app, task) in apps.iter().zip(&restored.tasks) {
        assert_same((&here, app.pid()), (&there, task.pid))?;
    }
    Ok(())
}

#[test]
fn a_second_open_file_of_kfd() -> Result {
    for flavour in [Flavour::Criu41, Flavour::Dev] {
        moved(1, &format!("--more-kfds 2 {MIXED}"), flavour)?;
        moved(2, &format!("--more-kfds 1 --renders-first {MIXED}"), flavour)?;
    }
    Ok(())
}

#[test]
fn several_open_files_of_each_render_node() -> Result {
    moved(2, &format!("--more-renders 2 {MIXED}"), Flavour::Criu42).map(drop)
}

#[test]
fn fewer_render_files_than_gpus() -> Result {
    moved(4, "--uses 2 --bo vram:2:4M --bo vram:2:8K:visible", Flavour::Criu42).map(drop)
}

/// What a checkpointer sees that knows devices and no sockets.
#[test]
fn device_nodes_that_stand_for_the_files() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::default())?;
    let node = |name: &str| {
        let path = machine.dir().join(name);
        // The number of a device that anybody can open.
        mknod(&path, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 3)).map(|()| path)
    };
    let (kfd, render) = (node("kfd")?, node("renderD128")?);
    let options = format!("{MIXED} --stand-in {},{}", kfd.display(), render.display());
    let app = App::start(&machine, &options)?;
    machine.fill(app.pid(), "random", 1)?;
    let criu = Criu::new(Flavour::Criu42)?;
    criu.dump(&machine, &[app.process()])?.assert_good();
    assert_runs(&machine, app.pid())?;
    let restored = criu.restore(&machine)?;
    restored.assert_good();
    assert_same((&machine, app.pid()), (&machine, restored.tasks[0].pid))
}

#[test]
fn a_process_with_kfd_alone_is_in_the_inventory() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::gpus(2))?;
    let app = App::start(&machine, "--only-kfd")?;
    for flavour in Flavour::KNOWN {
        let criu = Criu::new(flavour)?;
        let run = criu.dump(&machine, &[app.process()])?;
        run.assert_good();
        assert_eq!(!run.said("inventory").is_empty(), flavour.has_inventory());
        assert_runs(&machine, app.pid())?;
        let there = SimulatedMachine::start(&MachineSpec::gpus(2))?;
        let restored = criu.restore(&there)?;
        restored.assert_good();
        assert_eq!(there.left_stopped()?, [""; 0]);
    }
    Ok(())
}

#[test]
fn open_devices_without_any_memory() -> Result {
    for options in ["--idle", "--idle --renders-first", ""] {
        let machine = SimulatedMachine::start(&MachineSpec::gpus(2))?;
        let app = App::start(&machine, options)?;
        let criu = Criu::new(Flavour::Criu42)?;
        criu.dump(&machine, &[app.process()])?.assert_good();
        assert_runs(&machine, app.pid())?;
        let there = SimulatedMachine::start(&MachineSpec::gpus(2).elsewhere())?;
        let restored = criu.restore(&there)?;
        restored.assert_good();
        assert_eq!(there.left_stopped()?, [""; 0]);
    }
    Ok(())
}

#[test]
fn the_inventory_has_the_plugin_once_and_names_it_in_a_restore() -> Result {
    let (machine, app, criu) = scene(&MachineSpec::gpus(2), MIXED, Flavour::Criu42)?;
    let run = criu.dump(&machine, &[app.process()])?;
    run.assert_good();
    assert_eq!(run.said("inventory"), ["inventory amdgpu_plugin"]);
    // Without the plugin CRIU itself says what is missing.
    let bare = criu.with_plugins(&[]);
    let restored = bare.restore(&machine)?;
    assert!(!restored.run.status.success());
    let said = restored.said("error").join("\n");
    assert!(said.contains("Missing required plugin: amdgpu_plugin"), "{said}");
    Ok(())
}

/// Criu asks for mappings of one node in a run, and closes what it was given for the first of them.
#[test]
fn descriptors_of_mappings_do_not_leak() -> Result {
    let many: String =
        (0..12).map(|n| format!("--bo vram:{}:{}K:visible ", n % 2, n * 4 + 4)).collect();
    moved(2, &many, Flavour::Criu42)?;
    moved(2, &many, Flavour::Dev).map(drop)
}

/// Between two mappings of one node CRIU may have opened other files.
#[test]
fn mappings_of_a_node_with_other_files_in_between() -> Result {
    let bos: String = (1..6).map(|n| format!("--bo vram:0:{}K:visible ", n * 4)).collect();
    let (here, app, criu) = scene(&MachineSpec::default(), &bos, Flavour::Criu42)?;
    let mut process = app.process().clone();
    let start = |vma: &String| vma.split(':').nth(1).and_then(|at| at.parse::<u64>().ok());
    process.vmas.sort_by_key(start);
    let others: Vec<String> = process
        .vmas
        .iter()
        .step_by(2)
        .filter_map(start)
        .map(|at| format!("other:{}:4096:0", at + 1))
        .collect();
    process.vmas.extend(others);
    criu.dump(&here, &[&process])?.assert_good();
    let restored = criu.restore(&here)?;
    restored.assert_good();
    assert_same((&here, app.pid()), (&here, restored.tasks[0].pid))
}

/// Of the beginning of a BO, and of all of it once more at another address.
#[test]
fn mappings_of_parts_of_a_bo_are_translated() -> Result {
    let (here, app, criu) =
        scene(&MachineSpec::default(), "--bo vram:0:4K --bo vram:0:64K:visible", Flavour::Criu42)?;
    let mut process = app.process().clone();
    let vma = process.vmas.iter().find(|vma| vma.contains("renderD")).unwrap().clone();
    let words: Vec<&str> = vma.split(':').collect();
    let number = |n: usize| words[n].parse::<u64>().unwrap();
    let (path, address, offset) = (words[0], number(1), number(3));
    process.vmas = vec![
        format!("{path}:{address}:16384:{offset}"),
        format!("{path}:{}:65536:{offset}", address + (1 << 30)),
    ];
    criu.dump(&here, &[&process])?.assert_good();
    let there = SimulatedMachine::start(&MachineSpec::default().elsewhere())?;
    // The mmap space there is another: something else was first.
    let _first = App::start(&there, "--bo vram:0:1M")?;
    let restored = criu.restore(&there)?;
    restored.assert_good();
    let task = &restored.tasks[0];
    assert_same((&here, app.pid()), (&there, task.pid))?;
    assert_eq!(task.seen.len(), 2);
    let whole = there.bos(task.pid)?.iter().find(|bo| bo.va == address).and_then(|bo| bo.crc);
    assert_eq!(Some(task.seen[1].1), whole);
    assert_ne!(task.seen[0].1, task.seen[1].1);
    Ok(())
}

/// The kernel maps from the beginning of a BO alone; what was split off must not become something
/// else.
#[test]
fn a_mapping_of_the_end_of_a_bo_is_itself_or_fails() -> Result {
    let options = "--bo vram:0:4K --bo vram:0:64K:visible";
    let (here, app, criu) = scene(&MachineSpec::default(), options, Flavour::Criu42)?;
    let mut process = app.process().clone();
    let vma = process.vmas.iter().find(|vma| vma.contains("renderD")).unwrap().clone();
    let words: Vec<&str> = vma.split(':').collect();
    let number = |n: usize| words[n].parse::<u64>().unwrap();
    let (path, address, offset) = (words[0], number(1), number(3));
    process.vmas = vec![format!("{path}:{}:16384:{}", address + 32768, offset + 32768)];
    criu.dump(&here, &[&process])?.assert_good();
    let _first = App::start(&here, "--bo vram:0:1M")?;
    let restored = criu.restore(&here)?;
    assert_eq!(restored.results("UPDATE_VMA_MAP"), [1]);
    assert!(!restored.status.success());
    assert!(restored.said("error").join("").contains("Can't map"));
    Ok(())
}

/// CRIU goes on where the hook says that it failed; so it must not be able to.
#[test]
fn a_mapping_of_nothing_fails_the_restore() -> Result {
    let (here, app, criu) = scene(&MachineSpec::default(), MIXED, Flavour::Criu42)?;
    let mut process = app.process().clone();
    process.vmas.push("/dev/dri/renderD128:4096:4096:1099511627776".into());
    criu.dump(&here, &[&process])?.assert_good();
    let restored = criu.restore(&here)?;
    restored.assert_failed(&["mapping", "0x10000000000"]);
    Ok(())
}
