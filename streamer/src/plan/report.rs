//! The answer, as programs read it.

use std::path::Path;

use serde::Serialize;
use vramstream::topology::{GpuPair, GpuRef, GpuVerdict, Need, Plan, Reason, Refusal, Topology};

/// See the [module](super).
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Whether everything can be restored.
    pub restorable: bool,
    /// The topology to restore on.
    pub to: String,
    /// GPUs there that can be used.
    pub gpus: Vec<Gpu>,
    /// Nodes there that are hidden.
    pub hidden: Vec<HiddenNode>,
    /// What is to be restored, process by process.
    pub checkpoints: Vec<Checkpoint>,
}

/// A process to restore.
#[derive(Debug, Clone, Serialize)]
pub struct Checkpoint {
    /// The image, or the topology.
    pub from: String,
    /// The process, if it is an image.
    pub pid: Option<u32>,
    /// Whether it can be restored.
    pub restorable: bool,
    /// Its GPUs, and where they go.
    pub gpus: Vec<Placed>,
    /// CPU nodes and where they go, as far as that matters.
    pub cpus: Vec<Cpu>,
    /// Why not.
    pub refusal: Option<Why>,
    #[serde(skip)]
    pub(super) text: String,
}

/// A GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// Its id.
    pub gpu_id: u32,
    /// Its node.
    pub node: u32,
    /// Its render node's number.
    pub render_minor: u32,
}

impl From<GpuRef> for Gpu {
    fn from(gpu: GpuRef) -> Self {
        Gpu { gpu_id: gpu.gpu_id, node: gpu.node, render_minor: gpu.render_minor }
    }
}

/// A GPU of a process.
#[derive(Debug, Clone, Serialize)]
pub struct Placed {
    /// Which.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// Where it goes.
    pub to: Option<Gpu>,
}

/// A CPU node.
#[derive(Debug, Clone, Serialize)]
pub struct Cpu {
    /// Of the checkpoint.
    pub node: u32,
    /// Where its GPUs are linked to.
    pub to: u32,
}

/// A node that cannot be used.
#[derive(Debug, Clone, Serialize)]
pub struct HiddenNode {
    /// Which.
    pub node: u32,
    /// Its id, if that is known.
    pub gpu_id: Option<u32>,
    /// Why.
    pub why: String,
}

/// Why a process cannot be restored.
#[derive(Debug, Clone, Serialize)]
pub struct Why {
    /// The rules that cannot be kept.
    pub reasons: Vec<Rule>,
    /// Every GPU of the process, compared with every GPU there.
    pub compared: Vec<Compared>,
    /// Variables that make it possible when they are 0; null if none do.
    pub overrides: Option<Vec<&'static str>>,
    /// GPUs on which it could be restored if the process saw only those.
    pub subset: Option<Vec<Placed>>,
}

/// A rule that cannot be kept.
#[derive(Debug, Clone, Serialize)]
pub struct Rule {
    /// Which.
    pub kind: &'static str,
    /// In words.
    pub text: String,
}

/// A GPU of the process, and those that might take its place.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// Which.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// Each GPU there.
    pub with: Vec<Candidate>,
}

/// A GPU that might take the place.
#[derive(Debug, Clone, Serialize)]
pub struct Candidate {
    /// Which.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// Why it cannot: nothing, if it can.
    pub differences: Vec<Difference>,
}

/// In what it is not good enough.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    /// What is compared.
    pub property: &'static str,
    /// `same` or `at_least`.
    pub need: &'static str,
    /// In the checkpoint.
    pub from: u64,
    /// There.
    pub to: u64,
    /// The variable that ignores it.
    pub variable: Option<&'static str>,
}

impl Report {
    pub(super) fn new(to: &Path, topology: &Topology, checkpoints: Vec<Checkpoint>) -> Self {
        let hidden = topology.hidden().iter().map(|hidden| HiddenNode {
            node: hidden.node,
            gpu_id: hidden.gpu_id,
            why: hidden.why.clone(),
        });
        Report {
            restorable: checkpoints.iter().all(|checkpoint| checkpoint.restorable),
            to: to.display().to_string(),
            gpus: topology.gpus().map(|gpu| Gpu::from(GpuRef::of(gpu))).collect(),
            hidden: hidden.collect(),
            checkpoints,
        }
    }
}

impl Checkpoint {
    pub(super) fn new(
        from: String,
        pid: Option<u32>,
        topology: &Topology,
        outcome: Result<Plan, Refusal>,
    ) -> Self {
        let unplaced = || {
            topology.gpus().map(|gpu| Placed { gpu: GpuRef::of(gpu).into(), to: None }).collect()
        };
        let (gpus, cpus, refusal, text) = match outcome {
            Ok(plan) => {
                let cpu = |pair: &vramstream::topology::CpuPair| Cpu {
                    node: pair.source,
                    to: pair.destination,
                };
                (placed(&plan), plan.cpus.iter().map(cpu).collect(), None, String::new())
            }
            Err(refusal) => (unplaced(), Vec::new(), Some(Why::new(&refusal)), refusal.to_string()),
        };
        Checkpoint { from, pid, restorable: refusal.is_none(), gpus, cpus, refusal, text }
    }
}

fn placed(plan: &Plan) -> Vec<Placed> {
    let placed =
        |pair: &GpuPair| Placed { gpu: pair.source.into(), to: Some(pair.destination.into()) };
    plan.gpus.iter().map(placed).collect()
}

impl Why {
    fn new(refusal: &Refusal) -> Self {
        let rule = |reason: &Reason| Rule { kind: reason.kind(), text: reason.to_string() };
        let overrides = refusal.overrides.as_ref();
        Why {
            reasons: refusal.reasons.iter().map(rule).collect(),
            compared: refusal.gpus.iter().map(compared).collect(),
            overrides: overrides.map(|list| list.iter().map(|variable| variable.name()).collect()),
            subset: refusal.subset.as_ref().map(placed),
        }
    }
}

fn compared(verdict: &GpuVerdict) -> Compared {
    let difference = |found: &vramstream::topology::Difference| Difference {
        property: found.property,
        need: match found.need {
            Need::Same => "same",
            Need::AtLeast => "at_least",
        },
        from: found.source,
        to: found.destination,
        variable: found.variable.map(vramstream::topology::Variable::name),
    };
    let candidate = |candidate: &vramstream::topology::Candidate| Candidate {
        gpu: candidate.gpu.into(),
        differences: candidate.differences.iter().map(difference).collect(),
    };
    Compared { gpu: verdict.gpu.into(), with: verdict.candidates.iter().map(candidate).collect() }
}
