//! An open render node.

use super::Dump;
use crate::{
    image::{ImageName, RenderNode},
    plugin::{
        context::Context,
        error::{Error, Result},
    },
};

impl Dump {
    /// Writes which GPU an open render node is of.
    pub(super) fn render(&mut self, cx: Context<'_>, id: u32, minor: u32) -> Result<()> {
        let topology = self.topology(cx)?;
        let gpu = topology.gpus().find(|gpu| gpu.render_minor() == minor);
        let Some(gpu_id) = gpu.map(|gpu| gpu.gpu_id) else {
            let hidden: Vec<_> = topology.hidden().iter().map(|node| node.why.as_str()).collect();
            return Err(Error::Unsupported(format!(
                "/dev/dri/renderD{minor}: no GPU of the topology has this render node{}{}",
                if hidden.is_empty() { "" } else { "; hidden are: " },
                hidden.join("; ")
            )));
        };
        // The process that came last has the same task's descriptors, most likely.
        let name = self.processes.iter().rev().find_map(|process| process.name_of(gpu_id));
        // Unless another process follows, which it may belong to, nobody will ask.
        self.early_renders.push(id);
        let image = RenderNode {
            gpu_id: name.unwrap_or(gpu_id),
            id: Some(id),
            render_minor: Some(minor),
            bos: Vec::new(),
        };
        let name = ImageName::Render { id }.to_string();
        let mut bytes = Vec::new();
        image.write(&name, &mut bytes)?;
        cx.images().write(&name, &bytes)
    }
}
