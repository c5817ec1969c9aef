//! Links between nodes, and the XGMI hives that they make.

use super::{Node, Topology};

/// What a link is. Other kinds (between CPUs) say nothing about GPUs and are not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkKind {
    /// PCI Express.
    Pcie,
    /// XGMI.
    Xgmi,
}

impl LinkKind {
    /// The kind with a number of the kernel's, if it is one that we keep.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            2 => Some(LinkKind::Pcie),
            11 => Some(LinkKind::Xgmi),
            _ => None,
        }
    }

    /// The kernel's number.
    pub fn number(self) -> u32 {
        match self {
            LinkKind::Pcie => 2,
            LinkKind::Xgmi => 11,
        }
    }
}

/// A link of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// What it is.
    pub kind: LinkKind,
    /// The number of the node at its end.
    pub to: u32,
}

impl Topology {
    /// The links of a node that end at a node we know. A GPU that is hidden from us is still at the
    /// end of links of its neighbours; those count as no links.
    pub fn valid_links<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = (Link, &'a Node)> {
        node.links.iter().filter_map(|link| Some((*link, self.node(link.to)?)))
    }

    /// Whether there is a link of the same kind back.
    pub fn is_bidirectional(&self, from: &Node, link: Link) -> bool {
        let back = Link { kind: link.kind, to: from.id };
        self.node(link.to).is_some_and(|node| node.links.contains(&back))
    }

    /// The XGMI hives: GPUs that reach one another through XGMI links in both directions. CPUs are
    /// in no hive, also where they have such links. The hives, and the GPUs in each, are in the
    /// order of their nodes.
    pub fn hives(&self) -> Vec<Vec<&Node>> {
        let mut hives: Vec<Vec<&Node>> = Vec::new();
        for gpu in self.gpus() {
            if hives.iter().flatten().any(|known| known.id == gpu.id) {
                continue;
            }
            let mut hive = vec![gpu];
            let mut next = 0;
            while let Some(&member) = hive.get(next) {
                next += 1;
                for peer in self.hive_peers(member) {
                    if hive.iter().all(|known| known.id != peer.id) {
                        hive.push(peer);
                    }
                }
            }
            if hive.len() > 1 {
                hive.sort_by_key(|node| node.id);
                hives.push(hive);
            }
        }
        hives
    }

    fn hive_peers<'a>(&'a self, gpu: &'a Node) -> impl Iterator<Item = &'a Node> {
        self.valid_links(gpu).filter_map(|(link, peer)| {
            let xgmi = link.kind == LinkKind::Xgmi && peer.is_gpu() && peer.id != gpu.id;
            (xgmi && self.is_bidirectional(gpu, link)).then_some(peer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Properties;

    /// Number, GPU id and links of each node.
    type Nodes<'a> = &'a [(u32, u32, &'a [(LinkKind, u32)])];

    fn machine(nodes: Nodes) -> Topology {
        let node = |&(id, gpu_id, links): &(u32, u32, &[(LinkKind, u32)])| Node {
            id,
            gpu_id,
            properties: Properties::default(),
            links: links.iter().map(|&(kind, to)| Link { kind, to }).collect(),
        };
        Topology::new(nodes.iter().map(node).collect(), vec![]).unwrap()
    }

    fn hives(topology: &Topology) -> Vec<Vec<u32>> {
        let ids = |hive: Vec<&Node>| hive.iter().map(|node| node.id).collect();
        topology.hives().into_iter().map(ids).collect()
    }

    use LinkKind::{Pcie, Xgmi};

    #[test]
    fn a_hive_is_what_xgmi_joins_in_both_directions() {
        let topology = machine(&[
            (0, 0, &[(Xgmi, 1), (Xgmi, 5), (Pcie, 2)]),
            (1, 11, &[(Xgmi, 0), (Xgmi, 3)]),
            (2, 12, &[(Xgmi, 4), (Pcie, 0), (Pcie, 5)]),
            (3, 13, &[(Xgmi, 1), (Xgmi, 6)]),
            (4, 14, &[(Pcie, 2)]),
            (5, 15, &[(Xgmi, 0), (Pcie, 2)]),
            (6, 16, &[(Xgmi, 3), (Xgmi, 99)]),
        ]);
        // 1-3-6 is a chain. Nothing comes back from 4 to 2; 0 is a CPU with links to 1 and 5.
        assert_eq!(hives(&topology), [[1, 3, 6]]);
    }

    #[test]
    fn links_to_hidden_gpus_are_none() {
        let mut topology = machine(&[
            (0, 0, &[]),
            (1, 11, &[(Pcie, 0), (Xgmi, 2), (Xgmi, 7)]),
            (2, 12, &[(Pcie, 0), (Xgmi, 1)]),
        ]);
        let count = |topology: &Topology| topology.valid_links(&topology.nodes()[1]).count();
        assert_eq!((count(&topology), hives(&topology).len()), (2, 1));
        topology.hide(12, "test");
        assert_eq!((count(&topology), hives(&topology).len()), (1, 0));
    }

    #[test]
    fn kinds_have_the_numbers_of_the_kernel() {
        for number in 0..20 {
            let kind = LinkKind::from_number(number);
            assert_eq!(kind.is_some(), number == 2 || number == 11);
            assert!(kind.is_none_or(|kind| kind.number() == number));
        }
    }
}
