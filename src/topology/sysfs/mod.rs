//! The topology from the files that the kernel shows.
//!
//! ```text
//!  nodes/N/gpu_id                    0 for a CPU
//!         /properties                `name value` lines
//!         /mem_banks/M/properties    of a GPU: how much VRAM, and whether the CPU reaches all of it
//!         /io_links/M/properties     where it is linked to
//! ```
//!
//! In a container with a device cgroup the files of GPUs that are not its own are there and cannot
//! be read; a node of which any file cannot be read, or is missing, is [hidden](Hidden). What can be
//! read must make sense: lines in any order, names that we do not know with whatever values, and
//! for the others numbers that fit. There is a limit on every size and count.

mod file;

use std::path::{Path, PathBuf};

use self::file::{Failure, Lines, numbered, read, value};
use super::{
    Hidden, Link, LinkKind, MOST_LINKS, MOST_NODES, Node, Properties, Property, Topology,
    TopologyError,
};

/// Where the kernel shows it.
pub const DEFAULT_ROOT: &str = "/sys/class/kfd/kfd/topology";

/// Heap types of memory banks: VRAM that the CPU reaches, or not all of it.
const PUBLIC: u64 = 1;
const PRIVATE: u64 = 2;
/// The most memory banks of a node.
const MOST_BANKS: usize = 64;
/// What every GPU's `properties` has; one without is cut short.
const NEEDED: [Property; 4] =
    [Property::SimdCount, Property::VendorId, Property::DeviceId, Property::DrmRenderMinor];

impl Topology {
    /// Reads the topology below `root`: [`DEFAULT_ROOT`], or a copy of such a directory.
    pub fn from_sysfs(root: &Path) -> Result<Self, TopologyError> {
        let dir = root.join("nodes");
        let numbers = numbered(&dir, "nodes", MOST_NODES).map_err(|failure| match failure {
            Failure::Hidden { file, source } => TopologyError::NoTree { dir: file, source },
            Failure::Broken(error) => error,
        })?;
        let (mut nodes, mut hidden) = (Vec::new(), Vec::new());
        for id in numbers {
            let mut gpu_id = None;
            match node(&dir.join(id.to_string()), id, &mut gpu_id) {
                Ok(node) => nodes.push(node),
                Err(Failure::Broken(error)) => return Err(error),
                Err(Failure::Hidden { file, source }) => {
                    let why = format!("{}: {source}", file.display());
                    hidden.push(Hidden { node: id, gpu_id, why });
                }
            }
        }
        Topology::new(nodes, hidden)
    }
}

/// Reads a node; `gpu_id` also where it turns out to be hidden.
fn node(dir: &Path, id: u32, known: &mut Option<u32>) -> Result<Node, Failure> {
    let gpu_id = gpu_id(dir.join("gpu_id"))?;
    *known = (gpu_id != 0).then_some(gpu_id);
    let file = dir.join("properties");
    let mut properties = Properties::default();
    let mut seen = Vec::new();
    for line in Lines::new(&file, &read(&file)?) {
        let (line, name, text) = line?;
        if let Some(property) = Property::from_line(name) {
            seen.push(property);
            properties.set(property, value(&file, line, name, text, property.most())?);
        }
    }
    let is_gpu = gpu_id != 0;
    if is_gpu {
        if let Some(missing) = NEEDED.into_iter().find(|needed| !seen.contains(needed)) {
            return Err(TopologyError::Missing { file, what: missing.name() }.into());
        }
        let (public, bytes) = memory(&dir.join("mem_banks"))?;
        properties.set(Property::VramPublic, public.into());
        properties.set(Property::VramSize, bytes);
    } else {
        let cores = properties.get(Property::CpuCoresCount);
        properties = Properties::default().with(Property::CpuCoresCount, cores);
    }
    Ok(Node { id, gpu_id, properties, links: links(&dir.join("io_links"))? })
}

fn gpu_id(file: PathBuf) -> Result<u32, Failure> {
    let text = read(&file)?;
    let text = text.trim();
    text.parse().map_err(|_| {
        let what = format!("{text:?} is not a GPU id");
        TopologyError::Line { file, line: 1, what }.into()
    })
}

/// The VRAM of a GPU: whether the CPU reaches all of it, and its size.
fn memory(dir: &Path) -> Result<(bool, u64), Failure> {
    for bank in numbered(dir, "memory banks of a GPU", MOST_BANKS)? {
        let file = dir.join(bank.to_string()).join("properties");
        let [heap, bytes] = two(&file, "heap_type", "size_in_bytes", u64::MAX)?;
        if heap == PUBLIC || heap == PRIVATE {
            if bytes == 0 {
                return Err(TopologyError::Missing { file, what: "VRAM" }.into());
            }
            return Ok((heap == PUBLIC, bytes));
        }
    }
    Err(TopologyError::Missing { file: dir.to_owned(), what: "memory bank with VRAM" }.into())
}

fn links(dir: &Path) -> Result<Vec<Link>, Failure> {
    // A copy of a topology may have lost its empty directories.
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let mut links = Vec::new();
    for link in numbered(dir, "links of a node", MOST_LINKS)? {
        let file = dir.join(link.to_string()).join("properties");
        let [kind, to] = two(&file, "type", "node_to", u32::MAX.into())?;
        let [kind, to] = [kind, to].map(|value| u32::try_from(value).unwrap_or(u32::MAX));
        links.extend(LinkKind::from_number(kind).map(|kind| Link { kind, to }));
    }
    Ok(links)
}

/// Two values of a file, both of which must be there.
fn two(file: &Path, one: &'static str, two: &'static str, most: u64) -> Result<[u64; 2], Failure> {
    let text = read(file)?;
    let mut found = [None; 2];
    for line in Lines::new(file, &text) {
        let (line, name, text) = line?;
        if let Some(at) = [one, two].iter().position(|&wanted| wanted == name) {
            found[at] = Some(value(file, line, name, text, most)?);
        }
    }
    let missing = |what| TopologyError::Missing { file: file.to_owned(), what };
    Ok([found[0].ok_or_else(|| missing(one))?, found[1].ok_or_else(|| missing(two))?])
}

#[cfg(test)]
mod tests;
