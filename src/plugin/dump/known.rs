//! Which BO a dma-buf is of.
//!
//! Handles do not tell: each open render node has its own, from 1. But a file that imports two
//! dma-bufs of one BO has one handle for both. So there is a file of ours for each GPU, a probe, into
//! which all BOs are imported whose makers are known, and what else comes is compared with them.
//! Nothing of an application's file changes for that.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd},
};

use nix::errno::Errno;

use crate::{
    device::{DeviceError, Driver, RenderNode},
    image::BoName,
    plugin::{error::Result, gpus::render_path},
};

/// The BOs that are known.
#[derive(Debug, Default)]
pub(super) struct Known {
    probes: Vec<Probe>,
}

#[derive(Debug)]
struct Probe {
    minor: u32,
    render: RenderNode,
    /// Who made them, by their handles here.
    bos: HashMap<u32, BoName>,
}

impl Known {
    /// Whether there is any need to know BOs.
    pub(super) fn is_used(&self) -> bool {
        !self.probes.is_empty()
    }

    /// Tells of a BO of a GPU: whose it is, which may be somebody else's who was told of before.
    pub(super) fn enter(
        &mut self,
        driver: &dyn Driver,
        minor: u32,
        dma_buf: impl AsFd,
        name: BoName,
    ) -> Result<BoName> {
        let at = match self.probes.iter().position(|probe| probe.minor == minor) {
            Some(at) => at,
            None => {
                let render = RenderNode::open(driver, &render_path(minor))?;
                self.probes.push(Probe { minor, render, bos: HashMap::new() });
                self.probes.len() - 1
            }
        };
        let Probe { render, bos, .. } = &mut self.probes[at];
        let handle = render.import(dma_buf.as_fd())?;
        Ok(*bos.entry(handle).or_insert(name))
    }

    /// Whose BO a dma-buf is of, whatever its GPU.
    pub(super) fn find(&self, dma_buf: BorrowedFd<'_>) -> Result<Option<BoName>> {
        for Probe { render, bos, .. } in &self.probes {
            let handle = match render.import(dma_buf) {
                Ok(handle) => handle,
                // Of a device that shares nothing with this one.
                Err(DeviceError::Call {
                    errno: Errno::EINVAL | Errno::ENODEV | Errno::EOPNOTSUPP | Errno::EPERM,
                    ..
                }) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(&name) = bos.get(&handle) {
                return Ok(Some(name));
            }
            render.close(handle)?;
        }
        Ok(None)
    }

    /// A BO that was somebody's turns out to be another's.
    pub(super) fn rename(&mut self, old: BoName, new: BoName) {
        let bos = self.probes.iter_mut().flat_map(|probe| probe.bos.values_mut());
        bos.filter(|name| **name == old).for_each(|name| *name = new);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        for &handle in self.bos.keys() {
            // Whoever gave up has something more important to report.
            let _ = self.render.close(handle);
        }
    }
}
