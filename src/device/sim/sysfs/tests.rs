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
fn a_gpu_node_says_what_a_real_one_says() {
    let dir = tempfile::tempdir().unwrap();
    let host = SimHost::new(machine()).unwrap();
    host.write_sysfs(dir.path()).unwrap();
    let gpu = read(&dir.path().join("nodes/2/properties"));
    let expected = [
        ("cpu_cores_count", 0),
        ("simd_count", 416),
        ("mem_banks_count", 1),
        ("caches_count", 217),
        ("io_links_count", 4),
        ("p2p_links_count", 5),
        ("cpu_core_id_base", 0),
        ("simd_id_base", 2_147_487_744),
        ("max_waves_per_simd", 8),
        ("lds_size_in_kb", 64),
        ("gds_size_in_kb", 64),
        ("num_gws", 64),
        ("wave_front_size", 64),
        ("array_count", 8),
        ("simd_arrays_per_engine", 1),
        ("cu_per_simd_array", 14),
        ("simd_per_cu", 4),
        ("max_slots_scratch_cu", 32),
        ("gfx_target_version", 90010),
        ("vendor_id", 4098),
        ("device_id", 29711),
        ("location_id", 768),
        ("domain", 0),
        ("drm_render_minor", 128),
        ("hive_id", 0xaefe_0112_0000_0001),
        ("num_sdma_engines", 2),
        ("num_sdma_xgmi_engines", 3),
        ("num_sdma_queues_per_engine", 8),
        ("num_cp_queues", 24),
        ("cwsr_size", host.machine().gpus[0].profile.cwsr_size()),
        ("ctl_stack_size", host.machine().gpus[0].profile.ctl_stack_size()),
        ("max_engine_clk_fcompute", 1700),
        ("local_mem_size", 0),
        ("fw_version", 92),
        ("capability", 746_037_888),
        ("debug_prop", 470),
        ("sdma_fw_version", 9),
        ("unique_id", 0x1901_0000_0000_0300),
        ("num_xcc", 1),
        ("max_engine_clk_ccompute", 2450),
    ];
    assert_eq!(gpu, expected.map(|(key, value)| (key.to_owned(), value)));
    let read = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap();
    assert_eq!(read("nodes/2/name"), "aldebaran\n");
    assert_eq!(read("nodes/2/gpu_id"), format!("{}\n", host.gpu_ids()[0]));
    assert_eq!((read("nodes/0/name"), read("nodes/0/gpu_id")), ("\n".into(), "0\n".into()));
    let bank = map(&dir.path().join("nodes/2/mem_banks/0/properties"));
    assert_eq!((bank["heap_type"], bank["size_in_bytes"]), (1, 68_702_699_520));
    assert_eq!(fs::read_dir(dir.path().join("nodes/2/caches")).unwrap().count(), MOST_CACHES);
    assert_eq!(fs::read_dir(dir.path().join("nodes")).unwrap().count(), 10);
    assert_eq!(read("generation_id"), "2\n");
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
