//! Files of `name value` lines, and directories of numbers, read with limits.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use crate::topology::TopologyError;

/// The most bytes of a file: many times what the kernel can show, which is a page.
const MOST_BYTES: usize = 64 << 10;
/// The most entries of a directory that are looked at.
const MOST_ENTRIES: usize = 4096;

/// Why a node was not read.
#[derive(Debug)]
pub(super) enum Failure {
    /// It is not for us.
    Hidden { file: PathBuf, source: io::Error },
    /// It makes no sense.
    Broken(TopologyError),
}

impl From<TopologyError> for Failure {
    fn from(error: TopologyError) -> Self {
        Failure::Broken(error)
    }
}

/// The failure to read a file or directory.
fn failure(file: &Path, source: io::Error) -> Failure {
    let errno = source.raw_os_error().map(Errno::from_raw);
    let file = file.to_owned();
    match errno {
        // A GPU that has been unplugged answers ENODEV.
        Some(Errno::EPERM | Errno::EACCES | Errno::ENOENT | Errno::ENODEV) => {
            Failure::Hidden { file, source }
        }
        _ => Failure::Broken(TopologyError::Read { file, source }),
    }
}

/// The text of a file.
pub(super) fn read(file: &Path) -> Result<String, Failure> {
    let failed = |source| failure(file, source);
    let mut bytes = Vec::new();
    let most = MOST_BYTES as u64 + 1;
    File::open(file).map_err(failed)?.take(most).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MOST_BYTES {
        return Err(TopologyError::TooLarge { file: file.to_owned(), most: MOST_BYTES }.into());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The directories in a directory whose names are numbers, in their order.
pub(super) fn numbered(dir: &Path, what: &'static str, most: usize) -> Result<Vec<u32>, Failure> {
    let failed = |source| failure(dir, source);
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)?.take(MOST_ENTRIES) {
        let entry = entry.map_err(failed)?;
        let number = entry.file_name().to_str().and_then(number);
        // Also a link to a directory.
        numbers.extend(number.filter(|_| entry.path().is_dir()));
    }
    if numbers.len() > most {
        return Err(TopologyError::TooMany { what, most }.into());
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Digits as the kernel prints them; `007` is no number of a node.
fn number(name: &str) -> Option<u32> {
    name.parse().ok().filter(|number: &u32| number.to_string() == name)
}

/// The lines of a file: number, name and value of each.
pub(super) struct Lines<'a> {
    file: &'a Path,
    lines: std::iter::Enumerate<std::str::Lines<'a>>,
    seen: Vec<&'a str>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        Lines { file, lines: text.lines().enumerate(), seen: Vec::new() }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Result<(usize, &'a str, &'a str), TopologyError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (line, text) = self.lines.find(|(_, text)| !text.trim().is_empty())?;
        let line = line + 1;
        let wrong = |what| TopologyError::Line { file: self.file.to_owned(), line, what };
        let parts = text.trim().split_once(char::is_whitespace);
        let Some((name, value)) = parts else {
            return Some(Err(wrong(format!("{text:?} is not a name and a value"))));
        };
        if self.seen.contains(&name) {
            return Some(Err(wrong(format!("{name} is there twice"))));
        }
        self.seen.push(name);
        Some(Ok((line, name, value.trim())))
    }
}

/// A number in decimal, of at most so much.
pub(super) fn value(
    file: &Path,
    line: usize,
    name: &str,
    text: &str,
    most: u64,
) -> Result<u64, TopologyError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text.parse().ok().filter(|value| digits && *value <= most);
    value.ok_or_else(|| TopologyError::Line {
        file: file.to_owned(),
        line,
        what: format!("{name} {text:?} is not a number from 0 to {most}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_that_mean_not_for_you_hide_a_node() {
        for (errno, hides) in [
            (Errno::EPERM, true),
            (Errno::EACCES, true),
            (Errno::ENOENT, true),
            (Errno::ENODEV, true),
            (Errno::EIO, false),
            (Errno::ELOOP, false),
            (Errno::EMFILE, false),
        ] {
            let failure = failure(Path::new("/x"), errno.into());
            assert_eq!(matches!(failure, Failure::Hidden { .. }), hides, "{errno}");
        }
    }
}
