//! What can be wrong with an image file.

use std::io;

use crate::topology::TopologyError;

/// An image file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// It cannot be read.
    #[error("{file}: cannot read: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// It cannot be written.
    #[error("{file}: cannot write: {source}")]
    Write {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// It ends too early.
    #[error("{file}: damaged: it should have {expected} bytes and has {found}")]
    Short {
        /// The file.
        file: String,
        /// How many bytes it should have, as far as that is known.
        expected: u64,
        /// How many there are.
        found: u64,
    },
    /// It says that it is larger than anything of its kind.
    #[error("{file}: damaged: it claims to have {size} bytes; the limit is {most}")]
    TooLarge {
        /// The file.
        file: String,
        /// What it says.
        size: u64,
        /// The limit.
        most: u64,
    },
    /// It is no message.
    #[error("{file}: damaged: no protobuf message of CRIU's amdgpu plugin: {what}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong with it.
        what: String,
    },
    /// Something that must be there is not.
    #[error("{file}: damaged: {field} is missing")]
    Missing {
        /// The file.
        file: String,
        /// What.
        field: String,
    },
    /// Something that is there cannot be so.
    #[error("{file}: damaged: {what}")]
    Invalid {
        /// The file.
        file: String,
        /// What.
        what: String,
    },
    /// More of something than there can be.
    #[error("{file}: more than {most} {what}")]
    TooMany {
        /// The file.
        file: String,
        /// Of what.
        what: &'static str,
        /// The limit.
        most: usize,
    },
    /// The machine in it contradicts itself.
    #[error("{file}: damaged: {source}")]
    Topology {
        /// The file.
        file: String,
        /// How.
        source: TopologyError,
    },
}

/// A file by its name, for errors.
#[derive(Debug, Clone, Copy)]
pub(super) struct File<'a>(pub(super) &'a str);

impl File<'_> {
    pub(super) fn missing(self, field: impl Into<String>) -> ImageError {
        ImageError::Missing { file: self.0.into(), field: field.into() }
    }

    pub(super) fn invalid(self, what: impl Into<String>) -> ImageError {
        ImageError::Invalid { file: self.0.into(), what: what.into() }
    }

    /// A field that must be there.
    pub(super) fn need<T>(self, value: Option<T>, field: &str) -> Result<T, ImageError> {
        value.ok_or_else(|| self.missing(field))
    }

    /// A number that must be that of something else.
    pub(super) fn count(
        self,
        said: u64,
        found: usize,
        field: &str,
        what: &str,
    ) -> Result<(), ImageError> {
        if said == found as u64 {
            return Ok(());
        }
        Err(self.invalid(format!("{field} is {said}, and there are {found} {what}")))
    }
}
