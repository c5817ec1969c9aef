//! ROCm's own programs, which nobody here wrote: `rocminfo`, and libhsakmt and ROCr below it.

use std::{collections::BTreeMap, process::Command, time::Duration};

use vramstream_tests::machine::MachineSpec;

use crate::support::{Machine, Result, case};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn rocminfo_lists_the_agents() -> Result<()> {
    let case = case!()?;
    let two = MachineSpec { vram: 256 << 20, ..MachineSpec::gpus(2) };
    let profile = "gfx906".into();
    let other = MachineSpec { profile, vram: 512 << 20, ..MachineSpec::gpus(3).elsewhere() };
    // What ROCr calls these models, by their numbers; how many compute units they have.
    let expected =
        [("two", two, "gfx90a", "0x740f", 104), ("other", other, "gfx906", "0x66a1", 60)];
    for (part, spec, model, chip, units) in expected {
        let machine = Machine::start(&spec)?;
        let said = case.ok(part, &mut Command::new("rocminfo"), LIMIT)?.stdout;
        assert_eq!(machine.stop()?, [""; 0]);

        let agents = agents(&said);
        let (cpus, gpus): (Vec<_>, Vec<_>) =
            agents.iter().partition(|agent| agent["Device Type"] == "CPU");
        assert_eq!((cpus.len(), gpus.len()), (spec.cpu_nodes as usize, spec.gpus as usize));
        for (gpu, node) in spec.machine().gpus.iter().zip(spec.cpu_nodes..) {
            let node = node.to_string();
            let agent = gpus.iter().find(|agent| agent["Node"] == node).ok_or(said.clone())?;
            let unique = 0x1901_0000_0000_0000 | u64::from(gpu.location_id);
            let pool = gpu.vram_bytes >> 10;
            let values = [
                ("Name", model.to_owned()),
                ("Uuid", format!("GPU-{unique:016x}")),
                ("Vendor Name", "AMD".to_owned()),
                ("BDFID", gpu.location_id.to_string()),
                ("Compute Unit", units.to_string()),
                ("SIMDs per CU", "4".to_owned()),
                ("Wavefront Size", "64(0x40)".to_owned()),
                // The first pool of a GPU is its VRAM.
                ("Size", format!("{pool}({pool:#x}) KB")),
            ];
            for (key, value) in values {
                assert_eq!(agent.get(key), Some(&value), "{part}: {key} of node {node}\n{said}");
            }
            assert!(agent["Chip ID"].ends_with(&format!("({chip})")), "{}", agent["Chip ID"]);
        }
    }
    Ok(())
}

/// The lines of each agent, the first of each name.
fn agents(said: &str) -> Vec<BTreeMap<String, String>> {
    let mut agents = Vec::new();
    for line in said.lines() {
        if line.starts_with("Agent ") {
            agents.push(BTreeMap::new());
        }
        let Some((key, value)) = line.trim().split_once(':') else { continue };
        if let Some(agent) = agents.last_mut() {
            agent.entry(key.to_owned()).or_insert_with(|| value.trim().to_owned());
        }
    }
    agents
}
