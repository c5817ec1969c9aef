//! Machines that a checkpoint can move between.

use proptest::prelude::*;

use super::*;

/// The machine with its GPUs in another order, in other slots, and its CPU nodes in another order.
fn shuffled(machine: &Machine, gpus: &[usize], cpus: &[u32]) -> Machine {
    let mut other = machine.clone();
    other.gpus = gpus.iter().map(|&at| machine.gpus[at].clone()).collect();
    for gpu in &mut other.gpus {
        gpu.numa_node = cpus[gpu.numa_node as usize];
    }
    other.moved(140, 0x41)
}

/// The same number of links, as all members of a larger machine have.
fn same_links(topology: &Topology) -> Topology {
    changed(topology, |node| node.properties.set(Property::IoLinksCount, 9))
}

#[test]
fn a_machine_like_the_first_one_takes_each_gpu_in_its_place() {
    for profile in models() {
        for count in [1, 2, 8] {
            for cpus in [1, 2] {
                let machine = Machine::new(&profile, count).cpu_nodes(cpus);
                let source = topology(&machine);
                let destination = topology(&machine.clone().moved(160, 0x77));
                assert_ne!(source, destination);
                let all: Vec<_> = (0..count as usize).collect();
                assert_eq!(planned(&source, &destination), all, "{} x{count}", profile.name);
                assert_eq!(planned(&source, &source), all);
            }
        }
    }
}

#[test]
fn every_model_is_refused_where_another_is() {
    let all = models().map(|profile| topology(&Machine::new(&profile, 2)));
    for (at, source) in all.iter().enumerate() {
        for (other, destination) in all.iter().enumerate() {
            let plan = plan(source, destination, Checks::default());
            assert_eq!(plan.is_ok(), at == other);
        }
    }
}

#[test]
fn two_hives_of_four_stay_hives_wherever_their_gpus_are() {
    let machine = Machine::new(&Profile::gfx90a(), 8).cpu_nodes(2).hives_of(4);
    let order = [4, 0, 5, 1, 6, 2, 7, 3];
    let source = topology(&machine);
    let destination = topology(&shuffled(&machine, &order, &[1, 0]));
    // The first hive here is that of the first GPU here.
    assert_eq!(planned(&source, &destination), [0, 2, 4, 6, 1, 3, 5, 7]);
    assert_eq!(planned(&destination, &source), [0, 4, 1, 5, 2, 6, 3, 7]);
    let found = plan(&source, &destination, Checks::default()).unwrap();
    let cpus: Vec<_> = found.cpus.iter().map(|pair| (pair.source, pair.destination)).collect();
    assert_eq!(cpus, [(0, 0), (1, 1)]);
    let off = Checks::default().without(Variable::Numa);
    assert_eq!(plan(&source, &destination, off).unwrap().cpus, []);
}

#[test]
fn a_hive_and_a_cpu_together_decide_where_a_gpu_goes() {
    // Hives across CPUs: GPU n is in hive n / 4 and at CPU n % 2; here it is the other way round,
    // and one GPU has more VRAM, without which the second one of the checkpoint cannot do.
    let mut machine = Machine::new(&Profile::gfx942(), 8).cpu_nodes(2).hives_of(4);
    for (gpu, number) in machine.gpus.iter_mut().zip(0..) {
        gpu.numa_node = number % 2;
    }
    let mut other = shuffled(&machine, &[7, 6, 5, 4, 3, 2, 1, 0], &[1, 0]);
    machine.gpus[1].vram_bytes += 4096;
    other.gpus[6].vram_bytes += 4096;
    let (source, destination) = (topology(&machine), topology(&other));
    assert_eq!(planned(&source, &destination), [5, 6, 7, 4, 1, 0, 3, 2]);
}

#[test]
fn a_larger_hive_takes_a_smaller_one_and_others() {
    let mut machine = Machine::new(&Profile::gfx90a(), 4);
    let destination = same_links(&topology(&machine));
    for at in [0, 3] {
        machine.gpus[at].hive_id = 0;
    }
    let source = same_links(&topology(&machine));
    assert_eq!((source.hives().len(), source.hives()[0].len()), (1, 2));
    assert_eq!(planned(&source, &destination), [0, 1, 2, 3]);
    // Not the other way: a hive needs all of its links.
    refused(&destination, &source, Checks::default());
    // And single GPUs go into any.
    machine.gpus.iter_mut().for_each(|gpu| gpu.hive_id = 0);
    let single = same_links(&topology(&machine));
    assert_eq!(planned(&single, &destination), [0, 1, 2, 3]);
}

#[test]
fn sixty_four_partitions_are_planned_for() {
    for hive in [64, 8] {
        let machine = Machine::new(&Profile::gfx942(), 64).cpu_nodes(8).hives_of(hive);
        let order: Vec<_> = (0..64).map(|n| n * 27 % 64).collect();
        let cpus = [3, 7, 1, 0, 4, 6, 2, 5];
        let source = topology(&machine);
        let all: Vec<_> = (0..64).collect();
        assert_eq!(planned(&source, &source), all);
        let mut found = planned(&source, &topology(&shuffled(&machine, &order, &cpus)));
        found.sort_unstable();
        assert_eq!(found, all);
    }
}

#[test]
fn a_container_that_sees_one_gpu_goes_to_one_that_sees_another() {
    let machine = Machine::new(&Profile::gfx942(), 8).cpu_nodes(2);
    let whole = topology(&machine);
    let ids: Vec<_> = whole.gpus().map(|gpu| gpu.gpu_id).collect();
    let source = whole.only(&ids[5..6]);
    let destination = whole.only(&ids[2..3]);
    let found = plan(&source, &destination, Checks::default()).unwrap();
    assert_eq!(found.destination(ids[5]), Some(ids[2]));
    assert_eq!(found.destination(ids[2]), None);
    // Links to those that it does not see count on neither side.
    let two = whole.only(&[ids[1], ids[6]]);
    assert_eq!(planned(&two, &two), [0, 1]);
    // Those at one CPU do not go to two.
    refused(&whole.only(&ids[..2]), &two, Checks::default());
}

#[test]
fn a_gpu_that_cannot_be_opened_is_not_planned_with() {
    let machine = Machine::new(&Profile::gfx90a(), 8);
    let whole = topology(&machine);
    let ids: Vec<_> = whole.gpus().map(|gpu| gpu.gpu_id).collect();
    let source = whole.only(&ids[..1]);
    let mut destination = whole.clone();
    for &id in ids.iter().filter(|&&id| id != ids[6]) {
        destination.hide(id, "/dev/dri/renderD128: ENOENT");
    }
    let found = plan(&source, &destination, Checks::default()).unwrap();
    assert_eq!(found.destination(ids[0]), Some(ids[6]));
    destination.hide(ids[6], "/dev/dri/renderD134: EACCES");
    let refusal = refused(&source, &destination, Checks::default());
    let text = refusal.to_string();
    assert_eq!(text.matches("ENOENT").count(), 7, "{text}");
    assert!(text.contains("Node 7 here is hidden: /dev/dri/renderD134: EACCES"), "{text}");
}

fn machines() -> impl Strategy<Value = (Machine, Vec<usize>, Vec<u32>)> {
    let size = (0..5usize, 1..=10u32, 1..=4u32, 1..=5u32);
    size.prop_flat_map(|(model, gpus, cpus, hives)| {
        let machine = Machine::new(&models()[model], gpus).cpu_nodes(cpus).hives_of(hives);
        let vram = prop::collection::vec(0..2u64, gpus as usize);
        let order = Just((0..gpus as usize).collect::<Vec<_>>()).prop_shuffle();
        let cpu_order = Just((0..cpus).collect::<Vec<_>>()).prop_shuffle();
        let machine = vram.prop_map(move |vram| {
            let mut machine = machine.clone();
            for (gpu, more) in machine.gpus.iter_mut().zip(vram) {
                gpu.vram_bytes += more * 4096;
            }
            machine
        });
        (machine, order, cpu_order)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_permuted_machine_always_has_a_plan_and_one_worse_gpu_ends_it(
        (machine, order, cpus) in machines(),
        property in prop::sample::select(vec![
            (Property::FwVersion, Some(Variable::FwVer)),
            (Property::SdmaFwVersion, Some(Variable::SdmaFwVer)),
            (Property::CachesCount, Some(Variable::CachesCount)),
            (Property::NumGws, Some(Variable::NumGws)),
            (Property::VramSize, Some(Variable::VramSize)),
            (Property::Capability, Some(Variable::Capability)),
            (Property::SimdCount, None),
            (Property::NumCpQueues, None),
            (Property::VramPublic, None),
        ]),
        victim in any::<prop::sample::Index>(),
    ) {
        let source = topology(&machine);
        let destination = topology(&shuffled(&machine, &order, &cpus));
        let found = planned(&source, &destination);
        prop_assert_eq!(&found, &planned(&source, &destination), "the same every time");
        for (gpu, &place) in source.gpus().zip(&found) {
            let other = destination.gpus().nth(place).unwrap();
            prop_assert!(gpu.get(Property::VramSize) <= other.get(Property::VramSize));
        }

        let (property, variable) = property;
        let victim = destination.gpus().nth(victim.index(found.len())).unwrap().id;
        let worse = changed(&destination, |node| {
            if node.id == victim {
                let value = node.get(property);
                // Also less than the smaller of two sizes of VRAM.
                node.properties.set(property, value - (value / 2).max(1));
            }
        });
        let refusal = refused(&source, &worse, Checks::default());
        prop_assert_eq!(&refusal.overrides, &variable.map(|variable| vec![variable]));
        match variable {
            Some(variable) => {
                let off = Checks::default().without(variable);
                prop_assert!(plan(&source, &worse, off).is_ok());
                for other in Variable::ALL.into_iter().filter(|&other| other != variable) {
                    // Without the NUMA check there is more freedom, but not for a worse GPU.
                    prop_assert!(plan(&source, &worse, Checks::default().without(other)).is_err());
                }
            }
            None => {
                let all = Variable::ALL.into_iter().fold(Checks::default(), Checks::without);
                prop_assert!(plan(&source, &worse, all).is_err());
            }
        }
    }
}
