//! Writes the files of an image into a directory.
//!
//! Everything is written into a temporary directory beside its destination and checked; then the
//! files are moved into place one by one, never over something that is there already. If that
//! fails half-way, what was moved is taken back. So the directory holds the whole image or none of
//! it, and nothing in it that was there before has changed.

use std::{
    collections::HashMap,
    fs::{self, File},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use tempfile::TempDir;

use crate::{
    absorb::{ImageSink, Lane},
    error::{Error, Result},
    format::{ChunkHeader, Codec, FileName, Manifest},
};

/// What the temporary directory's name starts with.
const TEMPORARY: &str = ".vramstream-";

/// Takes an image and writes it to files.
#[derive(Debug)]
pub struct Extraction {
    dir: PathBuf,
    temporary: TempDir,
    /// Names that do not go into the directory.
    external: Vec<FileName>,
    /// Until this is [closed](Self::close).
    created: Mutex<Option<HashMap<u32, FileName>>>,
}

impl Extraction {
    /// Into `dir`, which is made if it is missing. Files named in `external` go elsewhere, see
    /// [`publish`](Self::publish).
    pub fn new(dir: &Path, external: Vec<FileName>) -> Result<Arc<Self>> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(Error::io(|| format!("create the directory {}", dir.display())))?;
        let temporary = tempfile::Builder::new()
            .prefix(TEMPORARY)
            .tempdir_in(dir)
            .map_err(Error::io(|| format!("create a directory in {}", dir.display())))?;
        let dir = dir.to_owned();
        Ok(Arc::new(Extraction {
            dir,
            temporary,
            external,
            created: Mutex::new(Some(HashMap::new())),
        }))
    }

    /// Removes what was not moved into place. Not left to the last who drops this: a thread that
    /// reads a shard may wait for bytes that never come, and hold it to the end of the program.
    pub fn close(&self) {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        *created = None;
        let _ = fs::remove_dir_all(self.temporary.path());
    }

    /// The image is whole: moves its files into place, after they are safe on disk.
    pub fn publish(&self, manifest: &Manifest) -> Result<Published> {
        let mut external = Vec::new();
        let mut moves = Vec::new();
        for file in &manifest.files {
            let from = self.temporary_path(file.file);
            let open = File::options().read(true).write(true).open(&from);
            let open = open.map_err(Error::io(|| format!("open {}", from.display())))?;
            // Zeros at the end were not written.
            open.set_len(file.checksum.len)
                .map_err(Error::io(|| format!("extend {} to its size", file.name)))?;
            if self.external.contains(&file.name) {
                external.push((file.name.clone(), open));
            } else {
                moves.push((from, self.dir.join(&file.name)));
            }
        }
        let dir =
            File::open(&self.dir).map_err(Error::io(|| format!("open {}", self.dir.display())))?;
        let sync = |what: &str| {
            nix::unistd::syncfs(&dir)
                .map_err(Error::io(|| format!("make the {what} in {} safe", self.dir.display())))
        };
        sync("files")?;
        let mut published = Published { files: Vec::with_capacity(moves.len()), external };
        for (from, to) in moves {
            let renamed = renameat2(AT_FDCWD, &from, AT_FDCWD, &to, RenameFlags::RENAME_NOREPLACE);
            if let Err(error) = renamed {
                published.retract();
                return Err(Error::io(|| {
                    format!(
                        "move {} into place: nothing that exists is replaced, extract into an empty directory",
                        to.display()
                    )
                })(error));
            }
            published.files.push(to);
        }
        sync("names")?;
        Ok(published)
    }

    fn temporary_path(&self, file: u32) -> PathBuf {
        self.temporary.path().join(file.to_string())
    }
}

/// An image that is in its directory.
#[derive(Debug)]
pub struct Published {
    files: Vec<PathBuf>,
    /// The files that go elsewhere, open for reading.
    pub external: Vec<(FileName, File)>,
}

impl Published {
    /// Takes everything back: the image does not count after all.
    pub fn retract(self) {
        for file in self.files {
            let _ = fs::remove_file(file);
        }
    }
}

/// Copies a file to a descriptor that the caller gave for it.
pub fn deliver(name: &FileName, mut from: File, to: OwnedFd) -> Result<()> {
    std::io::copy(&mut from, &mut File::from(to))
        .map(drop)
        .map_err(Error::io(|| format!("give {name} to its --ext-file-fds descriptor")))
}

impl ImageSink for Extraction {
    type Lane = ExtractLane;

    fn lane(self: &Arc<Self>) -> Result<ExtractLane> {
        Ok(ExtractLane { extraction: Arc::clone(self), payload: Vec::new(), len: 0, open: None })
    }

    fn file_begin(&self, file: u32, name: &FileName) -> Result<()> {
        // Better now than after all the data.
        let to = self.dir.join(name);
        if !self.external.contains(name) && to.symlink_metadata().is_ok() {
            return Err(Error::Usage(format!(
                "{} exists: nothing is replaced, extract into an empty directory",
                to.display()
            )));
        }
        let path = self.temporary_path(file);
        // The lock is held for as long as the file is made, so that none is made after the end.
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(created) = &mut *created else {
            return Err(Error::DumpIncomplete("the extraction was given up".into()));
        };
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io(|| format!("create {} for {name}", path.display())))?;
        created.insert(file, name.clone());
        Ok(())
    }
}

/// One shard's way into the directory.
#[derive(Debug)]
pub struct ExtractLane {
    extraction: Arc<Extraction>,
    payload: Vec<u8>,
    len: usize,
    /// The file that was written last: the next chunk is most often of the same.
    open: Option<(u32, File)>,
}

impl Lane for ExtractLane {
    fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        if self.payload.len() < len {
            self.payload.resize(len, 0);
        }
        self.len = len;
        Ok(&mut self.payload[..len])
    }

    fn chunk(&mut self, header: &ChunkHeader, decompressed: Option<&[u8]>) -> Result<()> {
        if header.codec == Codec::Zero {
            // A hole; the file gets its size at the end.
            return Ok(());
        }
        if self.open.as_ref().is_none_or(|(file, _)| *file != header.file) {
            let path = self.extraction.temporary_path(header.file);
            let file = File::options().write(true).open(&path);
            let file = file.map_err(Error::io(|| format!("open {}", path.display())))?;
            self.open = Some((header.file, file));
        }
        let Some((_, file)) = &self.open else { return Ok(()) };
        let bytes = decompressed.unwrap_or(&self.payload[..self.len]);
        file.write_all_at(bytes, header.offset).map_err(|error| {
            let created = self.extraction.created.lock().unwrap_or_else(PoisonError::into_inner);
            let name = created.as_ref().and_then(|created| created.get(&header.file));
            let name = name.map(FileName::as_str).unwrap_or_default();
            Error::io(|| format!("write {name} into {}", self.extraction.dir.display()))(error)
        })
    }

    fn finish(self) -> Result<()> {
        Ok(())
    }
}
