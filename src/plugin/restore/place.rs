//! Which GPU here takes the place of which GPU of the checkpoint, and its open render node.
//!
//! sysfs shows GPUs that a container has no device for, so each GPU is opened before it is planned
//! with; one that cannot be is hidden from the plan, with the reason. Nothing but `open` is asked of
//! a device before there is a plan.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd},
};

use super::super::{
    context::Context,
    error::{Error, Result},
    gpus::render_path,
};
use crate::{
    abi::{criu::Level, kfd::CriuDeviceBucket},
    device::{Driver, Node},
    topology::{Topology, plan},
};

/// A GPU of the process, and the one that takes its place.
#[derive(Debug)]
pub(super) struct Placed {
    /// What the process calls it.
    pub gpu_id: u32,
    /// What it is here.
    pub here: u32,
    /// The number of its render node where the process was dumped.
    pub old_minor: u32,
    /// Its render node here.
    pub minor: u32,
    /// The same, open.
    pub render: Node,
}

impl Placed {
    /// What the driver is told.
    pub(super) fn bucket(&self) -> CriuDeviceBucket {
        CriuDeviceBucket {
            user_gpu_id: self.gpu_id,
            actual_gpu_id: self.here,
            // (A descriptor is never negative.)
            drm_fd: self.render.as_fd().as_raw_fd().cast_unsigned(),
            ..CriuDeviceBucket::default()
        }
    }
}

/// Finds a place for each GPU of a checkpoint; `file` has the checkpoint, for messages.
pub(super) fn place(cx: Context<'_>, source: &Topology, file: &str) -> Result<Vec<Placed>> {
    let mut machine = Topology::from_sysfs(cx.system.topology_root())?;
    let mut open = open_all(&**cx.system.driver(), &mut machine);
    let planned = plan(source, &machine, cx.settings.checks);
    let plan = planned.map_err(|source| Error::Plan { file: file.to_owned(), source })?;
    let mut placed = Vec::with_capacity(plan.gpus.len());
    for pair in plan.gpus {
        let (from, to) = (pair.source, pair.destination);
        cx.say(Level::Info, &format!("{file}: GPU {from} becomes {to}"));
        // (All that were planned with are open.)
        let render = open.remove(&to.gpu_id).ok_or(Error::GivenUp)?;
        placed.push(Placed {
            gpu_id: from.gpu_id,
            here: to.gpu_id,
            old_minor: from.render_minor,
            minor: to.render_minor,
            render,
        });
    }
    Ok(placed)
}

/// Opens the render node of each GPU; hides those that cannot be opened.
fn open_all(driver: &dyn Driver, machine: &mut Topology) -> HashMap<u32, Node> {
    let gpus: Vec<_> = machine.gpus().map(|gpu| (gpu.gpu_id, gpu.render_minor())).collect();
    let mut open = HashMap::with_capacity(gpus.len());
    for (gpu_id, minor) in gpus {
        match Node::open(driver, &render_path(minor)) {
            Ok(node) => drop(open.insert(gpu_id, node)),
            Err(error) => machine.hide(gpu_id, error.to_string()),
        }
    }
    open
}
