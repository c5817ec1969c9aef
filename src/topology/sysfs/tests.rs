//! Trees of simulated machines, whole, hidden in parts, and damaged.

use std::fs;

use super::*;
use crate::device::sim::{KernelRelease, Machine, Profile, SimHost};

/// Two MI210 on a CPU node each, in one hive.
fn tree() -> (tempfile::TempDir, Vec<u32>) {
    let dir = tempfile::tempdir().unwrap();
    let host = SimHost::new(Machine::new(&Profile::gfx90a(), 2).cpu_nodes(2)).unwrap();
    host.write_sysfs(dir.path()).unwrap();
    (dir, host.gpu_ids().to_vec())
}

/// Reads the tree with the text of one of its files changed.
fn edited(file: &str, edit: impl Fn(String) -> String) -> Result<Topology, String> {
    let (dir, _) = tree();
    let path = dir.path().join("nodes").join(file);
    fs::write(&path, edit(fs::read_to_string(&path).unwrap())).unwrap();
    let root = dir.path().to_string_lossy().into_owned();
    Topology::from_sysfs(dir.path()).map_err(|error| error.to_string().replace(&root, ""))
}

fn replaced(file: &str, from: &str, to: &str) -> Result<Topology, String> {
    edited(file, |text| {
        assert!(text.contains(from), "{text}");
        text.replacen(from, to, 1)
    })
}

#[test]
fn a_machine_is_read_as_it_is() {
    let (dir, ids) = tree();
    let topology = Topology::from_sysfs(dir.path()).unwrap();
    assert!(topology.hidden().is_empty());
    let gpu_ids: Vec<_> = topology.nodes().iter().map(|node| node.gpu_id).collect();
    assert_eq!(gpu_ids, [0, 0, ids[0], ids[1]]);
    let cpu = &topology.nodes()[0];
    assert_eq!(cpu.properties, Properties::default().with(Property::CpuCoresCount, 64));
    // The link to the other CPU is of a kind that says nothing about GPUs.
    assert_eq!(cpu.links, [Link { kind: LinkKind::Pcie, to: 2 }]);
    let gpu = &topology.nodes()[3];
    let links = [(LinkKind::Pcie, 1), (LinkKind::Xgmi, 2)].map(|(kind, to)| Link { kind, to });
    assert_eq!(gpu.links, links);
    for (property, value) in [
        (Property::CpuCoresCount, 0),
        (Property::SimdCount, 416),
        (Property::CachesCount, 217),
        (Property::IoLinksCount, 2),
        (Property::NumGws, 64),
        (Property::VendorId, 4098),
        (Property::DeviceId, 29711),
        (Property::DrmRenderMinor, 129),
        (Property::HiveId, 0xaefe_0112_0000_0001),
        (Property::FwVersion, 92),
        (Property::Capability, 746_037_888),
        (Property::SdmaFwVersion, 9),
        (Property::VramPublic, 1),
        (Property::VramSize, 68_702_699_520),
    ] {
        assert_eq!(gpu.get(property), value, "{}", property.name());
    }
}

#[test]
fn every_kernel_and_model_is_understood() {
    for kernel in [KernelRelease::V6_1, KernelRelease::V6_12, KernelRelease::V7_2] {
        for name in ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx942"] {
            let dir = tempfile::tempdir().unwrap();
            let profile = Profile::named(name).unwrap();
            Machine::new(&profile, 3).kernel(kernel).write_sysfs(dir.path()).unwrap();
            let topology = Topology::from_sysfs(dir.path()).unwrap();
            assert_eq!(topology.gpus().count(), 3, "{kernel:?} {name}");
            let gpu = topology.gpus().next().unwrap();
            for property in Property::ALL {
                let expected = profile.property(property.name());
                assert!(expected == 0 || gpu.get(property) == expected, "{property:?}");
            }
        }
    }
}

#[test]
fn lines_come_in_any_order_with_others_among_them() {
    let expected = edited("3/properties", |text| text).unwrap();
    let turned = edited("3/properties", |text| {
        let lines: Vec<_> = text.lines().rev().collect();
        format!("\n  new_thing  0x5 and more\n\n{}\n", lines.join(" \n\t"))
    });
    assert_eq!(turned.unwrap(), expected);
    let cpu =
        edited("0/properties", |text| text.lines().rev().map(|line| format!("{line}\n")).collect());
    assert_eq!(cpu.unwrap(), expected);
}

#[test]
fn a_node_with_a_missing_file_is_hidden_and_links_to_it_are_none() {
    for (file, known) in [
        ("gpu_id", false),
        ("properties", true),
        ("mem_banks/0/properties", true),
        ("io_links/1/properties", true),
    ] {
        let (dir, ids) = tree();
        let missing = dir.path().join("nodes/3").join(file);
        fs::remove_file(&missing).unwrap();
        let topology = Topology::from_sysfs(dir.path()).unwrap();
        assert_eq!(topology.nodes().len(), 3, "{file}");
        let [hidden] = topology.hidden() else { panic!("{file}") };
        assert_eq!((hidden.node, hidden.gpu_id), (3, known.then_some(ids[1])), "{file}");
        assert!(hidden.why.starts_with(&missing.display().to_string()), "{}", hidden.why);
        let gpu = topology.gpus().next().unwrap();
        assert_eq!((gpu.links.len(), topology.valid_links(gpu).count()), (2, 1), "{file}");
        assert!(topology.hives().is_empty());
    }
    let (dir, _) = tree();
    fs::remove_dir_all(dir.path().join("nodes/2/mem_banks")).unwrap();
    assert_eq!(Topology::from_sysfs(dir.path()).unwrap().hidden().len(), 1);
}

#[test]
fn a_directory_of_links_may_be_missing() {
    let (dir, _) = tree();
    fs::remove_dir_all(dir.path().join("nodes/3/io_links")).unwrap();
    let topology = Topology::from_sysfs(dir.path()).unwrap();
    assert_eq!((topology.hidden().len(), topology.nodes()[3].links.len()), (0, 0));
}

#[test]
fn names_that_are_no_nodes_are_passed_over() {
    let (dir, _) = tree();
    let expected = Topology::from_sysfs(dir.path()).unwrap();
    for name in ["x", "-1", "03", "+3", "99999999999", "7x"] {
        fs::create_dir(dir.path().join("nodes").join(name)).unwrap();
    }
    fs::write(dir.path().join("nodes/50"), "").unwrap();
    assert_eq!(Topology::from_sysfs(dir.path()).unwrap(), expected);
}

#[test]
fn what_makes_no_sense_is_told_with_file_and_line() {
    for (file, from, to, message) in [
        ("3/properties", "simd_count 416", "simd_count x", ":2: simd_count \"x\" is not a number"),
        ("3/properties", "simd_count 416", "simd_count -1", ":2: simd_count \"-1\" is not a"),
        ("3/properties", "simd_count 416", "simd_count +1", ":2: simd_count \"+1\" is not a"),
        (
            "3/properties",
            "simd_count 416",
            "simd_count 4294967296",
            ":2: simd_count \"4294967296\" is not a number from 0 to 4294967295",
        ),
        ("3/properties", "simd_count 416", "simd_count", ":2: \"simd_count\" is not a name and a"),
        ("3/properties", "caches_count", "simd_count", ":4: simd_count is there twice"),
        ("3/properties", "device_id", "devise_id", ": there is no device_id"),
        ("3/properties", "drm_render_minor", "minor", ": there is no drm_render_minor"),
        ("3/gpu_id", "", "x", ":1: \"x"),
        ("0/gpu_id", "0", "", ":1: \"\" is not a GPU id"),
        ("3/mem_banks/0/properties", "heap_type 1", "heap_type 0", ""),
        ("3/mem_banks/0/properties", "size_in_bytes ", "size ", ": there is no size_in_bytes"),
        ("3/mem_banks/0/properties", "68702699520", "0", ": there is no VRAM"),
        ("3/io_links/0/properties", "node_to 1", "node_to -1", ":5: node_to \"-1\" is not"),
        ("3/io_links/1/properties", "type ", "kind ", ": there is no type"),
    ] {
        let error = replaced(file, from, to).unwrap_err();
        let expected = match message {
            "" => "/nodes/3/mem_banks: there is no memory bank with VRAM".to_owned(),
            _ => format!("/nodes/{file}{message}"),
        };
        assert!(error.starts_with(&expected), "{error}");
    }
    let error = replaced("2/gpu_id", "", "x").unwrap_err();
    assert!(error.contains("is not a GPU id"), "{error}");
    let (_, ids) = tree();
    let error = edited("2/gpu_id", |_| ids[1].to_string()).unwrap_err();
    assert!(error.starts_with("nodes 2 and 3 are both GPU 0x"), "{error}");
}

#[test]
fn sizes_and_counts_have_limits() {
    let error = edited("3/properties", |text| text + &"\n".repeat(64 << 10)).unwrap_err();
    assert!(error.starts_with("/nodes/3/properties: larger than 65536 bytes"), "{error}");
    let (dir, _) = tree();
    for bank in 1..=64 {
        fs::create_dir(dir.path().join(format!("nodes/3/mem_banks/{bank}"))).unwrap();
    }
    let error = Topology::from_sysfs(dir.path()).unwrap_err();
    assert_eq!(error.to_string(), "more than 64 memory banks of a GPU");
}

#[test]
fn a_directory_that_is_no_topology_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Topology::from_sysfs(dir.path()).unwrap_err().to_string();
    assert!(error.starts_with(&dir.path().join("nodes").display().to_string()), "{error}");
    assert!(error.contains("is the amdgpu driver loaded"), "{error}");
    // Not hidden: nobody can read it, and nobody meant it so.
    fs::create_dir_all(dir.path().join("nodes/0/gpu_id")).unwrap();
    let error = Topology::from_sysfs(dir.path()).unwrap_err().to_string();
    assert!(error.contains("nodes/0/gpu_id: cannot read"), "{error}");
}
