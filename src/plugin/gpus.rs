//! GPUs of a process and their contents, as both a dump and a restore see them.

use std::path::PathBuf;

use super::{
    context::Context,
    error::{Error, Result},
};
use crate::{
    device::{Driver, RenderNode},
    gpu::{Contents, Render},
    handoff::Streamer,
};

/// The highest handle of a render node's BO that is restored: handles are given from 1, so as many BOs
/// are made to reach it.
pub(super) const MOST_HANDLES: u32 = 1 << 20;

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
