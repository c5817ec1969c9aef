//! ROCm's own programs, which nobody here wrote.

use std::{process::Command, time::Duration};

use vramstream_tests::machine::MachineSpec;

use crate::support::{Machine, Result, case};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn rocminfo_lists_the_agents() -> Result<()> {
    let case = case!()?;
    let spec = MachineSpec { vram: 256 << 20, ..MachineSpec::gpus(2) };
    let machine = Machine::start(&spec)?;
    let said = case.ok("rocminfo", &mut Command::new("rocminfo"), LIMIT)?.stdout;
    println!("{said}");
    assert_eq!(machine.stop()?, [""; 0]);
    Ok(())
}
