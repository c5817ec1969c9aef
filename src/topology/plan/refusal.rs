//! What is said where there is no plan, so that a person can do something about it.

use super::{GpuRef, Plan};
use crate::topology::{Hidden, Variable};

/// How two values must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The same.
    Same,
    /// Here at least what it was there.
    AtLeast,
}

impl Need {
    pub(super) fn is_met(self, source: u64, destination: u64) -> bool {
        match self {
            Need::Same => source == destination,
            Need::AtLeast => source <= destination,
        }
    }
}

/// In what a GPU here is not good enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// What is compared.
    pub property: &'static str,
    /// How.
    pub need: Need,
    /// The value of the checkpointed GPU.
    pub source: u64,
    /// The value of the GPU here.
    pub destination: u64,
    /// The variable that turns this off.
    pub variable: Option<Variable>,
}

/// A GPU here, seen from a checkpointed one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub gpu: GpuRef,
    /// In what it is not good enough: nothing, if it can take the place.
    pub differences: Vec<Difference>,
}

/// A checkpointed GPU, and every GPU here seen from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuVerdict {
    /// Which.
    pub gpu: GpuRef,
    /// Each GPU here.
    pub candidates: Vec<Candidate>,
}

/// An XGMI hive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hive(pub Vec<GpuRef>);

/// A hive here, seen from a checkpointed one that does not fit into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiveVerdict {
    /// Which.
    pub hive: Hive,
    /// How many of the checkpointed hive's GPUs its GPUs can take.
    pub takes: usize,
}

/// A CPU node with the GPUs that are linked to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuNode {
    /// Its number.
    pub node: u32,
    /// Its GPUs.
    pub gpus: Vec<GpuRef>,
}

/// A rule that cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The numbers of GPUs differ.
    GpuCount {
        /// In the checkpoint.
        source: usize,
        /// Here.
        destination: usize,
    },
    /// No GPU here can take this one's place; [`Refusal::gpus`] has the details.
    NoCandidate {
        /// The checkpointed GPU.
        gpu: GpuRef,
    },
    /// Several can only go where there are fewer.
    TooFewCandidates {
        /// The checkpointed GPUs.
        sources: Vec<GpuRef>,
        /// All GPUs here that could take the place of any of them.
        destinations: Vec<GpuRef>,
    },
    /// A hive fits into none here.
    NoHive {
        /// The checkpointed hive.
        hive: Hive,
        /// The hives here.
        hives: Vec<HiveVerdict>,
    },
    /// Several hives fit only into fewer.
    TooFewHives {
        /// The checkpointed hives.
        sources: Vec<Hive>,
        /// The hives here that any of them fits into.
        destinations: Vec<Hive>,
    },
    /// Each hive fits somewhere, but not all of them together with all other GPUs.
    HivesTogether,
    /// The GPUs cannot be grouped by CPUs as they were.
    CpuNodes {
        /// In the checkpoint.
        source: Vec<CpuNode>,
        /// Here.
        destination: Vec<CpuNode>,
    },
}

impl Reason {
    /// A word for it, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Reason::GpuCount { .. } => "gpu_count",
            Reason::NoCandidate { .. } => "no_candidate",
            Reason::TooFewCandidates { .. } => "too_few_candidates",
            Reason::NoHive { .. } => "no_hive",
            Reason::TooFewHives { .. } => "too_few_hives",
            Reason::HivesTogether => "hives_together",
            Reason::CpuNodes { .. } => "cpu_nodes",
        }
    }
}

/// Why a checkpoint cannot be restored, and what would help. Printed, it is a text of several lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The rules that cannot be kept; never empty.
    pub reasons: Vec<Reason>,
    /// Every checkpointed GPU.
    pub gpus: Vec<GpuVerdict>,
    /// The fewest variables with which it could be restored when they are 0; `None` if no variable
    /// helps, or not enough was found out.
    pub overrides: Option<Vec<Variable>>,
    /// Where more GPUs are visible than the checkpoint has: a plan for a process that sees only
    /// these.
    pub subset: Option<Plan>,
    /// Nodes here that are hidden.
    pub hidden: Vec<Hidden>,
}
