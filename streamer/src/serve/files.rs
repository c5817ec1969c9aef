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

/// What [`Pieces::take`] has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// So many bytes, at least one.
    Bytes(usize),
    /// So many zeros, which were not written anywhere.
    Zeros(u64),
    /// So many bytes, for which there is no room: nothing was taken.
    Larger(usize),
    /// There is no more.
    End,
}

/// A file being read.
pub trait Pieces: Send {
    /// Its size.
    fn size(&self) -> u64;

    /// Gives the next piece to a pipe. An error of the pipe itself is told apart by
    /// [`PipeOut::is_closed`].
    fn give(&mut self, pipe: &mut PipeOut) -> Result<Step>;

    /// Takes the next piece into memory of the caller's, with no other copy where that can be.
    fn take(&mut self, out: &mut [u8]) -> Result<Took>;

    /// Reads all of it.
    fn read_all(&mut self, out: &mut Vec<u8>) -> Result<()>;
}
