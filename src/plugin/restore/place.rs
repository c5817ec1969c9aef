//! Which GPU here takes the place of which GPU of the checkpoint, and its open render node.
//!
//! sysfs shows GPUs that a container has no device for, so each GPU is opened before it is planned
//! with; one that cannot be is hidden from the plan, with the reason. Nothing but `open` is asked of
//! a device before there is a plan.
//!
//! Where a container's `/dev` is a tmpfs, its device nodes come back as they were on the other host:
//! the GPU that the container may use here has no node then, or an old one has its name. Where there
//! is no plan without them, such nodes are made, as a container that is started here would have them.
//! What may be used is not decided by that, but by the device cgroup, in sysfs as well.

use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd},
    path::PathBuf,
};

use super::super::{
    context::Context,
    error::{Error, Result},
    gpus::render_path,
};
use nix::errno::Errno;

use crate::{
    abi::{criu::Level, kfd::CriuDeviceBucket},
    device::{DeviceError, KFD_NODE, Kfd, Node},
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
    let mut seen = Seen::look(cx)?;
    let plan_on = |machine: &_| plan(source, machine, cx.settings.checks);
    if plan_on(&seen.machine).is_err() && make(cx, &seen.without_node) {
        seen = Seen::look(cx)?;
    }
    let Seen { machine, mut open, .. } = seen;
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

/// Opens `/dev/kfd`, which may not be what it was either.
pub(super) fn open_kfd(cx: Context<'_>) -> Result<Kfd> {
    let driver = &**cx.system.driver();
    match Kfd::open(driver) {
        Err(error) if is_missing(&error) && make(cx, &[KFD_NODE.into()]) => Ok(Kfd::open(driver)?),
        kfd => Ok(kfd?),
    }
}

/// The GPUs of this machine, as this task sees them.
struct Seen {
    /// Those that can be used; the others are hidden in it.
    machine: Topology,
    /// Their render nodes.
    open: HashMap<u32, Node>,
    /// Where others should have theirs.
    without_node: Vec<PathBuf>,
}

impl Seen {
    /// Opens the render node of each GPU; hides those that cannot be opened.
    fn look(cx: Context<'_>) -> Result<Self> {
        let driver = &**cx.system.driver();
        let mut machine = Topology::from_sysfs(cx.system.topology_root())?;
        let gpus: Vec<_> = machine.gpus().map(|gpu| (gpu.gpu_id, gpu.render_minor())).collect();
        let mut open = HashMap::with_capacity(gpus.len());
        let mut without_node = Vec::new();
        for (gpu_id, minor) in gpus {
            let path = render_path(minor);
            match Node::open(driver, &path) {
                Ok(node) => drop(open.insert(gpu_id, node)),
                Err(error) => {
                    if is_missing(&error) {
                        without_node.push(path);
                    }
                    machine.hide(gpu_id, error.to_string());
                }
            }
        }
        Ok(Seen { machine, open, without_node })
    }
}

fn is_missing(error: &DeviceError) -> bool {
    matches!(error, DeviceError::Call { errno: Errno::ENOENT, .. })
}

/// Makes device nodes, as far as that is allowed: whether there are any now.
fn make(cx: Context<'_>, paths: &[PathBuf]) -> bool {
    let mut any = false;
    for path in paths {
        let node = path.display();
        match cx.system.driver().make_node(path) {
            Ok(()) => {
                any = true;
                cx.say(Level::Info, &format!("{node} was not here and is made"));
            }
            Err(error) => {
                cx.say(Level::Info, &format!("{node} is not here and cannot be made: {error}"));
            }
        }
    }
    any
}
