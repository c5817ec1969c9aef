//! Which GPUs and CPUs a machine has and how they are linked, and which GPU of one machine can take
//! the place of which GPU of another.
//!
//! ```text
//!  /sys/class/kfd/kfd/topology ──► sysfs ──┐
//!                                          ├──► Topology ──► plan ──► gpu_id → gpu_id, or why not
//!  amdgpu-kfd-N.img (image module) ────────┘                   ▲
//!  KFD_*_CHECK ──────────────────────────► checks ─────────────┘
//! ```
//!
//! | file | what it is |
//! |---|---|
//! | here | [`Topology`]: nodes, links, hives, and what is hidden from us |
//! | `property` | what is known about a node: numbers with names |
//! | `sysfs` | reads the kernel's files |
//! | `checks` | what need not match: the `KFD_*_CHECK` variables |
//! | `plan` | finds the plan, or the reasons |
//! | `error` | what can be wrong with a topology |
//!
//! It reads files and nothing else: no device is opened, nothing needs root. It must not know where
//! a topology comes from or what is done with a plan; that a render node cannot be opened is told to
//! it ([`Topology::hide`]).

mod checks;
mod error;
mod links;
mod plan;
mod property;
mod sysfs;

pub use checks::{CheckError, Checks, Variable};
pub use error::TopologyError;
pub use links::{Link, LinkKind};
pub use plan::{
    Candidate, CpuNode, CpuPair, Difference, GpuPair, GpuRef, GpuVerdict, Hive, HiveVerdict, Need,
    Plan, PlanError, Reason, Refusal, plan,
};
pub use property::{Properties, Property};
pub use sysfs::DEFAULT_ROOT;

/// The most GPUs of a machine: as many as the kernel's own limit for a process.
pub const MOST_GPUS: usize = 64;
/// The most nodes of a machine, CPUs and hidden ones included.
pub const MOST_NODES: usize = 1024;
/// The most links of a node.
pub const MOST_LINKS: usize = 1024;

/// A node: a CPU with its memory, or a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// What the kernel, or in an image the process, calls the GPU; 0 is a CPU.
    pub gpu_id: u32,
    /// What it is. Of a CPU only the number of cores is kept, as in an image.
    pub properties: Properties,
    /// Where it is linked to, also to nodes that are not known here.
    pub links: Vec<Link>,
}

impl Node {
    /// Whether it is a GPU.
    pub fn is_gpu(&self) -> bool {
        self.gpu_id != 0
    }

    /// One of its properties.
    pub fn get(&self, property: Property) -> u64 {
        self.properties.get(property)
    }

    /// The number of its render node.
    pub fn render_minor(&self) -> u32 {
        self.properties.get_u32(Property::DrmRenderMinor)
    }
}

/// A node that is there and that we may not use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hidden {
    /// Its number.
    pub node: u32,
    /// What the kernel calls the GPU, if we could read it.
    pub gpu_id: Option<u32>,
    /// Why: the file that could not be read and the answer, or what [`Topology::hide`] was told.
    pub why: String,
}

/// What a machine has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    nodes: Vec<Node>,
    hidden: Vec<Hidden>,
}

impl Topology {
    /// A machine with these nodes, in whatever order.
    pub fn new(mut nodes: Vec<Node>, mut hidden: Vec<Hidden>) -> Result<Self, TopologyError> {
        let count = nodes.len() + hidden.len();
        if count > MOST_NODES {
            return Err(TopologyError::TooMany { what: "nodes", most: MOST_NODES });
        }
        if nodes.iter().any(|node| node.links.len() > MOST_LINKS) {
            return Err(TopologyError::TooMany { what: "links of a node", most: MOST_LINKS });
        }
        nodes.sort_by_key(|node| node.id);
        hidden.sort_by_key(|hidden| hidden.node);
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(TopologyError::TwoNodes { node: pair[0].id });
        }
        let mut ids: Vec<_> = nodes.iter().filter(|node| node.is_gpu()).collect();
        if ids.len() > MOST_GPUS {
            return Err(TopologyError::TooMany { what: "GPUs", most: MOST_GPUS });
        }
        ids.sort_by_key(|node| node.gpu_id);
        if let Some(pair) = ids.windows(2).find(|pair| pair[0].gpu_id == pair[1].gpu_id) {
            let nodes = (pair[0].id, pair[1].id);
            return Err(TopologyError::TwoGpus { gpu_id: pair[0].gpu_id, nodes });
        }
        Ok(Topology { nodes, hidden })
    }

    /// All nodes that we can use, by number.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes that we cannot use.
    pub fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    /// The node with a number.
    pub fn node(&self, id: u32) -> Option<&Node> {
        let at = self.nodes.binary_search_by_key(&id, |node| node.id).ok()?;
        self.nodes.get(at)
    }

    /// The GPUs, by number of their nodes.
    pub fn gpus(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.is_gpu())
    }

    /// The GPU with an id.
    pub fn gpu(&self, gpu_id: u32) -> Option<&Node> {
        self.gpus().find(|gpu| gpu.gpu_id == gpu_id)
    }

    /// The CPUs, by number.
    pub fn cpus(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.is_gpu())
    }

    /// Takes a GPU away that cannot be used after all; links to it are links to nothing then.
    pub fn hide(&mut self, gpu_id: u32, why: impl Into<String>) {
        let gone = self.nodes.extract_if(.., |node| node.is_gpu() && node.gpu_id == gpu_id);
        let gone: Vec<_> = gone.map(|node| node.id).collect();
        let why = why.into();
        self.hidden.extend(gone.into_iter().map(|node| Hidden {
            node,
            gpu_id: Some(gpu_id),
            why: why.clone(),
        }));
        self.hidden.sort_by_key(|hidden| hidden.node);
    }

    /// The same machine with only some of its GPUs: those that a process can see.
    #[must_use]
    pub fn only(&self, gpu_ids: &[u32]) -> Self {
        let mut seen = self.clone();
        let others: Vec<_> = self.gpus().map(|gpu| gpu.gpu_id).collect();
        for gpu_id in others.into_iter().filter(|id| !gpu_ids.contains(id)) {
            seen.hide(gpu_id, "the process does not see this GPU");
        }
        seen
    }

    /// The same machine as a process knows it that calls its GPUs otherwise than the kernel does,
    /// because it was restored before. `None` from `name` leaves the id.
    pub fn renamed(&self, name: impl Fn(u32) -> Option<u32>) -> Result<Self, TopologyError> {
        let mut nodes = self.nodes.clone();
        for node in nodes.iter_mut().filter(|node| node.is_gpu()) {
            node.gpu_id = name(node.gpu_id).unwrap_or(node.gpu_id);
        }
        Topology::new(nodes, self.hidden.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u32, gpu_id: u32) -> Node {
        Node { id, gpu_id, properties: Properties::default(), links: Vec::new() }
    }

    #[test]
    fn nodes_are_found_by_number_and_gpus_by_id_whatever_their_order() {
        let topology = Topology::new(vec![node(9, 77), node(0, 0), node(4, 12)], vec![]).unwrap();
        assert_eq!(topology.node(9).map(|node| node.gpu_id), Some(77));
        assert_eq!(topology.node(5), None);
        assert_eq!(topology.gpu(12).map(|node| node.id), Some(4));
        assert_eq!(topology.gpu(0), None);
        assert_eq!(topology.gpus().map(|gpu| gpu.id).collect::<Vec<_>>(), [4, 9]);
        assert_eq!(topology.cpus().map(|cpu| cpu.id).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_machine_that_contradicts_itself_is_refused() {
        let refused = |nodes| Topology::new(nodes, vec![]).unwrap_err().to_string();
        assert_eq!(refused(vec![node(3, 0), node(3, 1)]), "there are two nodes 3");
        let message = refused(vec![node(3, 8), node(4, 8)]);
        assert_eq!(message, "nodes 3 and 4 are both GPU 0x0008");
        assert_eq!(refused((0..65).map(|n| node(n, n + 1)).collect()), "more than 64 GPUs");
        assert_eq!(refused((0..1025).map(|n| node(n, 0)).collect()), "more than 1024 nodes");
        let mut linked = node(0, 0);
        linked.links = vec![Link { kind: LinkKind::Pcie, to: 1 }; 1025];
        assert_eq!(refused(vec![linked]), "more than 1024 links of a node");
    }

    #[test]
    fn a_hidden_gpu_is_remembered_with_the_reason() {
        let mut topology = Topology::new(vec![node(0, 0), node(1, 5), node(2, 6)], vec![]).unwrap();
        topology.hide(5, "/dev/dri/renderD128: ENOENT");
        topology.hide(7, "nobody");
        assert_eq!(topology.nodes().len(), 2);
        let hidden = Hidden { node: 1, gpu_id: Some(5), why: "/dev/dri/renderD128: ENOENT".into() };
        assert_eq!(topology.hidden(), [hidden]);
        let only = topology.only(&[5]);
        assert_eq!((only.gpus().count(), only.hidden().len()), (0, 2));
    }

    #[test]
    fn a_process_may_know_gpus_by_other_ids() {
        let topology = Topology::new(vec![node(0, 0), node(1, 5), node(2, 6)], vec![]).unwrap();
        let renamed = topology.renamed(|id| (id == 5).then_some(900)).unwrap();
        assert_eq!(renamed.gpus().map(|gpu| gpu.gpu_id).collect::<Vec<_>>(), [900, 6]);
        assert!(topology.renamed(|_| Some(6)).is_err());
    }
}
