use std::{
    fs, io,
    process::{Child, Command, Stdio},
};

use vramstream_tests::{
    machine::{MachineSpec, SimulatedMachine},
    plugin::{Criu, Flavour, Process},
};

use super::Result;

/// A process that has nothing to do with GPUs.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> io::Result<Self> {
        Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().map(Sleeper)
    }

    fn process(&self) -> Process {
        Process { pid: self.0.id(), ..Process::default() }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Files and mappings of other devices: a container has some.
const FOREIGN: &str = "--foreign-file /dev/null --foreign-file /proc/self/status \
                       --foreign-file /etc --foreign-vma 10:229 --foreign-vma 1:3 --foreign-vma 195:0";

#[test]
fn without_an_amd_gpu_it_is_as_if_it_were_not_there() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::default())?;
    fs::remove_file(machine.dir().join("dev"))?;
    fs::remove_dir_all(machine.dir().join("topology"))?;
    let sleeper = Sleeper::start()?;
    for flavour in Flavour::KNOWN {
        let criu = Criu::new(flavour)?.log_level(4);
        // Not even a variable that nobody would understand matters.
        let criu = criu.with_env("KFD_MAX_BUFFER_SIZE", "lots");
        let criu = criu.with_options(&format!("{FOREIGN} --foreign-vma 226:128"));
        let run = criu.dump(&machine, &[&sleeper.process()])?;
        run.assert_good();
        assert_eq!((run.messages(4), run.stderr.as_str()), (vec![], ""));
        assert_eq!(run.said("inventory"), [""; 0]);
        let restored = criu.with_options("").restore(&machine)?;
        restored.assert_good();
        assert_eq!((restored.messages(4), restored.stderr.as_str()), (vec![], ""));
    }
    assert!(machine.calls()?.is_empty());
    Ok(())
}

#[test]
fn files_and_mappings_of_other_devices_are_somebody_elses() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::default())?;
    let sleeper = Sleeper::start()?;
    for flavour in Flavour::KNOWN {
        // Another device of the same major number is not /dev/kfd.
        let criu = Criu::new(flavour)?.log_level(4);
        let criu = criu.with_options(&format!("{FOREIGN} --foreign-vma 511:1 --foreign-vma 226:0"));
        let run = criu.dump(&machine, &[&sleeper.process()])?;
        run.assert_good();
        assert_eq!((run.messages(4), run.said("inventory")), (vec![], vec![]));
        let restored = criu.with_options("").restore(&machine)?;
        restored.assert_good();
        assert_eq!(restored.messages(4), [""; 0]);
        assert!(restored.results("RESUME_DEVICES_LATE").iter().all(|&ret| ret == -95));
    }
    assert!(machine.calls()?.is_empty());
    assert_eq!(machine.complaints()?, [""; 0]);
    Ok(())
}

/// CRIU would say that a plugin is missing which is there.
#[test]
fn an_image_with_gpu_state_on_a_machine_without_gpus() -> Result {
    let (here, app, mut criu) =
        super::scene(&MachineSpec::default(), super::MIXED, Flavour::Criu42)?;
    criu.dump(&here, &[app.process()])?.assert_good();
    let there = SimulatedMachine::start(&MachineSpec::default())?;
    fs::remove_file(there.dir().join("dev"))?;
    for flavour in [Flavour::Criu41, Flavour::Criu42, Flavour::Dev] {
        criu = criu.as_flavour(flavour);
        criu.restore(&there)?.assert_failed(&["GPU state", "/dev/kfd"]);
    }
    assert!(there.calls()?.is_empty());
    Ok(())
}

/// Inventories of CRIU 4.0 have no list of plugins: that is no reason to miss a GPU.
#[test]
fn an_image_of_an_older_criu_on_a_machine_without_gpus() -> Result {
    let machine = SimulatedMachine::start(&MachineSpec::default())?;
    fs::remove_file(machine.dir().join("dev"))?;
    let sleeper = Sleeper::start()?;
    let criu = Criu::new(Flavour::Criu40)?.log_level(4);
    criu.dump(&machine, &[&sleeper.process()])?.assert_good();
    let restored = criu.as_flavour(Flavour::Criu42).restore(&machine)?;
    restored.assert_good();
    assert_eq!((restored.messages(4), restored.stderr.as_str()), (vec![], ""));
    Ok(())
}

#[test]
fn another_plugin_beside_it_is_asked_for_what_is_its_own() -> Result {
    // Twice the same stands for the distribution's plugin beside ours: the first takes all.
    let machine = SimulatedMachine::start(&MachineSpec::default())?;
    let app = vramstream_tests::plugin::App::start(&machine, super::MIXED)?;
    machine.fill(app.pid(), "random", 1)?;
    let plugin = vramstream_tests::plugin::plugin()?;
    let criu = Criu::new(Flavour::Criu42)?.with_plugins(&[&plugin, &plugin]);
    criu.dump(&machine, &[app.process()])?.assert_good();
    Ok(())
}
