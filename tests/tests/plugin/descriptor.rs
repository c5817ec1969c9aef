use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{Criu, Flavour, Process},
};

use super::Result;

#[test]
fn every_criu_loads_it_and_finds_the_hooks_that_it_has() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::default())?;
    for flavour in Flavour::KNOWN {
        let run = Criu::new(flavour)?.with_options("").dump(&machine, &[])?;
        run.assert_good();
        let descriptor = format!("descriptor version=0x200 max_hooks={}", flavour.hooks());
        assert_eq!(run.said("descriptor"), [descriptor.as_str()]);
        let plugin = run.said("plugin")[0];
        let (name, hooks) = plugin.split_once(" hooks ").unwrap();
        assert_eq!(name, "plugin amdgpu_plugin");
        let hooks: Vec<usize> = hooks.split(',').map(|hook| hook.parse().unwrap()).collect();
        for needed in [2, 3, 7, 8, 9] {
            assert!(hooks.contains(&needed), "{flavour:?}: hook {needed} of {hooks:?}");
        }
        assert_eq!(hooks.contains(&14), flavour == Flavour::Dev, "{flavour:?}: {hooks:?}");
    }
    Ok(())
}

#[test]
fn a_criu_that_nobody_knows_is_refused_before_anything_is_touched() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::default())?;
    let run = Criu::new(Flavour::New)?.dump(&machine, &[])?;
    run.assert_failed(&["16 plugin hooks", env!("CARGO_PKG_VERSION"), "4.2"]);
    assert_eq!(run.said("init"), ["init 0 = -1"]);
    assert!(machine.calls()?.is_empty());
    Ok(())
}

#[test]
fn a_variable_that_is_not_understood_is_named_before_anything_is_frozen() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::default())?;
    let bad = ["2GB!", "1.5G", "-1", "99999999999G", "4M4", "", " 2G", "0x1000"];
    for value in bad {
        let criu = Criu::new(Flavour::Criu42)?.with_env("KFD_MAX_BUFFER_SIZE", value);
        let run = criu.dump(&machine, &[&Process::default()])?;
        run.assert_failed(&["KFD_MAX_BUFFER_SIZE", &format!("{value:?}")]);
        assert!(run.said("PAUSE_DEVICES").is_empty());
    }
    for value in ["0", "1k", "1K", "8K", "2m", "2M", "2g", "2G", "2GB", "2GiB", "8193", "12345"] {
        let criu = Criu::new(Flavour::Criu42)?.with_env("KFD_MAX_BUFFER_SIZE", value);
        let run = criu.dump(&machine, &[])?;
        if matches!(value, "1k" | "1K") {
            // Less than two pages.
            run.assert_failed(&["KFD_MAX_BUFFER_SIZE"]);
        } else {
            run.assert_good();
        }
    }
    Ok(())
}

#[test]
fn an_inventory_without_the_plugin_keeps_it_out_of_a_restore() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::default())?;
    for flavour in [Flavour::Criu41, Flavour::Criu42, Flavour::Dev] {
        let criu = Criu::new(flavour)?;
        criu.dump(&machine, &[])?.assert_good();
        let restored = criu.restore(&machine)?;
        restored.assert_good();
        assert_eq!(restored.messages(4), [""; 0]);
    }
    assert!(machine.calls()?.is_empty());
    Ok(())
}
