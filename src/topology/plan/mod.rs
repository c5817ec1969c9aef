//! Which GPU here takes the place of which GPU of a checkpoint.
//!
//! # What a plan must keep
//!
//! - A GPU goes to one whose properties match ([`compare`]); each to one of its own.
//! - The GPUs of an XGMI hive go into one hive, those of different hives into different ones. Other
//!   GPUs may go anywhere.
//! - Where a GPU has a link to a CPU, so has the one that takes its place, at least as good: XGMI may
//!   stand for PCIe, a link in both directions for one in one. With `KFD_NUMA_CHECK` the GPUs of one
//!   CPU go to GPUs of one CPU, and those of different CPUs to GPUs of different CPUs.
//! - The process sees as many GPUs here as it saw there: the kernel restores it no other way.
//!
//! # How it is found
//!
//! ```text
//!  compare   for each GPU, those that match           view    a topology, prepared for comparison
//!  search    a full search over CPUs and hives; the GPUs then follow by matching
//!  reasons   if there is none: the first of these rules that cannot be kept, and what would help
//! ```
//!
//! The search finds a plan if there is one, or says that it gave up. Among several it prefers the one
//! that keeps the order of GPUs, and it always finds the same.

mod compare;
mod explain;
mod matching;
mod problem;
mod reasons;
mod refusal;
mod search;
#[cfg(test)]
mod tests;
mod view;

use std::fmt;

use problem::Problem;
pub use refusal::{
    Candidate, CpuNode, Difference, GpuVerdict, Hive, HiveVerdict, Need, Reason, Refusal,
};
use search::Work;
use view::View;

use super::{Checks, Node, Topology};

/// A GPU, as people know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuRef {
    /// Its id.
    pub gpu_id: u32,
    /// Its node.
    pub node: u32,
    /// Its render node's number.
    pub render_minor: u32,
}

impl GpuRef {
    /// A GPU by its node.
    pub fn of(node: &Node) -> Self {
        GpuRef { gpu_id: node.gpu_id, node: node.id, render_minor: node.render_minor() }
    }
}

impl fmt::Display for GpuRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x} (node {}, renderD{})", self.gpu_id, self.node, self.render_minor)
    }
}

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuPair {
    /// The GPU of the checkpoint; its id is what the process calls it.
    pub source: GpuRef,
    /// The GPU here.
    pub destination: GpuRef,
}

/// The CPU node whose GPUs take the places of those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuPair {
    /// The node of the checkpoint.
    pub source: u32,
    /// The node here.
    pub destination: u32,
}

/// Which GPU goes where.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Each GPU of the checkpoint, in its order.
    pub gpus: Vec<GpuPair>,
    /// The CPU nodes that GPUs are linked to; nothing without the NUMA check.
    pub cpus: Vec<CpuPair>,
}

impl Plan {
    /// The id here of a GPU of the checkpoint.
    pub fn destination(&self, source_gpu_id: u32) -> Option<u32> {
        let pair = self.gpus.iter().find(|pair| pair.source.gpu_id == source_gpu_id)?;
        Some(pair.destination.gpu_id)
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// There is none.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// Nobody knows: the search was given up.
    #[error(
        "whether the GPUs of the checkpoint fit here was not found out in {steps} steps of search; \
         KFD_NUMA_CHECK=0 makes it simpler"
    )]
    GaveUp {
        /// How much was tried.
        steps: usize,
    },
    /// More CPU nodes than are looked at.
    #[error("GPUs are linked to {count} CPU nodes; at most {most} can be planned for")]
    TooManyCpus {
        /// How many there are.
        count: usize,
        /// The limit.
        most: usize,
    },
}

/// Finds the plan for a restore of `source` on `destination`.
pub fn plan(source: &Topology, destination: &Topology, checks: Checks) -> Result<Plan, PlanError> {
    let (source, destination) = (View::new(source)?, View::new(destination)?);
    let equal = source.gpus.len() == destination.gpus.len();
    if equal && let Some(plan) = find(&source, &destination, checks, &mut Work::full())? {
        return Ok(plan);
    }
    let refusal = reasons::refuse(&source, &destination, checks)?;
    Err(PlanError::Refused(Box::new(refusal)))
}

/// The plan, whether or not there are as many GPUs.
fn find(
    source: &View,
    destination: &View,
    checks: Checks,
    work: &mut Work,
) -> Result<Option<Plan>, PlanError> {
    let problem = Problem::new(source, destination, checks).with_hives().with_cpus();
    let Some(solution) = search::solve(&problem.parts, work)? else { return Ok(None) };
    let gpu = |view: &View, at: usize| GpuRef::of(view.gpus[at].node);
    let gpus = solution.gpus.iter().enumerate().map(|(from, &to)| GpuPair {
        source: gpu(source, from),
        destination: gpu(destination, to),
    });
    Ok(Some(Plan { gpus: gpus.collect(), cpus: problem.cpu_pairs(&solution) }))
}
