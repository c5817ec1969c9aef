//! Why there is no plan, in values and in words.

use super::*;

fn with(topology: &Topology, node: u32, property: Property, value: u64) -> Topology {
    changed(topology, |found| {
        if found.id == node {
            found.properties.set(property, value);
        }
    })
}

#[test]
fn each_variable_decides_about_its_own_property_and_no_other() {
    // Less, and more, than the other side has.
    for (property, variable, same) in [
        (Property::FwVersion, Variable::FwVer, false),
        (Property::SdmaFwVersion, Variable::SdmaFwVer, false),
        (Property::CachesCount, Variable::CachesCount, false),
        (Property::NumGws, Variable::NumGws, false),
        (Property::VramSize, Variable::VramSize, false),
        (Property::Capability, Variable::Capability, true),
    ] {
        for profile in models() {
            let whole = topology(&Machine::new(&profile, 2));
            let value = whole.gpus().next().unwrap().get(property);
            let less = with(&whole, 2, property, value - 1);
            let off = Checks::default().without(variable);
            let name = property.name();

            // Here is less than there.
            let refusal = refused(&whole, &less, Checks::default());
            let difference = Difference {
                property: name,
                need: if same { Need::Same } else { Need::AtLeast },
                source: value,
                destination: value - 1,
                variable: Some(variable),
            };
            assert_eq!(refusal.gpus[1].candidates[1].differences, [difference]);
            assert_eq!(refusal.overrides, Some(vec![variable]));
            assert!(plan(&whole, &less, off).is_ok(), "{name}");
            for other in Variable::ALL.into_iter().filter(|&other| other != variable) {
                refused(&whole, &less, Checks::default().without(other));
            }
            // Here is more than there.
            assert_eq!(plan(&less, &whole, Checks::default()).is_ok(), !same, "{name}");
            assert!(plan(&less, &whole, off).is_ok(), "{name}");
        }
    }
}

#[test]
fn what_no_variable_can_turn_off_is_always_the_same() {
    let whole = topology(&Machine::new(&Profile::gfx942(), 1));
    let all = Variable::ALL.into_iter().fold(Checks::default(), Checks::without);
    let mut strict = 0;
    for property in Property::ALL {
        let value = whole.gpus().next().unwrap().get(property);
        let other = with(&whole, 1, property, value + 1);
        if plan(&whole, &other, all).is_ok() {
            continue;
        }
        strict += 1;
        let refusal = refused(&whole, &other, all);
        let difference = refusal.gpus[0].candidates[0].differences[0];
        assert_eq!((difference.property, difference.variable), (property.name(), None));
        refused(&other, &whole, all);
        assert_eq!(refusal.overrides, None);
    }
    assert_eq!(strict, 18);
    // And what is of the machine and not of the GPU never matters.
    let moved = with(&whole, 1, Property::Domain, 5);
    let moved = with(&moved, 1, Property::HiveId, 5);
    assert!(plan(&whole, &moved, Checks::default()).is_ok());
}

#[test]
fn numa_is_checked_unless_somebody_says_otherwise() {
    // Six and two, where four and four were.
    let mut machine = Machine::new(&Profile::gfx90a(), 8).cpu_nodes(2);
    let even = topology(&machine);
    for at in [4, 5] {
        machine.gpus[at].numa_node = 0;
    }
    let uneven = topology(&machine);
    let refusal = refused(&even, &uneven, Checks::default());
    let [Reason::CpuNodes { source, destination }] = refusal.reasons.as_slice() else {
        panic!("{refusal}");
    };
    let sizes = |nodes: &[CpuNode]| nodes.iter().map(|cpu| cpu.gpus.len()).collect::<Vec<_>>();
    assert_eq!((sizes(source), sizes(destination)), (vec![4, 4], vec![6, 2]));
    assert_eq!(refusal.overrides, Some(vec![Variable::Numa]));
    let off = Checks::default().without(Variable::Numa);
    let found = plan(&even, &uneven, off).unwrap();
    assert_eq!(places(&found, &uneven), [0, 1, 2, 3, 4, 5, 6, 7]);
    // One CPU can be told from two.
    let one = topology(&Machine::new(&Profile::gfx90a(), 8));
    refused(&even, &one, Checks::default());
    refused(&one, &even, Checks::default());
    assert!(plan(&even, &one, off).is_ok() && plan(&one, &even, off).is_ok());
}

#[test]
fn a_gpu_without_its_link_to_a_cpu_is_no_candidate() {
    let whole = topology(&Machine::new(&Profile::gfx90a(), 2));
    let cut = changed(&whole, |node| node.links.retain(|link| node.id != 2 || link.to != 0));
    let off = Checks::default().without(Variable::Numa);
    for checks in [Checks::default(), off] {
        let refusal = refused(&whole, &cut, checks);
        let differences = &refusal.gpus[0].candidates[1].differences;
        let names: Vec<_> = differences.iter().map(|found| found.property).collect();
        assert_eq!(names, ["links to known nodes", "links to CPUs that are as good"]);
        assert!(plan(&cut, &whole, checks).is_ok());
    }
}

#[test]
fn each_of_two_links_to_one_cpu_needs_one_to_the_same_cpu() {
    use crate::topology::{Link, LinkKind, Properties};
    let (pcie, xgmi) = (LinkKind::Pcie, LinkKind::Xgmi);
    // PCIe goes both ways here and XGMI does not, so that neither may stand for the other.
    let machine = |links: [(LinkKind, u32); 2]| {
        let links = links.map(|(kind, to)| Link { kind, to }).to_vec();
        let back = |cpu| links.contains(&Link { kind: pcie, to: cpu });
        let back = |cpu| vec![Link { kind: pcie, to: 2 }; usize::from(back(cpu))];
        let node =
            |id, gpu_id, links| Node { id, gpu_id, properties: Properties::default(), links };
        let nodes = vec![node(0, 0, back(0)), node(1, 0, back(1)), node(2, 9, links.clone())];
        Topology::new(nodes, vec![]).unwrap()
    };
    let together = machine([(pcie, 0), (xgmi, 0)]);
    let apart = machine([(pcie, 0), (xgmi, 1)]);
    let off = Checks::default().without(Variable::Numa);
    assert!(matches!(
        refused(&together, &apart, Checks::default()).reasons[..],
        [Reason::CpuNodes { .. }]
    ));
    refused(&apart, &together, Checks::default());
    assert!(plan(&together, &apart, off).is_ok() && plan(&apart, &together, off).is_ok());
    assert!(plan(&together, &machine([(xgmi, 1), (pcie, 1)]), Checks::default()).is_ok());
    // Of one kind alone, the other one is missing.
    for kind in [pcie, xgmi] {
        refused(&together, &machine([(kind, 0), (kind, 0)]), off);
    }
}

#[test]
fn other_numbers_of_gpus_are_refused_with_a_way_out() {
    let machine = Machine::new(&Profile::gfx942(), 8).cpu_nodes(2);
    let whole = topology(&machine);
    let ids: Vec<_> = whole.gpus().map(|gpu| gpu.gpu_id).collect();
    let two = whole.only(&[ids[1], ids[6]]);
    let refusal = refused(&two, &whole, Checks::default());
    assert_eq!(refusal.reasons, [Reason::GpuCount { source: 2, destination: 8 }]);
    // One GPU of each CPU, as it was.
    let subset = refusal.subset.clone().unwrap();
    assert_eq!(places(&subset, &whole), [0, 4]);
    let seen = whole.only(&[ids[0], ids[4]]);
    assert_eq!(plan(&two, &seen, Checks::default()).unwrap(), subset);
    let text = refusal.to_string();
    assert!(
        text.contains("the process saw 2 GPUs, here it would see 8 GPUs: the kernel"),
        "{text}"
    );
    assert!(text.contains("device cgroup") && text.contains("sees only"), "{text}");

    let refusal = refused(&whole, &two, Checks::default());
    assert_eq!(refusal.reasons[0], Reason::GpuCount { source: 8, destination: 2 });
    assert_eq!((refusal.subset, refusal.overrides), (None, None));
    let none = refused(&two, &whole.only(&[]), Checks::default());
    assert!(none.to_string().contains("here it would see 0 GPUs"), "{none}");
}

#[test]
fn several_gpus_that_want_the_same_one_are_told_together() {
    let mut machine = Machine::new(&Profile::gfx90a(), 3);
    let large = |machine: &mut Machine, at: usize| machine.gpus[at].vram_bytes += 4096;
    large(&mut machine, 0);
    let one = topology(&machine);
    large(&mut machine, 2);
    let two = topology(&machine);
    let refusal = refused(&two, &one, Checks::default());
    let [Reason::TooFewCandidates { sources, destinations }] = refusal.reasons.as_slice() else {
        panic!("{refusal}");
    };
    assert_eq!(sources.iter().map(|gpu| gpu.node).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(destinations.iter().map(|gpu| gpu.node).collect::<Vec<_>>(), [1]);
    assert!(plan(&one, &two, Checks::default()).is_ok());
}

#[test]
fn hives_that_fit_nowhere_are_told() {
    let same = |machine: &Machine| {
        changed(&topology(machine), |node| node.properties.set(Property::IoLinksCount, 4))
    };
    let machine = Machine::new(&Profile::gfx90a(), 4);
    let (hive, pairs) = (same(&machine), same(&machine.clone().hives_of(2)));
    // With as many links to each: what is missing is the hive.
    let flat = changed(&same(&machine.clone().hives_of(1)), |node| {
        if node.is_gpu() {
            let to = node.id % 4 + 1;
            node.links
                .extend([crate::topology::Link { kind: crate::topology::LinkKind::Pcie, to }; 3]);
        }
    });
    let refusal = refused(&hive, &flat, Checks::default());
    assert!(refusal.to_string().contains("needs one here, and there is none"), "{refusal}");
    let refusal = refused(&pairs, &hive, Checks::default());
    let [Reason::TooFewHives { sources, destinations }] = refusal.reasons.as_slice() else {
        panic!("{refusal}");
    };
    assert_eq!((sources.len(), destinations.len()), (2, 1));
    assert!(refusal.to_string().contains("fit only into 1:"), "{refusal}");

    // Three and three, where four and two are.
    let machine = Machine::new(&Profile::gfx90a(), 6);
    let split = |sizes: [u64; 6]| {
        let mut machine = machine.clone();
        machine.gpus.iter_mut().zip(sizes).for_each(|(gpu, hive)| gpu.hive_id = hive);
        let same = changed(&topology(&machine), |node| {
            node.properties.set(Property::IoLinksCount, 4);
            if node.is_gpu() {
                let to = node.id % 6 + 1;
                let link = crate::topology::Link { kind: crate::topology::LinkKind::Pcie, to };
                node.links.resize(9, link);
            }
        });
        assert_eq!(same.hives().len(), 2);
        same
    };
    let (three, four) = (split([1, 1, 1, 2, 2, 2]), split([1, 1, 1, 1, 2, 2]));
    let refusal = refused(&four, &three, Checks::default());
    let [Reason::NoHive { hive, hives }] = refusal.reasons.as_slice() else { panic!("{refusal}") };
    assert_eq!((hive.0.len(), hives[0].takes, hives[1].takes), (4, 3, 3));
    assert_eq!(refusal.overrides, None);
    let refusal = refused(&three, &four, Checks::default());
    assert!(matches!(refusal.reasons[0], Reason::TooFewHives { .. }), "{refusal}");
}

#[test]
fn a_refusal_is_told_gpu_by_gpu_and_property_by_property() {
    let machine = Machine::new(&Profile::gfx90a(), 2);
    let whole = topology(&machine);
    let ids: Vec<_> = whole.gpus().map(|gpu| gpu.gpu_id).collect();
    let old = changed(&whole, |node| {
        if node.is_gpu() {
            node.properties.set(Property::FwVersion, 90);
            node.properties.set(Property::DeviceId, 29704 + u64::from(node.id));
        }
    });
    let expected = format!(
        "this checkpoint cannot be restored here:\n\
         - no GPU here can take the place of {0:#06x} (node 1, renderD128)\n\
         \x20   {0:#06x} (node 1, renderD128):\n\
         \x20       device_id is 29705, and 29711 is needed\n\
         \x20       fw_version is 90, and at least 92 is needed (KFD_FW_VER_CHECK=0 ignores it)\n\
         \x20   {1:#06x} (node 2, renderD129):\n\
         \x20       device_id is 29706, and 29711 is needed\n\
         \x20       fw_version is 90, and at least 92 is needed (KFD_FW_VER_CHECK=0 ignores it)\n",
        ids[0], ids[1]
    );
    let text = refused(&whole, &old, Checks::default()).to_string();
    assert!(text.starts_with(&expected), "{text}");

    // What is the same is told once, with everything that would help.
    let old = changed(&whole, |node| {
        node.properties.set(Property::FwVersion, 90);
        node.properties.set(Property::SdmaFwVersion, 8);
    });
    let text = refused(&whole, &old, Checks::default()).to_string();
    assert_eq!(text.matches("fw_version is 90").count(), 2, "{text}");
    assert!(
        text.ends_with("It could be with KFD_FW_VER_CHECK=0 KFD_SDMA_FW_VER_CHECK=0"),
        "{text}"
    );
}

#[test]
fn the_largest_machine_that_does_not_fit_is_refused_at_once() {
    // Eight hives and eight CPUs that cross, and a rule that only the last place breaks: the worst
    // for a search that goes GPU by GPU.
    let mut machine = Machine::new(&Profile::gfx942(), 64).cpu_nodes(8).hives_of(8);
    for (gpu, number) in machine.gpus.iter_mut().zip(0..) {
        gpu.numa_node = number % 8;
    }
    let mut other = machine.clone();
    for at in 0..8 {
        machine.gpus[at * 9].vram_bytes += 4096;
    }
    for at in 0..7 {
        other.gpus[at * 9].vram_bytes += 4096;
    }
    other.gpus[7 * 9 - 1].vram_bytes += 4096;
    let refusal = refused(&topology(&machine), &topology(&other), Checks::default());
    assert!(!refusal.reasons.is_empty());
    assert_eq!(refusal.overrides, Some(vec![Variable::VramSize]));
}
