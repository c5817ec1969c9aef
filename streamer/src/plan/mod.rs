//! Can this checkpoint be restored here, onto which GPUs, and if not, why not?
//!
//! It reads files: the images of a checkpoint, or the topology of the machine it will be made on, and
//! the topology of a machine to restore on. It asks no device and needs no root, so the answer can be
//! had before a checkpoint is made, and for a machine far away of which there is a copy of its
//! topology. What it does not know is which render nodes the restored process can open.

mod report;
mod table;

use std::{
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
};

use vramstream::{
    image::{ImageName, KfdImage},
    topology::{self, Checks, PlanError, Topology},
};

pub use report::{Checkpoint, Gpu, Report};

use crate::error::{Error, Result};

/// The most images of a checkpoint that are looked at: a process has one, seldom more.
const MOST_IMAGES: usize = 4096;

/// Plans the restore of a checkpoint (an `amdgpu-kfd-N.img`, a directory with such files, or a
/// topology) on a machine.
pub fn plan(from: &Path, to: &Path, checks: Checks) -> Result<Report> {
    let sources = sources(from)?;
    let destination = Topology::from_sysfs(to)?;
    let mut checkpoints = Vec::new();
    for source in sources {
        let outcome = match topology::plan(&source.topology, &destination, checks) {
            Ok(plan) => Ok(plan),
            Err(PlanError::Refused(refusal)) => Err(*refusal),
            Err(error) => return Err(Error::Plan { from: source.name, source: error }),
        };
        checkpoints.push(Checkpoint::new(source.name, source.pid, &source.topology, outcome));
    }
    Ok(Report::new(to, &destination, checkpoints))
}

/// What is to be restored.
struct Source {
    name: String,
    pid: Option<u32>,
    topology: Topology,
}

fn sources(from: &Path) -> Result<Vec<Source>> {
    let name = |path: &Path| path.display().to_string();
    if !fs::metadata(from).map_err(looking_at(from))?.is_dir() {
        return Ok(vec![image(from)?]);
    }
    if from.join("nodes").is_dir() {
        let topology = Topology::from_sysfs(from)?;
        return Ok(vec![Source { name: name(from), pid: None, topology }]);
    }
    let mut images: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir(from).map_err(looking_at(from))? {
        let entry = entry.map_err(looking_at(from))?;
        let parsed = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(ImageName::Kfd { id }) = parsed {
            images.push((id, entry.path()));
        }
        if images.len() > MOST_IMAGES {
            let name = name(from);
            return Err(Error::Usage(format!("{name}: more than {MOST_IMAGES} KFD images")));
        }
    }
    if images.is_empty() {
        return Err(Error::Usage(format!(
            "{}: neither a KFD topology (there is no directory nodes) nor the images of a process \
             with AMD GPUs (there is no amdgpu-kfd-N.img; get them out of a streamed image with \
             the command extract)",
            from.display()
        )));
    }
    images.sort_unstable();
    images.iter().map(|(_, path)| image(path)).collect()
}

fn looking_at(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    Error::io(|| format!("look at {}", path.display()))
}

fn image(path: &Path) -> Result<Source> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(Error::io(|| format!("open {name}")))?;
    let image = KfdImage::read(&name, &mut BufReader::new(file))?;
    Ok(Source { name, pid: Some(image.pid), topology: image.topology })
}
