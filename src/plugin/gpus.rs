//! GPUs of a process and their contents, as both a dump and a restore see them.

use std::{collections::HashMap, os::fd::OwnedFd, path::PathBuf};

use super::{
    context::Context,
    error::{Error, Result},
};
use crate::{
    abi::kfd::{CriuBoBucket, flags},
    device::{Driver, RenderNode},
    gpu::{Bo, Contents, Render},
    handoff::Streamer,
};

/// The highest handle of a render node's BO that is restored: handles are given from 1, so as many BOs
/// are made to reach it.
pub(super) const MOST_HANDLES: u32 = 1 << 20;

/// The BOs with contents, GPU by GPU, each in the order of the buckets. Each must have a dma-buf and
/// a GPU: contents that were left out would not be missed before it is too late.
pub(super) fn contents_of(
    nodes: Vec<(u32, PathBuf)>,
    bos: impl Iterator<Item = (CriuBoBucket, Option<OwnedFd>)>,
) -> Result<Vec<Contents>> {
    let mut by_gpu: HashMap<u32, Vec<Bo>> =
        nodes.iter().map(|(gpu_id, _)| (*gpu_id, Vec::new())).collect();
    for (bucket, dma_buf) in bos.filter(|(bucket, _)| has_contents(bucket)) {
        let (Some(dma_buf), Some(bos)) = (dma_buf, by_gpu.get_mut(&bucket.gpu_id)) else {
            return Err(Error::NoContents { addr: bucket.addr, gpu_id: bucket.gpu_id });
        };
        bos.push(Bo { size: bucket.size, dma_buf });
    }
    let contents = nodes.into_iter().map(|(gpu_id, node)| {
        let bos = by_gpu.remove(&gpu_id).unwrap_or_default();
        Contents { gpu_id, node: node.into(), bos }
    });
    Ok(contents.collect())
}

fn has_contents(bucket: &CriuBoBucket) -> bool {
    bucket.alloc_flags & (flags::VRAM | flags::GTT) != 0
}

/// The streamer, if there is one that takes contents itself.
pub(super) fn streamer(cx: Context<'_>) -> Result<Option<Streamer>> {
    if !cx.host.streams() {
        return Ok(None);
    }
    let dir = cx.host.images_dir().map_err(Error::criu("tell its images directory"))?;
    Ok(Streamer::connect(dir)?)
}

/// The same contents, each with a render node that was opened for whoever copies them.
pub(super) fn opened(driver: &dyn Driver, contents: Vec<Contents>) -> Result<Vec<Contents>> {
    let opened = contents.into_iter().map(|contents| {
        let Render::At(path) = &contents.node else { return Ok(contents) };
        let file = RenderNode::open(driver, path)?.into_file()?;
        let node = Render::Open { path: path.clone(), file };
        Ok(Contents { node, ..contents })
    });
    opened.collect()
}

/// Where the render node with a number is.
pub(super) fn render_path(minor: u32) -> PathBuf {
    format!("/dev/dri/renderD{minor}").into()
}
