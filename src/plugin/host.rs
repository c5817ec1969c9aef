//! What a plugin can ask of CRIU. [`edge`](super::edge) has the CRIU that has loaded it; tests have
//! their own.

use std::{
    fmt, io,
    os::fd::{BorrowedFd, OwnedFd},
};

use crate::abi::criu::Level;

/// The name by which inventories and CRIU know the plugin.
pub(super) const NAME: &str = "amdgpu_plugin";

/// What an image is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// To write it.
    Write,
    /// To read it.
    Read,
}

/// A CRIU.
pub(super) trait Host: Send {
    /// How many hooks it knows; `None` if it does not say.
    fn hooks(&self) -> Option<usize>;

    /// Whether it shows messages of this level.
    fn shows(&self, level: Level) -> bool;

    /// Shows a message, one line without its end.
    fn log(&self, level: Level, line: &str);

    /// Its images directory.
    fn images_dir(&self) -> io::Result<BorrowedFd<'_>>;

    /// Whether images go to, or come from, an image streamer.
    fn streams(&self) -> bool;

    /// Opens an image of the streamer; `None` if it has none of this name.
    fn open_stream(&self, name: &str, access: Access) -> io::Result<Option<OwnedFd>>;

    /// Says in the inventory that the image needs this plugin. CRIU 4.0 and older cannot.
    fn add_to_inventory(&self) -> io::Result<()>;

    /// Takes the plugin's name from the inventory: whether it was there. `None` where nobody can say:
    /// inventories of CRIU 4.0 and older have no list of plugins.
    fn take_from_inventory(&self) -> Option<bool>;

    /// Keeps a descriptor for all tasks of a restore, until its end.
    fn store(&self, fd: BorrowedFd<'_>) -> io::Result<i32>;

    /// Another descriptor of what was stored.
    fn stored(&self, number: i32) -> io::Result<OwnedFd>;

    /// The tasks of this restore whose GPU state was restored, by any of them so far.
    fn restored(&self) -> u32;

    /// Counts one more of those.
    fn count_restored(&self);

    /// Starts a process beside its own which does some work. `None` where processes are played.
    fn beside(&self, work: Work) -> io::Result<Option<Box<dyn Beside>>>;
}

/// What a process beside CRIU's does, with its end of a socket and a handle of CRIU's process.
pub(super) type Work = Box<dyn FnOnce(OwnedFd, OwnedFd)>;

/// A process beside CRIU's. Dropping it ends it.
pub(super) trait Beside: fmt::Debug + Send {
    /// Our end of the socket.
    fn socket(&self) -> BorrowedFd<'_>;
}
