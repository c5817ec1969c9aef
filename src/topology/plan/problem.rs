//! Two topologies as the sets that are searched over.

use super::{
    CpuPair,
    compare::compare,
    search::{Kind, Member, Parts, Solution},
    view::{CpuLink, GpuView, View},
};
use crate::topology::{Checks, Variable};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Problem<'a> {
    source: &'a View<'a>,
    destination: &'a View<'a>,
    checks: Checks,
    pub(super) parts: Parts,
    /// Which kind the CPUs are.
    cpus: Option<usize>,
}

impl<'a> Problem<'a> {
    /// GPUs alone: which can take the place of which.
    pub(super) fn new(source: &'a View<'a>, destination: &'a View<'a>, checks: Checks) -> Self {
        let fits = |gpu: &GpuView| {
            set(destination.gpus.iter().map(|other| compare(gpu, other, checks).is_empty()))
        };
        let fits = source.gpus.iter().map(fits).collect();
        let parts = Parts { fits, kinds: Vec::new() };
        Problem { source, destination, checks, parts, cpus: None }
    }

    /// And each hive in a hive.
    pub(super) fn with_hives(mut self) -> Self {
        let slots: Vec<_> = self.destination.hives.iter().map(|hive| members(hive)).collect();
        let member = |&thing: &usize| Member { thing, slots: slots.clone() };
        let group = |hive: &Vec<usize>| hive.iter().map(member).collect();
        let groups = self.source.hives.iter().map(group).collect();
        self.parts.kinds.push(Kind { groups, targets: slots.len() });
        self
    }

    /// And the GPUs of each CPU at a CPU, if anybody wants that.
    pub(super) fn with_cpus(mut self) -> Self {
        if !self.checks.is_on(Variable::Numa) {
            return self;
        }
        let targets = self.destination.cpus.len();
        let group = |cpu: usize| {
            let member = |thing: usize| {
                let links = &self.source.gpus[thing].cpu_links;
                let links: Vec<_> = links.iter().filter(|link| link.cpu == cpu).collect();
                Member { thing, slots: (0..targets).map(|to| self.linked(&links, to)).collect() }
            };
            self.source.gpus_of(cpu).map(member).collect()
        };
        let groups = (0..self.source.cpus.len()).map(group).collect();
        self.cpus = Some(self.parts.kinds.len());
        self.parts.kinds.push(Kind { groups, targets });
        self
    }

    /// The GPUs here that have for each of these links one to a CPU that may stand for it.
    fn linked(&self, links: &[&CpuLink], cpu: usize) -> u64 {
        let has = |gpu: &GpuView, link: &CpuLink| {
            gpu.cpu_links.iter().any(|other| other.cpu == cpu && link.may_become(other))
        };
        set(self.destination.gpus.iter().map(|gpu| links.iter().all(|link| has(gpu, link))))
    }

    /// Which CPU stands for which.
    pub(super) fn cpu_pairs(&self, solution: &Solution) -> Vec<CpuPair> {
        let targets = self.cpus.and_then(|kind| solution.targets.get(kind));
        let targets = targets.into_iter().flatten();
        let mut pairs: Vec<_> = targets
            .zip(&self.source.cpus)
            .map(|(&to, &source)| CpuPair { source, destination: self.destination.cpus[to] })
            .collect();
        pairs.sort_unstable();
        pairs
    }
}

/// A set of places.
fn members(places: &[usize]) -> u64 {
    places.iter().fold(0, |set, &place| set | 1 << place)
}

/// The places of what is so.
fn set(is_in: impl Iterator<Item = bool>) -> u64 {
    let places = is_in.enumerate().filter(|(_, is_in)| *is_in);
    places.fold(0, |set, (place, _)| set | 1 << place)
}
