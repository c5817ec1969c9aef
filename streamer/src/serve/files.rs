//! What can be served: files by name, each given piece by piece.

use super::pipe_out::PipeOut;
use crate::{error::Result, format::FileName};

/// Images of up to this size are checked whole before their first byte is given: all of CRIU's
/// images whose end is not marked, so that a short one would be believed, are smaller by far.
pub const WHOLE_BYTES: u64 = 16 << 20;

/// The files of an image.
pub trait ImageFiles: Send + Sync {
    /// Opens one for reading from its start; `None` if it was never captured.
    fn open(&self, name: &FileName) -> Result<Option<Box<dyn Pieces>>>;
}

/// Whether there is more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more.
    More,
    /// All of it was given.
    End,
}

/// A file being read.
pub trait Pieces: Send {
    /// Its size.
    fn size(&self) -> u64;

    /// Gives the next piece to a pipe. An error of the pipe itself is told apart by
    /// [`PipeOut::is_closed`].
    fn give(&mut self, pipe: &mut PipeOut) -> Result<Step>;

    /// Reads all of it.
    fn read_all(&mut self, out: &mut Vec<u8>) -> Result<()>;
}
