//! From what the command line says to transports.

use std::{
    collections::HashSet,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Options, Place, descriptors};
use crate::{
    error::{Error, Result},
    format::FileName,
    transport::{
        Destination, Origin,
        file::{FileDestination, FileIo, FileOrigin},
        pipe::{PipeDestination, PipeOrigin},
        tcp::{TcpDestination, Timeouts},
    },
};

/// Where a capture goes.
pub(super) fn destination(options: &Options) -> Result<Box<dyn Destination>> {
    Ok(match &options.to {
        Some(Place::Directory(dir)) => {
            let io = FileIo { direct: !options.no_direct, ..FileIo::default() };
            Box::new(FileDestination::new(dir, options.shards, io))
        }
        Some(Place::Tcp(address)) => {
            Box::new(TcpDestination::new(address, options.connections, timeouts(options))?)
        }
        None => Box::new(PipeDestination::new(shards(options, 1)?)),
    })
}

/// Where an image comes from: `image` if the command was given one, otherwise the options.
pub(super) fn origin(image: Option<PathBuf>, options: &Options) -> Result<Box<dyn Origin>> {
    let place = match (image, &options.from) {
        (Some(_), Some(_)) => {
            return Err(Error::Usage("give either an image or --from, not both".into()));
        }
        (Some(path), None) if path.is_dir() => Some(Place::Directory(path)),
        (Some(path), None) => return one_file(&path),
        (None, place) => place.clone(),
    };
    Ok(match place {
        Some(Place::Directory(dir)) => Box::new(FileOrigin::new(dir)),
        Some(Place::Tcp(_)) => {
            return Err(Error::Usage("images come over TCP with the command receive".into()));
        }
        None => Box::new(PipeOrigin::new(shards(options, 0)?)),
    })
}

fn one_file(path: &Path) -> Result<Box<dyn Origin>> {
    let file =
        std::fs::File::open(path).map_err(Error::io(|| format!("open {}", path.display())))?;
    Ok(Box::new(PipeOrigin::new(vec![(path.display().to_string(), file.into())])))
}

/// The shards' descriptors with names for messages; a standard stream if none were given.
pub(super) fn shards(options: &Options, standard: i32) -> Result<Vec<(String, OwnedFd)>> {
    let numbers = match &options.shard_fds[..] {
        [] => &[standard][..],
        numbers => numbers,
    };
    let mut seen = HashSet::new();
    numbers
        .iter()
        .map(|&number| {
            if !seen.insert(number) {
                return Err(Error::Usage(format!(
                    "file descriptor {number} is given twice as a shard"
                )));
            }
            let name = match number {
                0 => "standard input".to_owned(),
                1 => "standard output".to_owned(),
                number => format!("shard (file descriptor {number})"),
            };
            Ok((name, descriptors::inherit(number, "a shard")?))
        })
        .collect()
}

/// The descriptors of files that are not CRIU's.
pub(super) fn external(options: &Options) -> Result<Vec<(FileName, OwnedFd)>> {
    let mut names = HashSet::new();
    options
        .ext_file_fds
        .iter()
        .map(|(name, number)| {
            if !names.insert(name) {
                return Err(Error::Usage(format!("{name} is given twice in --ext-file-fds")));
            }
            Ok((name.clone(), descriptors::inherit(*number, name.as_str())?))
        })
        .collect()
}

/// The images directory, which the command needs.
pub(super) fn images_dir(options: &Options) -> Result<PathBuf> {
    let missing =
        || Error::Usage("--images-dir is needed: the directory CRIU is given with -D".into());
    options.images_dir.clone().ok_or_else(missing)
}

pub(super) fn timeouts(options: &Options) -> Timeouts {
    let silence = Duration::from_secs(options.timeout.into());
    Timeouts { silence, handshake: silence, ..Timeouts::default() }
}
