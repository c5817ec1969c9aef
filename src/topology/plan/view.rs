//! A topology, prepared for comparison: GPUs, hives and CPUs by their place in an order, and links
//! with what must be asked of them.

use crate::topology::{LinkKind, Node, PlanError, Topology};

/// The most CPU nodes with GPUs: a set of them is a word of 64 bits.
pub(super) const MOST_CPUS: usize = 64;

/// A link from a GPU to a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuLink {
    /// The CPU's place in [`View::cpus`].
    pub(super) cpu: usize,
    kind: LinkKind,
    bidirectional: bool,
}

impl CpuLink {
    /// Whether `other` may stand for this one.
    pub(super) fn may_become(&self, other: &CpuLink) -> bool {
        let worse_kind = self.kind == LinkKind::Xgmi && other.kind == LinkKind::Pcie;
        !worse_kind && (other.bidirectional || !self.bidirectional)
    }
}

/// A GPU.
#[derive(Debug)]
pub(super) struct GpuView<'a> {
    pub(super) node: &'a Node,
    /// How many of its links end at nodes that are known.
    pub(super) valid_links: usize,
    pub(super) cpu_links: Vec<CpuLink>,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) topology: &'a Topology,
    /// In the order of their nodes.
    pub(super) gpus: Vec<GpuView<'a>>,
    /// The GPUs of each hive, by their places. Hives are in the order of their first GPUs.
    pub(super) hives: Vec<Vec<usize>>,
    /// The CPU nodes that GPUs are linked to, in the order of the first such GPU.
    pub(super) cpus: Vec<u32>,
}

impl<'a> View<'a> {
    pub(super) fn new(topology: &'a Topology) -> Result<Self, PlanError> {
        let mut view = View { topology, gpus: Vec::new(), hives: Vec::new(), cpus: Vec::new() };
        for node in topology.gpus() {
            let mut cpu_links = Vec::new();
            for (link, end) in topology.valid_links(node) {
                if end.is_gpu() {
                    continue;
                }
                let known = view.cpus.iter().position(|&cpu| cpu == end.id);
                let cpu = known.unwrap_or(view.cpus.len());
                if known.is_none() {
                    view.cpus.push(end.id);
                }
                let bidirectional = topology.is_bidirectional(node, link);
                cpu_links.push(CpuLink { cpu, kind: link.kind, bidirectional });
            }
            let valid_links = topology.valid_links(node).count();
            view.gpus.push(GpuView { node, valid_links, cpu_links });
        }
        if view.cpus.len() > MOST_CPUS {
            return Err(PlanError::TooManyCpus { count: view.cpus.len(), most: MOST_CPUS });
        }
        let place = |node: &Node| view.gpus.iter().position(|gpu| gpu.node.id == node.id);
        let places = |hive: Vec<&Node>| hive.into_iter().filter_map(place).collect();
        view.hives = topology.hives().into_iter().map(places).collect();
        Ok(view)
    }

    /// The GPUs that are linked to a CPU, by their places.
    pub(super) fn gpus_of(&self, cpu: usize) -> impl Iterator<Item = usize> {
        let linked = move |gpu: &GpuView<'_>| gpu.cpu_links.iter().any(|link| link.cpu == cpu);
        (0..self.gpus.len()).filter(move |&gpu| linked(&self.gpus[gpu]))
    }
}
