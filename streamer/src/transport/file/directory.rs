//! The directory that an image is written into: locked, listed, changed.
//!
//! Everything but opening it goes through its descriptor: a directory that is renamed or replaced
//! meanwhile does not lead a file astray.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags},
    io::Errno,
};

use crate::error::{Error, Result};

/// How often a directory may be removed under our hands before we give up.
const LOCK_TRIES: usize = 16;

/// A directory, locked for as long as this lives.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    fd: OwnedFd,
    /// Whether it was not there before.
    created: bool,
}

impl Directory {
    /// Opens and locks a directory, making it if it is missing.
    pub(super) fn lock(path: &Path) -> Result<Self> {
        let failed = |doing| Error::io(move || format!("{doing} the directory {}", path.display()));
        for _ in 0..LOCK_TRIES {
            let created = match rustix::fs::mkdir(path, Mode::RWXU) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(failed("make")(error)),
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = match rustix::fs::open(path, flags, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(failed("open"))?,
            };
            match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(Error::Usage(format!(
                        "another capture is writing into {}: wait for it, or choose another directory",
                        path.display()
                    )));
                }
                Err(error) => return Err(failed("lock")(error)),
            }
            let directory = Directory { path: path.to_owned(), fd, created };
            // One that gave up may have removed the directory between our opening and locking it.
            if directory.is_at_its_path() {
                return Ok(directory);
            }
        }
        Err(failed("keep")(Errno::NOENT))
    }

    fn is_at_its_path(&self) -> bool {
        match (rustix::fs::fstat(&self.fd), rustix::fs::stat(&self.path)) {
            (Ok(ours), Ok(there)) => (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino),
            _ => false,
        }
    }

    /// Where a file of it is, for messages.
    pub(super) fn describe(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// The names in it that are text; others are none of ours.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let failed = |e: Errno| Error::io(|| format!("list {}", self.path.display()))(e);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            names.extend(entry.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    /// Makes a file, which must not be there.
    pub(super) fn create(&self, name: &str) -> Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(Error::io(|| format!("create {}", self.describe(name))))
    }

    /// Gives a file another name, which must be free.
    pub(super) fn rename(&self, from: &str, to: &str) -> rustix::io::Result<()> {
        match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            // Some file systems (NFS) cannot promise that in one step, but have links.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                rustix::fs::linkat(&self.fd, from, &self.fd, to, AtFlags::empty())?;
                self.remove(from)
            }
            other => other,
        }
    }

    /// Removes a file.
    pub(super) fn remove(&self, name: &str) -> rustix::io::Result<()> {
        rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())
    }

    /// Makes names safe.
    pub(super) fn sync(&self) -> Result<()> {
        let flushed: io::Result<()> = rustix::fs::fsync(&self.fd).map_err(Into::into);
        flushed.map_err(Error::io(|| format!("flush the directory {}", self.path.display())))
    }

    /// Removes the directory if it was made here and is empty.
    pub(super) fn remove_if_made(&self) {
        if self.created && self.is_at_its_path() {
            let _ = rustix::fs::rmdir(&self.path);
        }
    }
}
