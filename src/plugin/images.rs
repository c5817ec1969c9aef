//! Where image files go and come from: CRIU's directory, or its image streamer.
//!
//! In a directory a file appears under its name only when it is whole, so an older one of that name
//! is either still there or replaced, never mixed. To a streamer it is a pipe: who writes must write
//! all of it, and who reads must have read it before the next one is opened, or a streamer that
//! serves one file after the other waits for ever.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, OwnedFd},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{
    error::{Error, Result},
    host::{Access, Host},
};
use crate::image::{ImageError, MOST_MESSAGE_BYTES, framing};

/// The names of files that a dump has published in a directory.
pub(super) type Published = RefCell<Vec<String>>;

/// The images of a dump or a restore.
#[derive(Clone, Copy)]
pub(super) struct Images<'a> {
    host: &'a dyn Host,
    published: &'a Published,
}

impl<'a> Images<'a> {
    pub(super) fn new(host: &'a dyn Host, published: &'a Published) -> Self {
        Images { host, published }
    }

    /// Whether they are pipes.
    pub(super) fn are_streamed(self) -> bool {
        self.host.streams()
    }

    /// Writes a whole file.
    pub(super) fn write(self, name: &str, bytes: &[u8]) -> Result<()> {
        let failed = || Error::file(name, "write");
        if self.are_streamed() {
            return self.create_stream(name)?.write_all(bytes).map_err(failed());
        }
        let mut file = self.create(name)?;
        file.file().write_all(bytes).map_err(failed())?;
        self.publish(file)
    }

    /// Gives a file its name.
    pub(super) fn publish(self, file: NewFile) -> Result<()> {
        self.published.borrow_mut().push(file.publish()?);
        Ok(())
    }

    /// A dump has failed: nothing of it stays in the directory.
    pub(super) fn take_back(self) -> Result<()> {
        self.forget(&self.published.take())
    }

    /// A pipe into the streamer.
    pub(super) fn create_stream(self, name: &str) -> Result<File> {
        let opened = self.host.open_stream(name, Access::Write);
        let pipe = opened.map_err(Error::criu(format!("open {name} to the image streamer")))?;
        let nowhere = || Error::file(name, "open")(io::ErrorKind::NotFound.into());
        Ok(pipe.ok_or_else(nowhere)?.into())
    }

    /// A new file in the directory, which nobody sees yet.
    pub(super) fn create(self, name: &str) -> Result<NewFile> {
        let dir = self.host.images_dir().and_then(|dir| dir.try_clone_to_owned());
        let dir = dir.map_err(Error::criu("tell its images directory"))?;
        let unfinished = format!(".{name}.unfinished");
        // Whatever a dump that died has left there, or somebody has put there, is not written to.
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let file = remove(&dir, &unfinished)
            .and_then(|()| openat(&dir, unfinished.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR));
        let file = file.map_err(|errno| Error::file(name, "create")(errno.into()))?;
        Ok(NewFile { dir, name: name.to_owned(), unfinished, file: file.into(), published: false })
    }

    /// Opens a file; `None` if there is none of this name.
    pub(super) fn open(self, name: &str) -> Result<Option<File>> {
        if self.are_streamed() {
            let opened = self.host.open_stream(name, Access::Read);
            let pipe = opened.map_err(Error::criu(format!("open {name} from the image streamer")));
            return Ok(pipe?.map(File::from));
        }
        let dir = self.host.images_dir().map_err(Error::criu("tell its images directory"))?;
        // (What is no file must not make anybody wait for who writes to it.)
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(Error::file(name, "open")(errno.into())),
        };
        if file.metadata().map_err(Error::file(name, "look at"))?.is_file() {
            return Ok(Some(file));
        }
        Err(Error::Content { file: name.to_owned(), what: "it is not a regular file".into() })
    }

    /// Removes what an older dump has left under these names in the directory: a restore would take
    /// it for something of this one.
    pub(super) fn forget(self, names: &[String]) -> Result<()> {
        if self.are_streamed() {
            return Ok(());
        }
        let dir = self.host.images_dir().map_err(Error::criu("tell its images directory"))?;
        names.iter().try_for_each(|name| {
            remove(dir, name).map_err(|errno| Error::file(name, "remove the old")(errno.into()))
        })
    }

    /// Reads a whole message, with the size in front of it; `None` if there is no such file.
    pub(super) fn read(self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(mut file) = self.open(name)? else { return Ok(None) };
        let size = framing::read_size(name, &mut file)?;
        if size > MOST_MESSAGE_BYTES {
            let (file, most) = (name.to_owned(), MOST_MESSAGE_BYTES);
            return Err(ImageError::TooLarge { file, size, most }.into());
        }
        let mut bytes = framing::size_header(size).to_vec();
        // What is missing is for who understands the message to say.
        let read = file.take(size).read_to_end(&mut bytes);
        read.map_err(Error::file(name, "read"))?;
        Ok(Some(bytes))
    }
}

/// Removes a file, if there is one.
fn remove(dir: impl AsFd, name: &str) -> nix::Result<()> {
    match unlinkat(dir, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A file that has no name yet. Without one it is removed when this is dropped.
#[derive(Debug)]
pub(super) struct NewFile {
    dir: OwnedFd,
    name: String,
    unfinished: String,
    file: File,
    published: bool,
}

impl NewFile {
    pub(super) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    fn publish(mut self) -> Result<String> {
        let (old, new) = (self.unfinished.as_str(), self.name.as_str());
        renameat(self.dir.as_fd(), old, self.dir.as_fd(), new)
            .map_err(|errno| Error::file(new, "give the whole file its name")(errno.into()))?;
        self.published = true;
        Ok(std::mem::take(&mut self.name))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.published {
            // Whoever gave up has something more important to report.
            let _ = remove(&self.dir, &self.unfinished);
        }
    }
}
