//! Finds out why there is no plan: the first rules that cannot be kept, and what would help.

use super::{
    GpuRef, Plan, PlanError,
    compare::compare,
    find,
    matching::{assign, bits, first_bits},
    problem::Problem,
    refusal::{Candidate, CpuNode, GpuVerdict, Hive, HiveVerdict, Reason, Refusal},
    search::{Work, solve},
    view::View,
};
use crate::topology::{Checks, Variable};

/// The reasons, where it is known that there is no plan.
pub(super) fn refuse(
    source: &View,
    destination: &View,
    checks: Checks,
) -> Result<Refusal, PlanError> {
    let ask = Ask { source, destination, checks };
    let (there, here) = (source.gpus.len(), destination.gpus.len());
    let reasons = match there == here {
        true => ask.reasons()?,
        // What else is wrong is worth telling, but not worth failing for.
        false => [Reason::GpuCount { source: there, destination: here }]
            .into_iter()
            .chain(ask.reasons().unwrap_or_default())
            .collect(),
    };
    Ok(Refusal {
        reasons,
        gpus: ask.verdicts(),
        overrides: if there == here { ask.overrides() } else { None },
        subset: if there < here { ask.subset() } else { None },
        hidden: destination.topology.hidden().to_vec(),
    })
}

/// What is asked.
#[derive(Clone, Copy)]
struct Ask<'a> {
    source: &'a View<'a>,
    destination: &'a View<'a>,
    checks: Checks,
}

impl<'a> Ask<'a> {
    fn problem(self) -> Problem<'a> {
        Problem::new(self.source, self.destination, self.checks)
    }

    /// The first rules that cannot be kept. With fewer GPUs here, only what is wrong with single ones
    /// is worth telling.
    fn reasons(self) -> Result<Vec<Reason>, PlanError> {
        let gpus = self.gpus();
        if !gpus.is_empty() || self.source.gpus.len() > self.destination.gpus.len() {
            return Ok(gpus);
        }
        let hives = self.problem().with_hives().parts;
        if solve(&hives, &mut Work::full())?.is_none() {
            return Ok(self.hives(&hives.fits));
        }
        let cpus = self.problem().with_hives().with_cpus().parts;
        if solve(&cpus, &mut Work::full())?.is_none() {
            let (source, destination) = (cpu_nodes(self.source), cpu_nodes(self.destination));
            return Ok(vec![Reason::CpuNodes { source, destination }]);
        }
        Ok(Vec::new())
    }

    /// What is wrong with GPUs alone.
    fn gpus(self) -> Vec<Reason> {
        let fits = self.problem().parts.fits;
        let there = |gpu: usize| gpu_ref(self.source, gpu);
        let here = |gpu: usize| gpu_ref(self.destination, gpu);
        let (some, none): (Vec<_>, Vec<_>) = (0..fits.len()).partition(|&gpu| fits[gpu] != 0);
        let nowhere = none.into_iter().map(|gpu| Reason::NoCandidate { gpu: there(gpu) });
        let mut reasons: Vec<_> = nowhere.collect();
        let wanted: Vec<_> = some.iter().map(|&gpu| fits[gpu]).collect();
        if self.source.gpus.len() <= self.destination.gpus.len()
            && let Err(short) = assign(&wanted)
        {
            let sources = short.iter().map(|&one| there(some[one])).collect();
            let destinations = bits(union(&short, &wanted)).map(here).collect();
            reasons.push(Reason::TooFewCandidates { sources, destinations });
        }
        reasons
    }

    /// What is wrong with hives.
    fn hives(self, fits: &[u64]) -> Vec<Reason> {
        let there = |at: usize| hive(self.source, &self.source.hives[at]);
        let here = |at: usize| hive(self.destination, &self.destination.hives[at]);
        let all_here = 0..self.destination.hives.len();
        let takes = |source: &[usize], at: usize| {
            let set = self.destination.hives[at].iter().fold(0u64, |set, &gpu| set | 1 << gpu);
            most(source.iter().map(|&gpu| fits[gpu] & set))
        };
        let (mut reasons, mut targets) = (Vec::new(), Vec::new());
        for (at, source) in self.source.hives.iter().enumerate() {
            let fitting = all_here.clone().filter(|&to| takes(source, to) == source.len());
            let fitting = fitting.fold(0u64, |set, to| set | 1 << to);
            if fitting == 0 {
                let verdict = |to| HiveVerdict { hive: here(to), takes: takes(source, to) };
                let hives = all_here.clone().map(verdict).collect();
                reasons.push(Reason::NoHive { hive: there(at), hives });
            }
            targets.push(fitting);
        }
        if !reasons.is_empty() {
            return reasons;
        }
        match assign(&targets) {
            Ok(_) => vec![Reason::HivesTogether],
            Err(short) => {
                let destinations = bits(union(&short, &targets)).map(here).collect();
                let sources = short.into_iter().map(there).collect();
                vec![Reason::TooFewHives { sources, destinations }]
            }
        }
    }

    fn verdicts(self) -> Vec<GpuVerdict> {
        let verdict = |at: usize| {
            let gpu = &self.source.gpus[at];
            let candidates = self.destination.gpus.iter().map(|other| Candidate {
                gpu: GpuRef::of(other.node),
                differences: compare(gpu, other, self.checks),
            });
            GpuVerdict { gpu: GpuRef::of(gpu.node), candidates: candidates.collect() }
        };
        (0..self.source.gpus.len()).map(verdict).collect()
    }

    /// The fewest variables that help.
    fn overrides(self) -> Option<Vec<Variable>> {
        let on = Variable::ALL.into_iter().filter(|&variable| self.checks.is_on(variable));
        let on: Vec<_> = on.collect();
        let of = |set: u64| bits(set).filter_map(|at| on.get(at).copied());
        let helps = |set: u64| {
            let checks = of(set).fold(self.checks, Checks::without);
            let plan = find(self.source, self.destination, checks, &mut Work::some());
            plan.is_ok_and(|plan| plan.is_some())
        };
        let all = first_bits(on.len());
        if !helps(all) {
            return None;
        }
        let mut sets: Vec<_> = (1..=all).collect();
        sets.sort_by_key(|set| set.count_ones());
        sets.into_iter().find(|&set| helps(set)).map(|set| of(set).collect())
    }

    /// A plan for a process that sees fewer GPUs.
    fn subset(self) -> Option<Plan> {
        let plan = find(self.source, self.destination, self.checks, &mut Work::some()).ok()??;
        // Of those that are left, each has fewer links then.
        let ids: Vec<_> = plan.gpus.iter().map(|pair| pair.destination.gpu_id).collect();
        let visible = self.destination.topology.only(&ids);
        let visible = View::new(&visible).ok()?;
        find(self.source, &visible, self.checks, &mut Work::some()).ok()?
    }
}

/// What any of some wants.
fn union(some: &[usize], wanted: &[u64]) -> u64 {
    some.iter().fold(0, |union, &one| union | wanted[one])
}

/// How many can have something of their own.
fn most(wanted: impl Iterator<Item = u64>) -> usize {
    let mut served = Vec::new();
    for one in wanted {
        served.push(one);
        if assign(&served).is_err() {
            served.pop();
        }
    }
    served.len()
}

fn gpu_ref(view: &View, place: usize) -> GpuRef {
    GpuRef::of(view.gpus[place].node)
}

fn hive(view: &View, places: &[usize]) -> Hive {
    Hive(places.iter().map(|&place| gpu_ref(view, place)).collect())
}

fn cpu_nodes(view: &View) -> Vec<CpuNode> {
    let node = |(at, &node)| CpuNode {
        node,
        gpus: view.gpus_of(at).map(|gpu| gpu_ref(view, gpu)).collect(),
    };
    view.cpus.iter().enumerate().map(node).collect()
}
