//! The topology of a machine as the files that the kernel shows.
//!
//! What the lines say comes from the profiles and the machine; which lines there are, from the
//! kernel's release. Links are those of a server: each GPU has PCIe to the CPU node it is connected
//! to and XGMI to the others of its hive; what it reaches through a CPU is in `p2p_links`.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use super::{GpuSpec, KernelRelease, Machine, SimHost};

/// A file of the topology that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot write the simulated topology: {source}", file.display())]
pub struct SysfsError {
    /// The file or directory.
    pub file: PathBuf,
    /// Why.
    pub source: std::io::Error,
}

/// All lines of a node's `properties`, in the order of the file.
const LINES: [&str; 38] = [
    "cpu_cores_count",
    "simd_count",
    "mem_banks_count",
    "caches_count",
    "io_links_count",
    "p2p_links_count",
    "cpu_core_id_base",
    "simd_id_base",
    "max_waves_per_simd",
    "lds_size_in_kb",
    "gds_size_in_kb",
    "num_gws",
    "wave_front_size",
    "array_count",
    "simd_arrays_per_engine",
    "cu_per_simd_array",
    "simd_per_cu",
    "max_slots_scratch_cu",
    "gfx_target_version",
    "vendor_id",
    "device_id",
    "location_id",
    "domain",
    "drm_render_minor",
    "hive_id",
    "num_sdma_engines",
    "num_sdma_xgmi_engines",
    "num_sdma_queues_per_engine",
    "num_cp_queues",
    "cwsr_size",
    "ctl_stack_size",
    "max_engine_clk_fcompute",
    "local_mem_size",
    "fw_version",
    "capability",
    "capability2",
    "debug_prop",
    "sdma_fw_version",
];
/// And after those, which only GPUs have from `max_engine_clk_fcompute` on:
const LAST_GPU_LINES: [&str; 2] = ["unique_id", "num_xcc"];
const FIRST_GPU_LINE: &str = "max_engine_clk_fcompute";
/// The last line of every node.
const LAST_LINE: &str = "max_engine_clk_ccompute";

/// Whether a kernel has a line.
fn has_line(release: KernelRelease, key: &str) -> bool {
    let since = match key {
        "capability2" => KernelRelease::V7_2,
        "cwsr_size" | "ctl_stack_size" | "debug_prop" | "num_xcc" => KernelRelease::V6_12,
        "recommended_sdma_engine_id_mask" => KernelRelease::V6_12,
        _ => KernelRelease::V6_1,
    };
    release >= since
}

/// The cores of a CPU node, and their clock in MHz.
const CPU_CORES: u64 = 64;
const CPU_CLOCK: u64 = 2450;
/// The memory of a CPU node.
const CPU_MEMORY: u64 = 256 << 30;

/// So many caches of a node have files on disk. A GPU has hundreds; libhsakmt alone reads them, from
/// the kernel, and making their directories takes longer than all the rest.
const MOST_CACHES: usize = 16;

mod link {
    pub(super) const HYPER_TRANSPORT: u32 = 1;
    pub(super) const PCIE: u32 = 2;
    pub(super) const XGMI: u32 = 11;
}

/// A link between two nodes.
#[derive(Debug, Clone, Copy)]
struct Link {
    kind: u32,
    to: usize,
    weight: u32,
    /// MB/s: least, most.
    bandwidth: (u32, u32),
    engines: u32,
    flags: u32,
}

/// A file of the topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopologyFile {
    /// Below `/sys/class/kfd/kfd/topology`.
    pub path: String,
    pub text: String,
    /// The render node of the GPU that it is about, which its readers must be allowed to use.
    pub guard: Option<u32>,
}

impl SimHost {
    /// All that `/sys/class/kfd/kfd/topology` of this machine has.
    pub(super) fn topology_files(&self) -> Vec<TopologyFile> {
        Tree { machine: self.machine(), gpu_ids: self.gpu_ids() }.files(usize::MAX)
    }

    /// Writes into `dir` what `/sys/class/kfd/kfd/topology` of this machine has.
    pub fn write_sysfs(&self, dir: &Path) -> Result<(), SysfsError> {
        Tree { machine: self.machine(), gpu_ids: self.gpu_ids() }.write(dir)
    }
}

impl Machine {
    /// Writes into `dir` what `/sys/class/kfd/kfd/topology` of this machine has.
    pub fn write_sysfs(&self, dir: &Path) -> Result<(), SysfsError> {
        Tree { machine: self, gpu_ids: &self.gpu_ids() }.write(dir)
    }
}

struct Tree<'a> {
    machine: &'a Machine,
    gpu_ids: &'a [u32],
}

impl Tree<'_> {
    fn write(&self, dir: &Path) -> Result<(), SysfsError> {
        self.files(MOST_CACHES).iter().try_for_each(|file| put(&dir.join(&file.path), &file.text))
    }

    fn files(&self, most_caches: usize) -> Vec<TopologyFile> {
        let platform = "platform_oem 35498446626881\nplatform_id 0\nplatform_rev 1\n";
        let all = [("generation_id", "2\n"), ("system_properties", platform)];
        let of_all = all.map(|(path, text)| TopologyFile {
            path: path.to_owned(),
            text: text.to_owned(),
            guard: None,
        });
        let nodes = (0..self.cpus() + self.machine.gpus.len()).flat_map(|node| {
            let guard = self.gpu(node).map(|gpu| gpu.render_minor);
            let files = self.node(node, most_caches).into_iter();
            files.map(move |(path, text)| TopologyFile {
                path: format!("nodes/{node}/{path}"),
                text,
                guard,
            })
        });
        of_all.into_iter().chain(nodes).collect()
    }

    fn cpus(&self) -> usize {
        self.machine.cpu_nodes as usize
    }

    /// The GPU of a node; `None` for a CPU.
    fn gpu(&self, node: usize) -> Option<&GpuSpec> {
        self.machine.gpus.get(node.checked_sub(self.cpus())?)
    }

    /// The files of a node, by their paths in its directory.
    fn node(&self, node: usize, most_caches: usize) -> Vec<(String, String)> {
        let gpu = self.gpu(node);
        let id = node.checked_sub(self.cpus()).map_or(0, |gpu| self.gpu_ids[gpu]);
        let mut files = vec![
            ("gpu_id".to_owned(), format!("{id}\n")),
            ("name".to_owned(), format!("{}\n", gpu.map_or("", |g| &g.profile.kernel_name))),
            ("properties".to_owned(), self.properties(node)),
            ("mem_banks/0/properties".to_owned(), memory_bank(gpu)),
        ];
        for (kind, links) in
            [("io_links", self.io_links(node)), ("p2p_links", self.p2p_links(node))]
        {
            for (number, link) in links.iter().enumerate() {
                files.push((format!("{kind}/{number}/properties"), self.link(node, link)));
            }
        }
        let caches = self.value(node, "caches_count");
        for number in (0..caches).take(most_caches) {
            files.push((format!("caches/{number}/properties"), cache(number, caches)));
        }
        files
    }

    fn properties(&self, node: usize) -> String {
        let mut text = String::new();
        let gpu = self.gpu(node);
        let mut line = |key: &str| {
            if has_line(self.machine.kernel, key) {
                let _ = writeln!(text, "{key} {}", self.value(node, key));
            }
        };
        for key in LINES {
            if gpu.is_none() && key == FIRST_GPU_LINE {
                break;
            }
            line(key);
        }
        if let Some(gpu) = gpu {
            LAST_GPU_LINES.into_iter().for_each(&mut line);
            // What a profile from a file has and we do not know.
            let known = |key: &str| {
                LINES.contains(&key) || LAST_GPU_LINES.contains(&key) || key == LAST_LINE
            };
            let others = gpu.profile.properties.iter().map(|(key, _)| key.as_str());
            others.filter(|key| !known(key)).for_each(&mut line);
        }
        line(LAST_LINE);
        text
    }

    fn value(&self, node: usize, key: &str) -> u64 {
        let links = |links: Vec<Link>| links.len() as u64;
        match (self.gpu(node), key) {
            (_, "io_links_count") => links(self.io_links(node)),
            (_, "p2p_links_count") => links(self.p2p_links(node)),
            (_, "mem_banks_count") => 1,
            (None, "cpu_cores_count") => CPU_CORES,
            (None, "cpu_core_id_base") => node as u64 * CPU_CORES,
            (None, LAST_LINE) => CPU_CLOCK,
            (None, _) => 0,
            (Some(gpu), "location_id") => gpu.location_id.into(),
            (Some(gpu), "domain") => gpu.domain.into(),
            (Some(gpu), "drm_render_minor") => gpu.render_minor.into(),
            (Some(gpu), "hive_id") => gpu.hive_id,
            (Some(gpu), "cwsr_size") => gpu.profile.cwsr_size(),
            (Some(gpu), "ctl_stack_size") => gpu.profile.ctl_stack_size(),
            // The same GPU in another slot is another GPU here.
            (Some(gpu), "unique_id") => {
                0x1901_0000_0000_0000 | u64::from(gpu.domain) << 32 | u64::from(gpu.location_id)
            }
            (Some(gpu), key) => gpu.profile.property(key),
        }
    }

    /// Whether the hardware connects two nodes, and how.
    fn io_link(&self, from: usize, to: usize) -> Option<Link> {
        let mut link =
            Link { kind: link::PCIE, to, weight: 20, bandwidth: (0, 0), engines: 3, flags: 1 };
        match (self.gpu(from), self.gpu(to)) {
            _ if from == to => return None,
            (None, None) => {
                link =
                    Link { kind: link::HYPER_TRANSPORT, weight: 32, engines: 0, flags: 0, ..link };
            }
            (Some(gpu), None) if gpu.numa_node as usize == to => {
                link.bandwidth = (312, gpu.profile.pcie_bandwidth);
            }
            (None, Some(gpu)) if gpu.numa_node as usize == from => {
                link.bandwidth = (312, gpu.profile.pcie_bandwidth);
                link.engines = 0;
                link.flags = 3;
            }
            (Some(one), Some(two)) if one.hive_id != 0 && one.hive_id == two.hive_id => {
                let bandwidth = one.profile.xgmi_bandwidth;
                // The engines for XGMI come after the two for everything.
                let engines = ((1 << one.profile.sdma_xgmi_engines().min(30)) - 1) << 2;
                link = Link {
                    kind: link::XGMI,
                    weight: 15,
                    bandwidth: (bandwidth, bandwidth),
                    engines,
                    ..link
                };
            }
            _ => return None,
        }
        Some(link)
    }

    fn nodes(&self) -> impl Iterator<Item = usize> {
        0..self.cpus() + self.machine.gpus.len()
    }

    fn io_links(&self, node: usize) -> Vec<Link> {
        self.nodes().filter_map(|to| self.io_link(node, to)).collect()
    }

    /// What a GPU reaches, and by what a GPU is reached, through a CPU.
    fn p2p_links(&self, node: usize) -> Vec<Link> {
        let link = |to| {
            let (from, other) = (self.gpu(node), self.gpu(to));
            if from.is_none() && other.is_none() || node == to || self.io_link(node, to).is_some() {
                return None;
            }
            let gpus = from.is_some() && other.is_some();
            let (weight, flags) = if gpus { (72, 3) } else { (52, 1) };
            let pcie = |gpu: Option<&GpuSpec>| gpu.map_or(u32::MAX, |g| g.profile.pcie_bandwidth);
            let bandwidth = (312, pcie(from).min(pcie(other)));
            Some(Link { kind: link::PCIE, to, weight, bandwidth, engines: 3, flags })
        };
        self.nodes().filter_map(link).collect()
    }

    fn link(&self, from: usize, link: &Link) -> String {
        let lines = [
            ("type", link.kind as usize),
            ("version_major", 0),
            ("version_minor", 0),
            ("node_from", from),
            ("node_to", link.to),
            ("weight", link.weight as usize),
            ("min_latency", 0),
            ("max_latency", 0),
            ("min_bandwidth", link.bandwidth.0 as usize),
            ("max_bandwidth", link.bandwidth.1 as usize),
            ("recommended_transfer_size", 0),
            ("recommended_sdma_engine_id_mask", link.engines as usize),
            ("flags", link.flags as usize),
        ];
        let there = lines.iter().filter(|(key, _)| has_line(self.machine.kernel, key));
        there.map(|(key, value)| format!("{key} {value}\n")).collect()
    }
}

/// All of a GPU's VRAM is one bank: public if the CPU reaches it.
fn memory_bank(gpu: Option<&GpuSpec>) -> String {
    let (heap, size, width, clock) = match gpu {
        None => (0, CPU_MEMORY, 64, 3200),
        Some(gpu) => {
            let heap = if gpu.profile.large_bar { 1 } else { 2 };
            (heap, gpu.vram_bytes, gpu.profile.memory_width, gpu.profile.memory_clock)
        }
    };
    format!("heap_type {heap}\nsize_in_bytes {size}\nflags 0\nwidth {width}\nmem_clk_max {clock}\n")
}

/// A cache of a GPU: small ones of the compute units, and last the one that all share.
fn cache(number: u64, count: u64) -> String {
    let (level, size, line) = if number + 1 == count { (2, 8192, 128) } else { (1, 16, 64) };
    format!(
        "processor_id_low {}\nlevel {level}\nsize {size}\ncache_line_size {line}\n\
         cache_lines_per_tag 1\nassociation 16\nlatency 1\ntype 9\nsibling_map 1\n",
        0x8000_1000 + number,
    )
}

fn put(file: &Path, text: &str) -> Result<(), SysfsError> {
    let failed = |source| SysfsError { file: file.to_owned(), source };
    match fs::write(file, text) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // The first file of its directory.
            let dir = file.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(dir).map_err(failed)?;
            fs::write(file, text).map_err(failed)
        }
        answer => answer.map_err(failed),
    }
}

#[cfg(test)]
mod tests;
