//! Small random topologies, against trying every assignment there is.

use proptest::prelude::*;

use super::*;
use crate::topology::{Link, LinkKind, Properties};

/// A GPU: device id, firmware, hive, and links to CPUs with their kinds and whether they go back.
type Gpu = (u64, u64, u32, Vec<(u32, bool, bool)>);

const CPUS: u32 = 3;

fn gpus(count: usize) -> impl Strategy<Value = Vec<Gpu>> {
    let link = (0..CPUS, prop::bool::weighted(0.2), prop::bool::weighted(0.9));
    // One CPU mostly, sometimes none or two.
    let links = prop_oneof![
        6 => prop::collection::vec(link.clone(), 1),
        1 => prop::collection::vec(link, 0..=2),
    ];
    let gpu = (
        prop_oneof![8 => Just(1), 1 => Just(2u64)],
        prop_oneof![5 => Just(1), 1 => Just(2u64)],
        0..3u32,
        links,
    );
    prop::collection::vec(gpu, count)
}

fn machine(gpus: &[Gpu], first_id: u32) -> Topology {
    let kind = |xgmi: bool| if xgmi { LinkKind::Xgmi } else { LinkKind::Pcie };
    let number = |at: usize| CPUS + u32::try_from(at).unwrap();
    let mut nodes: Vec<_> = (0..CPUS)
        .map(|id| Node { id, gpu_id: 0, properties: Properties::default(), links: Vec::new() })
        .collect();
    for (at, (device, firmware, hive, links)) in gpus.iter().enumerate() {
        let properties = Properties::default()
            .with(Property::DeviceId, *device)
            .with(Property::FwVersion, *firmware);
        let peers = gpus
            .iter()
            .enumerate()
            .filter(|(other, gpu)| *other != at && *hive != 0 && gpu.2 == *hive);
        let mut own: Vec<_> =
            peers.map(|(other, _)| Link { kind: LinkKind::Xgmi, to: number(other) }).collect();
        for &(cpu, xgmi, back) in links {
            own.push(Link { kind: kind(xgmi), to: cpu });
            if back {
                nodes[cpu as usize].links.push(Link { kind: kind(xgmi), to: number(at) });
            }
        }
        let gpu_id = first_id + u32::try_from(at).unwrap();
        nodes.push(Node { id: number(at), gpu_id, properties, links: own });
    }
    Topology::new(nodes, vec![]).unwrap()
}

/// What one link must be to stand for another, from the text of the rules.
fn stands_for(
    source: &Topology,
    destination: &Topology,
    s: (&Node, Link),
    d: (&Node, Link),
) -> bool {
    let back = |topology: &Topology, (from, link): (&Node, Link)| {
        let end = topology.node(link.to).unwrap();
        end.links.iter().any(|other| other.to == from.id && other.kind == link.kind)
    };
    let downgrade = s.1.kind == LinkKind::Xgmi && d.1.kind == LinkKind::Pcie;
    !downgrade && (!back(source, s) || back(destination, d))
}

/// Whether an assignment keeps all rules, for some map of CPUs.
fn is_valid(source: &Topology, destination: &Topology, to: &[usize], numa: bool) -> bool {
    let there: Vec<_> = source.gpus().collect();
    let here: Vec<_> = destination.gpus().collect();
    let pairs = || there.iter().zip(to).map(|(&gpu, &place)| (gpu, here[place]));
    let alone = pairs().all(|(s, d)| {
        s.get(Property::DeviceId) == d.get(Property::DeviceId)
            && s.get(Property::FwVersion) <= d.get(Property::FwVersion)
            && s.links.len() <= d.links.len()
    });
    let hive = |topology: &Topology, gpu: &Node| {
        let hives = topology.hives();
        hives.iter().position(|hive| hive.iter().any(|member| member.id == gpu.id))
    };
    let hives = pairs().all(|(s, d)| {
        let Some(own) = hive(source, s) else { return true };
        let Some(other) = hive(destination, d) else { return false };
        pairs().all(|(s, d)| match hive(source, s) {
            None => true,
            Some(hive_of_s) => (hive_of_s == own) == (hive(destination, d) == Some(other)),
        })
    });
    let to_cpu = |link: &&Link| link.to < CPUS;
    let linked = |map: Option<[u32; 3]>| {
        pairs().all(|(s, d)| {
            s.links.iter().filter(to_cpu).all(|&link| {
                d.links.iter().filter(to_cpu).any(|&other| {
                    map.is_none_or(|map| map[link.to as usize] == other.to)
                        && stands_for(source, destination, (s, link), (d, other))
                })
            })
        })
    };
    let maps = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let cpus = if numa { maps.into_iter().any(|map| linked(Some(map))) } else { linked(None) };
    alone && hives && cpus
}

/// Every way to give each of `count` a place of its own.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let shorter = permutations(count - 1);
    let longer = shorter.iter().flat_map(|to| {
        (0..count).map(move |at| {
            let mut to = to.clone();
            to.insert(at, count - 1);
            to
        })
    });
    longer.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_plan_is_found_exactly_where_there_is_one(
        (source, destination) in (1..=5usize).prop_flat_map(|n| (gpus(n), gpus(n))),
        numa in any::<bool>(),
        same in any::<bool>(),
        order in any::<u64>(),
    ) {
        let there = machine(&source, 100);
        // Unrelated machines seldom fit; half of the time it is the same one, moved.
        let mut gpus = destination;
        if same {
            let firmware: Vec<_> = gpus.iter().map(|gpu| gpu.1).collect();
            gpus = source.clone();
            let count = gpus.len();
            gpus.rotate_left(usize::try_from(order % count as u64).unwrap());
            if order & 1 << 40 != 0 {
                gpus.reverse();
            }
            for (gpu, firmware) in gpus.iter_mut().zip(firmware) {
                gpu.1 = gpu.1.max(firmware);
                for link in &mut gpu.3 {
                    link.0 = (link.0 + 1) % CPUS;
                }
            }
            if order & 1 << 41 != 0 && count > 1 {
                gpus[0].3 = gpus[1].3.clone();
            }
        }
        let here = machine(&gpus, 200);
        let checks = Checks::default();
        let checks = if numa { checks } else { checks.without(Variable::Numa) };
        let valid = |to: &Vec<usize>| is_valid(&there, &here, to, numa);
        let exists = permutations(gpus.len()).iter().any(valid);
        match plan(&there, &here, checks) {
            Ok(found) => prop_assert!(valid(&places(&found, &here)), "{found:?}"),
            Err(PlanError::Refused(refusal)) => {
                prop_assert!(!exists, "{refusal}");
                prop_assert!(!refusal.reasons.is_empty());
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
        prop_assert_eq!(plan(&there, &here, checks).is_ok(), exists);
    }
}
