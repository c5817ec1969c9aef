//! Plans between simulated machines.

mod brute_force;
mod machines;
mod refusals;

use super::*;
use crate::{
    device::sim::{Machine, Profile},
    topology::{Property, Variable},
};

/// The topology of a simulated machine, through its files.
fn topology(machine: &Machine) -> Topology {
    // Thousands of small files: in memory, where there is such a place.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    machine.write_sysfs(dir.path()).unwrap();
    Topology::from_sysfs(dir.path()).unwrap()
}

/// A topology with nodes changed.
fn changed(topology: &Topology, change: impl Fn(&mut Node)) -> Topology {
    let mut nodes = topology.nodes().to_vec();
    nodes.iter_mut().for_each(change);
    Topology::new(nodes, topology.hidden().to_vec()).unwrap()
}

/// The places of the GPUs that a plan gives to those of the checkpoint, in their order.
fn places(plan: &Plan, destination: &Topology) -> Vec<usize> {
    let ids: Vec<_> = destination.gpus().map(|gpu| gpu.gpu_id).collect();
    let place = |id: u32| ids.iter().position(|&known| known == id).unwrap();
    plan.gpus.iter().map(|pair| place(pair.destination.gpu_id)).collect()
}

fn planned(source: &Topology, destination: &Topology) -> Vec<usize> {
    let found = plan(source, destination, Checks::default());
    places(&found.unwrap_or_else(|error| panic!("{error}")), destination)
}

fn refused(source: &Topology, destination: &Topology, checks: Checks) -> Refusal {
    match plan(source, destination, checks) {
        Err(PlanError::Refused(refusal)) => *refusal,
        other => panic!("{other:?}"),
    }
}

fn models() -> [Profile; 5] {
    ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx942"].map(|name| Profile::named(name).unwrap())
}
