//! Device nodes by their numbers, whatever they are called.
//!
//! A container's `/dev` is not always that of the host. A render node of the host may be mounted under
//! another name, and after a restore on another host a tmpfs has the nodes of the old one. So a node
//! is taken for a device if it has the device's number, and a name alone says nothing.

use std::{
    ffi::OsString,
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open as open_path},
    libc::dev_t,
    sys::stat::{Mode, SFlag, mknod, stat},
    unistd::unlink,
};

use super::numbers;

/// Opens the device that a path is the usual name of, for reading and writing: there, or under another
/// name in the same directory. Any other path is opened as it is.
pub(super) fn open(path: &Path) -> nix::Result<OwnedFd> {
    match numbers::of_name(path) {
        Some(number) => open_path(&find(path, number)?, flags(), Mode::empty()),
        None => open_path(path, flags(), Mode::empty()),
    }
}

/// Makes the node of a device under its usual name, in the place of a device node of another number if
/// there is one. The device cgroup decides whether that is allowed, and whether it can be opened.
pub(super) fn make(path: &Path) -> nix::Result<()> {
    make_numbered(path, numbers::of_name(path).ok_or(Errno::ENXIO)?)
}

fn flags() -> OFlag {
    OFlag::O_RDWR | OFlag::O_CLOEXEC
}

/// Where the device with a number is. Not at a path of another number: ENOENT.
fn find(path: &Path, number: dev_t) -> nix::Result<PathBuf> {
    let here = number_of(path);
    if here == Ok(Some(number)) {
        return Ok(path.to_owned());
    }
    let dir = path.parent().ok_or(Errno::ENOENT)?;
    let mut names: Vec<_> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    names.sort();
    let found = names.into_iter().find(|name| number_of(name) == Ok(Some(number)));
    found.ok_or(here.err().unwrap_or(Errno::ENOENT))
}

/// The number of a device node; `None` if something else is there.
fn number_of(path: &Path) -> nix::Result<Option<dev_t>> {
    let stat = stat(path)?;
    let is_device = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR;
    Ok(is_device.then_some(stat.st_rdev))
}

fn make_numbered(path: &Path, number: dev_t) -> nix::Result<()> {
    match number_of(path) {
        Ok(Some(there)) if there == number => return Ok(()),
        Ok(None) => return Err(Errno::EEXIST),
        Ok(Some(_)) | Err(Errno::ENOENT) => {}
        Err(error) => return Err(error),
    }
    // Under a name of its own first: others see the old node or the new one.
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or(Errno::EINVAL)?);
    name.push(format!(".{}", std::process::id()));
    let new = path.with_file_name(name);
    let mode = Mode::from_bits_truncate(0o666);
    mknod(&new, SFlag::S_IFCHR, mode, number)?;
    let moved = fs::rename(&new, path);
    moved.map_err(|error| {
        let _ = unlink(&new);
        error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use nix::{sys::stat::fstat, unistd::geteuid};

    use super::*;

    /// A directory in which a name stands for another device: without root, by a link.
    fn dir(names: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, device) in names {
            symlink(device, dir.path().join(name)).unwrap();
        }
        dir
    }

    fn number(path: &str) -> dev_t {
        number_of(Path::new(path)).unwrap().unwrap()
    }

    #[test]
    fn a_device_is_found_under_its_name() {
        let dir = dir(&[("a", "/dev/null"), ("b", "/dev/null"), ("c", "/dev/zero")]);
        let b = dir.path().join("b");
        assert_eq!(find(&b, number("/dev/null")), Ok(b));
    }

    #[test]
    fn a_device_is_found_under_another_name() {
        let dir = dir(&[("a", "/dev/zero"), ("b", "/dev/null")]);
        fs::write(dir.path().join("0"), "no device").unwrap();
        for missing_or_another in ["nothing", "b", "0"] {
            let found = find(&dir.path().join(missing_or_another), number("/dev/zero"));
            assert_eq!(found, Ok(dir.path().join("a")));
        }
    }

    #[test]
    fn another_device_under_its_name_is_not_it() {
        let dir = dir(&[("a", "/dev/zero")]);
        for name in ["a", "b"] {
            let found = find(&dir.path().join(name), number("/dev/null"));
            assert_eq!(found, Err(Errno::ENOENT));
        }
        assert_eq!(find(&dir.path().join("no/a"), number("/dev/null")), Err(Errno::ENOENT));
    }

    #[test]
    fn a_node_is_made_and_takes_the_place_of_another() {
        if !geteuid().is_root() {
            // Only root may make one; scripts/test runs as root.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node");
        for device in ["/dev/zero", "/dev/null", "/dev/null"] {
            make_numbered(&path, number(device)).unwrap();
            assert_eq!(number_of(&path), Ok(Some(number(device))));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        let file = dir.path().join("file");
        fs::write(&file, "kept").unwrap();
        assert_eq!(make_numbered(&file, number("/dev/null")), Err(Errno::EEXIST));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0);
    }

    #[test]
    fn other_paths_are_opened_as_they_are() {
        let null = open(Path::new("/dev/null")).unwrap();
        assert_eq!(fstat(&null).unwrap().st_rdev, number("/dev/null"));
        assert_eq!(open(Path::new("/nonexistent")).err(), Some(Errno::ENOENT));
        assert_eq!(make(Path::new("/dev/null")), Err(Errno::ENXIO));
    }
}
