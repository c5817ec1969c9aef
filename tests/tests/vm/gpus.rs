//! The simulated host: its device files, in this kernel.

use std::{collections::BTreeSet, fs};

use vramstream_tests::machine::MachineSpec;

use crate::support::{Machine, Result, case};

#[test]
fn a_host_comes_and_goes_and_another_comes() -> Result<()> {
    let _case = case!()?;
    for spec in [MachineSpec::gpus(2), MachineSpec::gpus(2).elsewhere(), MachineSpec::gpus(8)] {
        let machine = Machine::start(&spec)?;
        let minors = (spec.first_minor..).take(spec.gpus as usize);
        let wanted: BTreeSet<_> = minors.map(|minor| format!("renderD{minor}")).collect();
        assert_eq!(names("/dev/dri")?, wanted);
        // A node for each processor as well.
        let nodes = names("/sys/class/kfd/kfd/topology/nodes")?.len();
        assert_eq!(nodes, (spec.gpus + spec.cpu_nodes) as usize);
        assert_eq!(machine.complaints()?, [""; 0]);
        assert_eq!(machine.stop()?, [""; 0]);
    }
    Ok(())
}

fn names(dir: &str) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(dir)?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}
