use vramstream::image::RenderNode;
use vramstream_tests::{
    machine::{Kernel, MachineSpec, SimulatedMachine},
    plugin::{App, Criu, Flavour, assert_restored, assert_runs, assert_same},
};

use super::{MIXED, Result, scene};

/// Memory on every GPU.
fn on_each(gpus: u32) -> String {
    let one = |gpu: u32| {
        format!(
            "--bo vram:{gpu}:2M --bo vram:{gpu}:{}K --bo gtt:{gpu}:128K --bo vram:{gpu}:4K:visible:all ",
            (gpu + 1) * 4
        )
    };
    (0..gpus).map(one).collect()
}

/// Dumps on one machine, restores on another, and all is what it was.
fn goes(from: &MachineSpec, to: &MachineSpec, app: &str, flavour: Flavour) -> Result {
    let (here, app, criu) = scene(from, app, flavour)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    assert_runs(&here, app.pid())?;
    let there = SimulatedMachine::start(to)?;
    let restored = criu.restore(&there)?;
    restored.assert_good();
    let task = &restored.tasks[0];
    assert_same((&here, app.pid()), (&there, task.pid))?;
    assert_eq!(there.left_stopped()?, [""; 0]);
    // What the CPU sees of its mappings is what the GPU sees.
    let bos = there.bos(task.pid)?;
    for (address, crc) in &task.seen {
        let bo = bos.iter().find(|bo| bo.va == *address).unwrap();
        assert!(bo.crc.is_none_or(|known| known == *crc), "mapping at {address:#x}");
    }
    assert_eq!(task.seen.len(), app.process().vmas.len());
    restored.end();
    assert_eq!(there.end()?, [""; 0]);
    assert!(app.end()?);
    assert_eq!(here.end()?, [""; 0]);
    Ok(())
}

#[test]
fn a_process_on_one_gpu_with_every_criu() -> Result {
    let spec = MachineSpec::default();
    Flavour::KNOWN.into_iter().try_for_each(|flavour| goes(&spec, &spec, MIXED, flavour))
}

#[test]
fn a_process_on_two_gpus() -> Result {
    let spec = MachineSpec::gpus(2);
    goes(&spec, &spec, &on_each(2), Flavour::Criu42)
}

#[test]
fn a_process_on_eight_gpus() -> Result {
    let spec = MachineSpec::gpus(8);
    goes(&spec, &spec, &on_each(8), Flavour::Criu42)
}

#[test]
fn to_a_machine_with_other_ids_minors_and_order() -> Result {
    let spec = MachineSpec::gpus(4);
    goes(&spec, &spec.clone().elsewhere(), &on_each(4), Flavour::Criu41)?;
    goes(&spec, &spec.clone().elsewhere(), &on_each(4), Flavour::Dev)
}

#[test]
fn to_a_machine_with_hives_and_cpus_in_another_arrangement() -> Result {
    let spec = MachineSpec { hives_of: 2, cpu_nodes: 2, ..MachineSpec::gpus(4) };
    let there = MachineSpec { order: vec![2, 3, 0, 1], ..spec.clone().elsewhere() };
    goes(&spec, &there, &on_each(4), Flavour::Criu42)
}

#[test]
fn under_every_kernel() -> Result {
    for kernel in [Kernel::V6_1, Kernel::V6_12, Kernel::V7_2] {
        let spec = MachineSpec { kernel, ..MachineSpec::gpus(2) };
        goes(&spec, &spec.clone().elsewhere(), &on_each(2), Flavour::Criu42)?;
    }
    Ok(())
}

#[test]
fn every_model_of_gpu() -> Result {
    for profile in ["gfx900", "gfx906", "gfx908", "gfx942"] {
        let spec = MachineSpec { profile: profile.into(), ..MachineSpec::gpus(2) };
        goes(&spec, &spec, &on_each(2), Flavour::Criu42)?;
    }
    Ok(())
}

#[test]
fn a_process_that_was_moved_moves_again() -> Result {
    let spec = MachineSpec::gpus(2);
    let (first, app, criu) = scene(&spec, &on_each(2), Flavour::Criu42)?;
    criu.dump(&first, &[app.process()])?.assert_good();
    let second = SimulatedMachine::start(&spec.clone().elsewhere())?;
    let moved = criu.restore(&second)?;
    moved.assert_good();
    let task = &moved.tasks[0];
    assert_same((&first, app.pid()), (&second, task.pid))?;

    // It has other contents by now, and the names that it knows are of GPUs that are not here.
    second.fill(task.pid, "random", 77)?;
    let again = Criu::new(Flavour::Criu41)?;
    again.dump(&second, &[&task.process])?.assert_good();
    assert_runs(&second, task.pid)?;
    // CRIU's own plugin goes by the names that the process has for its GPUs.
    let ids = spec.machine().gpu_ids();
    for name in again.plugin_images()?.iter().filter(|name| name.starts_with("amdgpu-renderD")) {
        let bytes = std::fs::read(again.images().join(name))?;
        let image = RenderNode::read(name, &mut bytes.as_slice()).unwrap();
        assert!(ids.contains(&image.gpu_id), "{name}: {:#x} of {ids:x?}", image.gpu_id);
    }
    let third = SimulatedMachine::start(&MachineSpec { first_bus: 0x83, ..spec.clone() })?;
    let moved_again = again.restore(&third)?;
    moved_again.assert_good();
    assert_same((&second, task.pid), (&third, moved_again.tasks[0].pid))?;
    // And a third time, back.
    let back = Criu::new(Flavour::Criu42)?;
    back.dump(&third, &[&moved_again.tasks[0].process])?.assert_good();
    let home = SimulatedMachine::start(&spec)?;
    let restored = back.restore(&home)?;
    restored.assert_good();
    assert_same((&third, moved_again.tasks[0].pid), (&home, restored.tasks[0].pid))
}

#[test]
fn two_processes_at_once() -> Result {
    let spec = MachineSpec::gpus(2);
    let (here, one, criu) = scene(&spec, &on_each(2), Flavour::Criu42)?;
    let two = App::start(&here, "--uses 1 --bo vram:1:5M --bo vram:1:4K:visible")?;
    here.fill(two.pid(), "random", 9)?;
    let run = criu.dump(&here, &[one.process(), two.process()])?;
    run.assert_good();
    assert_runs(&here, one.pid())?;
    assert_runs(&here, two.pid())?;
    let there = SimulatedMachine::start(&spec.elsewhere())?;
    let restored = criu.restore(&there)?;
    restored.assert_good();
    assert_same((&here, one.pid()), (&there, restored.tasks[0].pid))?;
    assert_same((&here, two.pid()), (&there, restored.tasks[1].pid))
}

#[test]
fn a_process_with_thousands_of_bos() -> Result {
    let bos: String = (0..3000).map(|n| format!("--bo vram:{}:4K ", n % 2)).collect();
    let spec = MachineSpec::gpus(2);
    goes(&spec, &spec.clone().elsewhere(), &bos, Flavour::Criu42)
}

#[test]
fn small_and_uneven_buffers_copy_the_same_bytes() -> Result {
    for cap in ["20000", "100001", "1M"] {
        let spec = MachineSpec::gpus(1);
        let (here, app, criu) = scene(&spec, &on_each(1), Flavour::Criu42)?;
        let criu = criu.with_env("KFD_MAX_BUFFER_SIZE", cap);
        criu.dump(&here, &[app.process()])?.assert_good();
        assert_restored(&criu, (&here, app.pid()), &spec)?;
    }
    Ok(())
}

#[test]
fn contents_of_every_kind() -> Result {
    for kind in ["random", "bf16", "zeros", "half", "offsets"] {
        let spec = MachineSpec::default();
        let (here, app, criu) = scene(&spec, "--bo vram:0:9M --bo gtt:0:4K", Flavour::Criu42)?;
        here.fill(app.pid(), kind, 3)?;
        criu.dump(&here, &[app.process()])?.assert_good();
        assert_restored(&criu, (&here, app.pid()), &spec)?;
    }
    Ok(())
}
