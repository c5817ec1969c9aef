//! Writes an image into a directory: all of its shards appear, or none.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{
    FileIo, directory::Directory, is_temporary, resembles_shard, shard::FileShard, shard_name,
    temporary_name,
};
use crate::{
    error::{Error, Result},
    format::ImageId,
    transport::{Destination, ShardWriter},
};

/// A directory to write an image into. Until [`commit`](Destination::commit) it holds only
/// temporary files; dropping this without it removes them, and the directory if it was made here.
#[derive(Debug)]
pub struct FileDestination {
    dir: PathBuf,
    shards: u32,
    io: FileIo,
    /// From `open` to the end of this value: the lock is held even after the commit.
    image: Option<Unpublished>,
}

impl FileDestination {
    /// A destination with that many shards, in a directory that is made if it is missing.
    pub fn new(dir: impl Into<PathBuf>, shards: u32, io: FileIo) -> Self {
        FileDestination { dir: dir.into(), shards, io, image: None }
    }
}

impl Destination for FileDestination {
    fn shards(&self) -> u32 {
        self.shards
    }

    fn memory_bytes(&self) -> u64 {
        u64::from(self.shards) * super::STAGING_PER_SHARD as u64
    }

    fn open(&mut self, image: ImageId) -> Result<Vec<Box<dyn ShardWriter>>> {
        let directory = Directory::lock(&self.dir)?;
        let unpublished = Unpublished {
            directory,
            image,
            made: 0,
            count: self.shards,
            finished: Arc::default(),
            published: false,
        };
        self.image.insert(unpublished).open(self.io)
    }

    fn commit(&mut self, _check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let image = self.image.as_mut().filter(|image| !image.published);
        image.ok_or_else(|| Error::DumpIncomplete("no shard was written".into()))?.publish()
    }

    fn abort(&mut self, _reason: &str) {
        self.image = None;
    }
}

/// The shards of an image that is being written. Removes them when it is dropped, unless they were
/// published.
#[derive(Debug)]
struct Unpublished {
    directory: Directory,
    image: ImageId,
    count: u32,
    /// How many of the temporary files were made, from shard 0 on.
    made: u32,
    /// How many shards are whole and safe.
    finished: Arc<AtomicU32>,
    published: bool,
}

impl Unpublished {
    fn open(&mut self, io: FileIo) -> Result<Vec<Box<dyn ShardWriter>>> {
        for name in self.directory.names()? {
            if resembles_shard(&name) {
                return Err(Error::Usage(format!(
                    "there is an image already: {}; choose another directory or remove it first",
                    self.directory.describe(&name)
                )));
            }
            if is_temporary(&name) {
                // Whoever wrote it is dead, since the lock is ours.
                let removed = self.directory.remove(&name);
                removed.map_err(Error::io(|| {
                    format!("remove the leftover {}", self.directory.describe(&name))
                }))?;
            }
        }
        let mut writers: Vec<Box<dyn ShardWriter>> = Vec::new();
        for shard in 0..self.count {
            let file = self.directory.create(&self.temporary(shard))?;
            self.made += 1;
            let name = self.directory.describe(&self.name(shard));
            let finished = Arc::clone(&self.finished);
            writers.push(Box::new(FileShard::new(name, file, self.count, io, finished)?));
        }
        Ok(writers)
    }

    fn name(&self, shard: u32) -> String {
        shard_name(shard, self.count)
    }

    fn temporary(&self, shard: u32) -> String {
        temporary_name(self.image, shard)
    }

    /// Renames all shards, or none. Shard 0 comes last: while it is missing there is no image.
    fn publish(&mut self) -> Result<()> {
        let finished = self.finished.load(Ordering::Acquire);
        if finished != self.count {
            let missing = self.count - finished;
            return Err(Error::DumpIncomplete(format!("{missing} shards were not finished")));
        }
        let order: Vec<u32> = (1..self.count).chain([0]).collect();
        for (done, &shard) in order.iter().enumerate() {
            let name = self.name(shard);
            if let Err(error) = self.directory.rename(&self.temporary(shard), &name) {
                self.withdraw(&order[..done]);
                let doing = || format!("publish {}", self.directory.describe(&name));
                return Err(Error::io(doing)(error));
            }
        }
        if let Err(error) = self.directory.sync() {
            self.withdraw(&order);
            return Err(error);
        }
        self.published = true;
        Ok(())
    }

    /// Takes published shards back, the last one first.
    fn withdraw(&self, shards: &[u32]) {
        for &shard in shards.iter().rev() {
            let name = self.name(shard);
            if self.directory.rename(&name, &self.temporary(shard)).is_err() {
                let _ = self.directory.remove(&name);
            }
        }
    }
}

impl Drop for Unpublished {
    fn drop(&mut self) {
        if !self.published {
            for shard in 0..self.made {
                let _ = self.directory.remove(&self.temporary(shard));
            }
            self.directory.remove_if_made();
        }
    }
}
