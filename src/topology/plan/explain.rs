//! A refusal in words.

use std::fmt;

use super::{
    Candidate, CpuNode, Difference, GpuRef, GpuVerdict, Hive, Need, Plan, Reason, Refusal,
};
use crate::topology::Hidden;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this checkpoint cannot be restored here:")?;
        for reason in &self.reasons {
            write!(f, "\n- {reason}")?;
            if let Reason::NoCandidate { gpu } = reason
                && let Some(verdict) = self.gpus.iter().find(|verdict| verdict.gpu == *gpu)
            {
                write!(f, "{verdict}")?;
            }
        }
        if let Some(plan) = &self.subset {
            let ids = plan.gpus.iter().map(|pair| pair.destination.to_string());
            let ids: Vec<_> = ids.collect();
            write!(f, "\nIt could be, by a process that sees only {}", ids.join(", "))?;
        }
        match self.overrides.as_deref() {
            Some(variables) if !variables.is_empty() => {
                let list: Vec<_> = variables.iter().map(|name| format!("{name}=0")).collect();
                write!(f, "\nIt could be with {}", list.join(" "))?;
            }
            _ => {}
        }
        for Hidden { node, why, .. } in &self.hidden {
            write!(f, "\nNode {node} here is hidden: {why}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::GpuCount { source, destination } => write!(
                f,
                "the process saw {}, here it would see {}: the kernel restores it only where it sees \
                 as many; {}",
                gpus(*source),
                gpus(*destination),
                if source < destination {
                    "hide the others from it, with a device cgroup (a container that has only some)"
                } else {
                    "it needs a machine, or a container, with more"
                },
            ),
            Reason::NoCandidate { gpu } => write!(f, "no GPU here can take the place of {gpu}"),
            Reason::TooFewCandidates { sources, destinations } => write!(
                f,
                "{} of the checkpoint ({}) fit only onto {} here ({})",
                gpus(sources.len()),
                list(sources),
                destinations.len(),
                list(destinations)
            ),
            Reason::NoHive { hive, hives } if hives.is_empty() => {
                write!(f, "the XGMI hive of {hive} needs one here, and there is none")
            }
            Reason::NoHive { hive, hives } => {
                write!(f, "the XGMI hive of {hive} fits into no hive here")?;
                for verdict in hives {
                    let (takes, all) = (verdict.takes, hive.0.len());
                    write!(f, "\n    {}: can take {takes} of its {all} GPUs", verdict.hive)?;
                }
                Ok(())
            }
            Reason::TooFewHives { sources, destinations } => {
                let (there, here) = (sources.len(), destinations.len());
                write!(
                    f,
                    "{there} XGMI hives of the checkpoint need as many here and fit only into {here}:"
                )?;
                let all = |hives: &[Hive]| {
                    let all: Vec<_> = hives.iter().map(ToString::to_string).collect();
                    all.join(" / ")
                };
                write!(f, "\n    checkpoint: {}\n    here: {}", all(sources), all(destinations))
            }
            Reason::HivesTogether => f.write_str(
                "each XGMI hive of the checkpoint fits into one here, but not all of them at once \
                 with the other GPUs",
            ),
            Reason::CpuNodes { source, destination } => {
                write!(
                    f,
                    "the GPUs of one CPU node cannot stay together, and apart from those of others \
                     (KFD_NUMA_CHECK=0 ignores it)"
                )?;
                for (place, nodes) in [("checkpoint", source), ("here", destination)] {
                    for CpuNode { node, gpus } in nodes {
                        write!(f, "\n    {place}: CPU node {node} with {}", list(gpus))?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for GpuVerdict {
    /// Lines to follow another one. GPUs with the same differences share them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told: Vec<(Vec<GpuRef>, &[Difference])> = Vec::new();
        for Candidate { gpu, differences } in &self.candidates {
            match told.iter_mut().find(|(_, known)| known == differences) {
                Some((gpus, _)) => gpus.push(*gpu),
                None => told.push((vec![*gpu], differences)),
            }
        }
        for (gpus, differences) in told {
            write!(f, "\n    {}:", list(&gpus))?;
            for difference in differences {
                write!(f, "\n        {difference}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { property, need, source, destination, variable } = self;
        let need = match need {
            Need::Same => "",
            Need::AtLeast => "at least ",
        };
        write!(f, "{property} is {destination}, and {need}{source} is needed")?;
        match variable {
            Some(variable) => write!(f, " ({variable}=0 ignores it)"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Hive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list(&self.0))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, pair) in self.gpus.iter().enumerate() {
            let between = if at == 0 { "" } else { "\n" };
            write!(f, "{between}{} -> {}", pair.source, pair.destination)?;
        }
        Ok(())
    }
}

fn list(gpus: &[GpuRef]) -> String {
    let names: Vec<_> = gpus.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn gpus(count: usize) -> String {
    match count {
        1 => "1 GPU".into(),
        n => format!("{n} GPUs"),
    }
}
