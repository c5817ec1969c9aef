//! The answer, as people read it.

use std::fmt;

use super::{Checkpoint, Gpu, Report};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = match self.hidden.len() {
            0 => String::new(),
            n => format!(", {n} hidden"),
        };
        writeln!(f, "{:<12} {} ({}{hidden})", "here", self.to, gpus(self.gpus.len()))?;
        self.checkpoints.iter().try_for_each(|checkpoint| write!(f, "\n{checkpoint}"))
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid.map_or(String::new(), |pid| format!("process {pid}, "));
        let count = gpus(self.gpus.len());
        writeln!(f, "{:<12} {} ({pid}{count})", "checkpoint", self.from)?;
        if !self.restorable {
            return writeln!(f, "{}", self.text);
        }
        writeln!(
            f,
            "\n{:<8} {:>5}  {:<16} {:<8} {:>5}  render node",
            "GPU", "node", "render node", "goes to", "node"
        )?;
        for placed in &self.gpus {
            let (from, to) = (placed.gpu, placed.to.unwrap_or(placed.gpu));
            let row = |Gpu { gpu_id, node, render_minor }: Gpu| {
                (format!("{gpu_id:#06x}"), node, format!("renderD{render_minor}"))
            };
            let ((id, node, render), (to_id, to_node, to_render)) = (row(from), row(to));
            writeln!(f, "{id:<8} {node:>5}  {render:<16} {to_id:<8} {to_node:>5}  {to_render}")?;
        }
        for cpu in &self.cpus {
            writeln!(f, "GPUs of CPU node {} go to GPUs of CPU node {}", cpu.node, cpu.to)?;
        }
        Ok(())
    }
}

fn gpus(count: usize) -> String {
    match count {
        1 => "1 GPU".into(),
        n => format!("{n} GPUs"),
    }
}
