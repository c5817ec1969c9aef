//! File names that are safe to join to a directory.

use std::{fmt, sync::Arc};

/// A plain file name; see "Names" in [the specification](super). Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(Arc<str>);

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No name.
    #[error("a file name is empty")]
    Empty,
    /// Longer than a file name can be.
    #[error("a file name has {0} bytes, the limit is 255")]
    TooLong(usize),
    /// It would name something outside the directory of the image.
    #[error("{0:?} is not a plain file name")]
    NotPlain(String),
}

impl FileName {
    /// Checks a name.
    pub fn new(name: &str) -> Result<Self, NameError> {
        match name {
            "" => Err(NameError::Empty),
            _ if name.len() > 255 => Err(NameError::TooLong(name.len())),
            "." | ".." => Err(NameError::NotPlain(name.to_owned())),
            _ if name.contains(['/', '\0']) => Err(NameError::NotPlain(name.to_owned())),
            _ => Ok(FileName(name.into())),
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for FileName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl AsRef<std::path::Path> for FileName {
    fn as_ref(&self) -> &std::path::Path {
        self.0.as_ref().as_ref()
    }
}

impl std::borrow::Borrow<str> for FileName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_directory_are_refused() {
        let long = "x".repeat(256);
        for bad in ["", ".", "..", "/etc/x", "../x", "a/b", "a\0b", "/", &long] {
            assert!(FileName::new(bad).is_err(), "{bad:?}");
        }
        for good in ["pages-1.img", "...", ".x", "a b", "ü.img", &long[1..]] {
            assert_eq!(FileName::new(good).unwrap().as_str(), good);
        }
    }
}
