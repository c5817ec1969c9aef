//! The files, compared with dumps of real machines.

use std::collections::BTreeMap;

use super::*;
use crate::device::sim::Profile;

fn read(file: &Path) -> Vec<(String, u64)> {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.ends_with('\n'));
    text.lines()
        .map(|line| {
            let (key, value) = line.split_once(' ').unwrap();
            (key.to_owned(), value.parse().unwrap())
        })
        .collect()
}

fn map(file: &Path) -> BTreeMap<String, u64> {
    read(file).into_iter().collect()
}

/// Eight MI210 in two hives on two sockets.
fn machine() -> Machine {
    Machine::new(&Profile::gfx90a(), 8).cpu_nodes(2).hives_of(4)
}

#[test]
fn whoever_asks_for_all_gets_all_caches_and_the_nodes_of_gpus_guarded() {
    let host = SimHost::new(machine()).unwrap();
    let files = host.topology_files();
    let of = |part: &str| files.iter().filter(|file| file.path.contains(part)).count();
    assert_eq!((of("nodes/2/caches/"), of("/gpu_id")), (217, 10));
    let guard = |path: &str| files.iter().find(|file| file.path == path).unwrap().guard;
    assert_eq!(guard("generation_id"), None);
    assert_eq!(guard("nodes/1/properties"), None);
    assert_eq!(guard("nodes/3/io_links/0/properties"), Some(129));
}

#[test]
fn links_are_those_of_two_sockets_with_a_hive_each() {
    let dir = tempfile::tempdir().unwrap();
    machine().write_sysfs(dir.path()).unwrap();
    let links = |node: usize, kind: &str| -> Vec<_> {
        let dir = dir.path().join(format!("nodes/{node}/{kind}"));
        let count = fs::read_dir(&dir).unwrap().count();
        let link = |n| map(&dir.join(format!("{n}/properties")));
        let all = (0..count).map(link);
        all.map(|link| {
            assert_eq!(link["node_from"], node as u64);
            (link["node_to"], link["type"], link["weight"], link["max_bandwidth"], link["flags"])
        })
        .collect()
    };
    let gpu = vec![
        (0, 2, 20, 32000, 1),
        (3, 11, 15, 50000, 1),
        (4, 11, 15, 50000, 1),
        (5, 11, 15, 50000, 1),
    ];
    assert_eq!(links(2, "io_links"), gpu);
    let through = [1, 6, 7, 8, 9]
        .map(|to| if to == 1 { (1, 2, 52, 32000, 1) } else { (to, 2, 72, 32000, 3) });
    assert_eq!(links(2, "p2p_links"), through);
    let cpu: Vec<_> =
        [(1, 1, 32, 0, 0)].into_iter().chain((2..6).map(|to| (to, 2, 20, 32000, 3))).collect();
    assert_eq!(links(0, "io_links"), cpu);
    assert_eq!(links(0, "p2p_links").len(), 4);
    let mask = map(&dir.path().join("nodes/2/io_links/1/properties"));
    assert_eq!(mask["recommended_sdma_engine_id_mask"], 28);
    let cpu = map(&dir.path().join("nodes/1/properties"));
    assert_eq!((cpu["cpu_cores_count"], cpu["simd_count"]), (64, 0));
    assert_eq!((cpu["io_links_count"], cpu["p2p_links_count"]), (5, 4));
    assert!(!cpu.contains_key("fw_version"));
    assert_eq!(read(&dir.path().join("nodes/1/properties")).last().unwrap().0, LAST_LINE);
}

#[test]
fn each_kernel_has_its_own_lines() {
    for (kernel, count) in
        [(KernelRelease::V6_1, 36), (KernelRelease::V6_12, 40), (KernelRelease::V7_2, 41)]
    {
        let dir = tempfile::tempdir().unwrap();
        Machine::new(&Profile::gfx942(), 2).kernel(kernel).write_sysfs(dir.path()).unwrap();
        let gpu = map(&dir.path().join("nodes/1/properties"));
        assert_eq!(gpu.len(), count, "{kernel:?}");
        assert_eq!(gpu.contains_key("num_xcc"), kernel > KernelRelease::V6_1);
        assert_eq!(gpu.contains_key("capability2"), kernel == KernelRelease::V7_2);
        let link = map(&dir.path().join("nodes/1/io_links/0/properties"));
        let mask = link.contains_key("recommended_sdma_engine_id_mask");
        assert_eq!(mask, kernel > KernelRelease::V6_1);
    }
}

#[test]
fn what_cannot_be_written_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = machine().write_sysfs(file.path()).unwrap_err();
    assert!(error.to_string().contains("generation_id: cannot write"), "{error}");
}
