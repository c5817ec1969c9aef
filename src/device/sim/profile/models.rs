//! Models that are built in. gfx908, gfx90a and gfx942 are dumps of real machines; of gfx900 and
//! gfx906 some values are of their siblings.

use super::Profile;

/// The models, in the order of the columns below.
pub(super) const NAMES: [&str; 5] = ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx942"];

/// The lines of a node's `properties` that a model decides, in the order of the file.
const PROPERTIES: [(&str, [u64; 5]); 29] = [
    ("simd_count", [256, 240, 480, 416, 1216]),
    ("mem_banks_count", [1; 5]),
    ("caches_count", [97, 91, 217, 217, 626]),
    ("simd_id_base", [0x8000_1000, 0x8000_1000, 0x8000_1000, 0x8000_1000, 0x8000_1028]),
    ("max_waves_per_simd", [10, 10, 10, 8, 8]),
    ("lds_size_in_kb", [64; 5]),
    ("gds_size_in_kb", [0, 0, 0, 64, 0]),
    ("num_gws", [64; 5]),
    ("wave_front_size", [64; 5]),
    ("array_count", [4, 4, 8, 8, 32]),
    ("simd_arrays_per_engine", [1; 5]),
    ("cu_per_simd_array", [16, 16, 16, 14, 10]),
    ("simd_per_cu", [4; 5]),
    ("max_slots_scratch_cu", [32; 5]),
    ("gfx_target_version", [90000, 90006, 90008, 90010, 90402]),
    ("vendor_id", [4098; 5]),
    ("device_id", [26720, 26273, 29580, 29711, 29857]),
    ("num_sdma_engines", [2; 5]),
    ("num_sdma_xgmi_engines", [0, 0, 6, 3, 14]),
    ("num_sdma_queues_per_engine", [2, 8, 8, 8, 8]),
    ("num_cp_queues", [24; 5]),
    ("max_engine_clk_fcompute", [1500, 1725, 1502, 1700, 2100]),
    ("fw_version", [421, 435, 65, 92, 166]),
    ("capability", [238_208, 4_432_512, 749_970_048, 746_037_888, 746_037_888]),
    ("capability2", [0, 0, 0, 0, 1]),
    ("debug_prop", [32768, 32768, 1494, 470, 1511]),
    ("sdma_fw_version", [430, 145, 18, 9, 22]),
    ("num_xcc", [1, 1, 1, 1, 8]),
    ("max_engine_clk_ccompute", [3400, 2000, 2000, 2450, 2400]),
];

const KERNEL_NAMES: [&str; 5] = ["vega10", "vega20", "arcturus", "aldebaran", "ip discovery"];
const SDMA_VERSIONS: [(u32, u32); 5] = [(4, 0), (4, 2), (4, 2), (4, 4), (4, 4)];
const VRAM_BYTES: [u64; 5] =
    [17_163_091_968, 34_342_961_152, 34_342_961_152, 68_702_699_520, 206_141_652_992];
/// Width in bits and clock in MHz.
const MEMORY: [(u32, u32); 5] =
    [(2048, 945), (4096, 1000), (4096, 1200), (4096, 1600), (8192, 1300)];
/// MB/s to the CPU and to a GPU of the same hive.
const BANDWIDTH: [(u32, u32); 5] =
    [(16000, 16000), (32000, 50000), (32000, 50000), (32000, 50000), (64000, 64000)];

/// The model in a column.
pub(super) fn model(column: usize) -> Profile {
    let properties = PROPERTIES.iter().map(|&(key, values)| (key.to_owned(), values[column]));
    let mut profile = Profile {
        name: NAMES[column].into(),
        kernel_name: KERNEL_NAMES[column].into(),
        family: 141,
        sdma_version: SDMA_VERSIONS[column],
        vram_bytes: VRAM_BYTES[column],
        large_bar: true,
        memory_width: MEMORY[column].0,
        memory_clock: MEMORY[column].1,
        pcie_bandwidth: BANDWIDTH[column].0,
        xgmi_bandwidth: BANDWIDTH[column].1,
        sdma_engines: 0,
        device_id: 0,
        properties: properties.collect(),
    };
    profile.take_over();
    profile
}
