//! The command line. Help, man page and completions are made from these definitions.
//!
//! The options of criu-image-streamer keep their names and meanings and may stand before or after
//! the subcommand.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use vramstream::{ring::ByteSize, stage};

use super::{bench::Bench, generate::Generate};
use crate::{format::FileName, serve::PortMap};

/// Streams CRIU images: from `criu dump --stream` to files, pipes or another host, and back to
/// `criu restore --stream`.
#[derive(Debug, Parser)]
#[command(
    name = "vramstream",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    after_help = "Exit status: 0 if all went well, 1 if something failed, 2 if the command line is wrong."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Options of every command.
    #[command(flatten)]
    pub options: Options,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take the images of `criu dump --stream`
    Capture,
    /// Give images to `criu restore --stream`
    Serve,
    /// Write the files of an image into the images directory
    Extract,
    /// Take an image over TCP, then serve or extract it
    Receive(Receive),
    /// Check that an image is complete and intact
    Verify(SourceArg),
    /// Show what is in an image
    Inspect(SourceArg),
    /// Show which GPU here would take the place of which GPU of a checkpoint, or why none can
    Plan(Plan),
    /// Look whether everything is here that a checkpoint takes, and say what to do about the rest
    Doctor(Doctor),
    /// Move a simulated GPU process between simulated machines, and compare every byte
    Selftest,
    /// Measure dumps and restores of simulated GPUs
    Bench(Box<Bench>),
    /// CRIU's --action-script: hold the dump until the capture has committed
    CommitGate,
    /// Print man pages and completions
    #[command(hide = true)]
    Generate(Generate),
}

/// Options of `receive`.
#[derive(Debug, Args)]
pub struct Receive {
    /// Where to listen, for example 0.0.0.0:7000 or `[::]:7000`
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Write the files into the images directory instead of serving them to CRIU
    #[arg(long)]
    pub extract: bool,
}

/// Options of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// The program criu [default: the one in PATH]
    #[arg(long, value_name = "PATH")]
    pub criu: Option<PathBuf>,
    /// Where CRIU looks for plugins, as its own option of that name [default: CRIU_LIBS_DIR, or what
    /// that CRIU says]
    #[arg(short = 'L', long, value_name = "DIR")]
    pub libdir: Option<PathBuf>,
}

/// Options of `plan`. They have the ids of the options of all commands and take their place.
#[derive(Debug, Args)]
#[command(
    after_help = "The variables KFD_FW_VER_CHECK, KFD_SDMA_FW_VER_CHECK, KFD_CACHES_COUNT_CHECK, \
        KFD_NUM_GWS_CHECK, KFD_VRAM_SIZE_CHECK, KFD_NUMA_CHECK and KFD_CAPABILITY_CHECK turn a check \
        off when they are 0, as in the restore itself.\n\n\
        Exit status: 0 if it can be restored, 1 if not or if something failed, 2 if the command line is wrong."
)]
pub struct Plan {
    /// The checkpoint: an amdgpu-kfd-N.img, a directory with such files, or, before there is one, the
    /// KFD topology of its machine (a directory with nodes/)
    #[arg(id = "from", long, value_name = "IMAGE|TOPOLOGY", value_parser = directory, required = true)]
    pub from: Place,
    /// The KFD topology of the machine to restore on [default: this machine's,
    /// /sys/class/kfd/kfd/topology]
    #[arg(id = "to", long, value_name = "TOPOLOGY", value_parser = directory)]
    pub to: Option<Place>,
}

/// The image, for commands that only look at it.
#[derive(Debug, Args)]
pub struct SourceArg {
    /// A directory that `capture --to file:DIR` wrote, or the file of one shard; the same as --from
    #[arg(value_name = "IMAGE")]
    pub image: Option<PathBuf>,
}

/// Options of every command. Those that say where an image goes or comes from are refused by
/// commands to which they mean nothing.
#[derive(Debug, Args)]
pub struct Options {
    /// Where CRIU's sockets are made, and where extract writes
    #[arg(short = 'D', long, value_name = "DIR", global = true)]
    pub images_dir: Option<PathBuf>,

    /// File descriptors of the shards, separated by commas [default: standard output or input]
    #[arg(short, long, value_name = "FD", value_delimiter = ',', global = true, conflicts_with_all = ["to", "from"])]
    pub shard_fds: Vec<i32>,

    /// Files that are not CRIU's, each from or to a pipe
    #[arg(short, long, value_name = "NAME:FD", value_delimiter = ',', value_parser = external, global = true)]
    pub ext_file_fds: Vec<(FileName, i32)>,

    /// File descriptor for progress lines [default: standard error]
    #[arg(short, long, value_name = "FD", global = true)]
    pub progress_fd: Option<i32>,

    /// serve: change the listening ports of TCP sockets
    #[arg(long, value_name = "OLD:NEW", global = true)]
    pub tcp_listen_remap: Option<PortMap>,

    /// serve: how many programs read the image (CRIU, its lazy-pages daemon)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64), global = true)]
    pub criu_clients: u32,

    /// capture: where the shards go: file:DIR or tcp://HOST:PORT
    #[arg(long, value_name = "WHERE", global = true)]
    pub to: Option<Place>,

    /// Where the shards come from: file:DIR
    #[arg(long, value_name = "WHERE", global = true)]
    pub from: Option<Place>,

    /// capture --to file:DIR: how many files; bench: how many shards
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256), global = true)]
    pub shards: u32,

    /// capture --to tcp://HOST:PORT, bench --sink tcp: how many connections
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256), global = true)]
    pub connections: u32,

    /// tcp: after how many seconds without a sign of life the other end is given up
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=3600), global = true)]
    pub timeout: u32,

    /// capture: the image format
    #[arg(long, value_enum, default_value_t = Format::Native, global = true)]
    pub format: Format,

    /// capture, bench: compression; auto stores raw what does not shrink, and does not slow a fast link
    #[arg(long, value_enum, default_value_t = Compress::None, global = true)]
    pub compress: Compress,

    /// capture, serve --from: the most memory to use
    #[arg(long, value_name = "SIZE", default_value = "256M", global = true)]
    pub memory: ByteSize,

    /// serve from a stream: the most memory to keep the image in [default: three quarters of the machine's]
    #[arg(long, value_name = "SIZE", global = true)]
    pub memory_limit: Option<ByteSize>,

    /// serve from a stream: images of up to this size can be read again; larger ones leave memory
    /// when they are read
    #[arg(long, value_name = "SIZE", default_value = "16M", global = true)]
    pub reread: ByteSize,

    /// file: do not use O_DIRECT
    #[arg(long, global = true)]
    pub no_direct: bool,

    /// Tell what happens as JSON, a line each, on standard error (inspect, verify, plan,
    /// doctor, selftest, bench: what was found out, on standard output)
    #[arg(long, global = true)]
    pub json: bool,

    /// No progress bars and no summary
    #[arg(short, long, global = true, conflicts_with = "json")]
    pub quiet: bool,
}

/// The image formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Checksums, an index, several files at once
    Native,
    /// What criu-image-streamer 1.0 reads
    CriuImageStreamer,
}

/// See [`stage::Compression`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compress {
    /// Store everything as it is
    None,
    /// LZ4 wherever it makes anything smaller
    Lz4,
    /// LZ4 where it pays
    Auto,
}

impl From<Compress> for stage::Compression {
    fn from(compress: Compress) -> Self {
        match compress {
            Compress::None => stage::Compression::None,
            Compress::Lz4 => stage::Compression::Lz4,
            Compress::Auto => stage::Compression::Auto,
        }
    }
}

/// Where shards are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Files in a directory.
    Directory(PathBuf),
    /// A receiver.
    Tcp(String),
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text:?} is neither file:DIR nor tcp://HOST:PORT");
        match text.split_once(':') {
            Some(("file", dir)) if !dir.is_empty() => Ok(Place::Directory(dir.into())),
            Some(("tcp", rest)) => {
                let address = rest.strip_prefix("//").ok_or_else(form)?;
                let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
                if host.is_empty() || port.parse::<u16>().is_err() {
                    return Err(form());
                }
                Ok(Place::Tcp(address.to_owned()))
            }
            _ => Err(form()),
        }
    }
}

/// A path as it is, or after `file:`.
fn directory(text: &str) -> Result<Place, String> {
    match text.strip_prefix("file:").unwrap_or(text) {
        "" => Err("the path is empty".into()),
        path => Ok(Place::Directory(path.into())),
    }
}

fn external(text: &str) -> Result<(FileName, i32), String> {
    let (name, fd) = text.rsplit_once(':').ok_or_else(|| format!("{text:?} is not NAME:FD"))?;
    let fd = fd.parse().map_err(|_| format!("{fd:?} is not a file descriptor"))?;
    Ok((FileName::new(name).map_err(|error| error.to_string())?, fd))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_stand_before_or_after_the_command() {
        let line = "x -D /d -s 10,11 -e a:12,b:13 -p 3 --tcp-listen-remap 80:81,81:80";
        for line in [format!("{line} serve"), line.replacen('x', "x serve", 1)] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert!(matches!(cli.command, Command::Serve));
            assert_eq!(cli.options.shard_fds, [10, 11]);
            assert_eq!(cli.options.ext_file_fds.len(), 2);
            assert_eq!(cli.options.progress_fd, Some(3));
            assert_eq!(cli.options.tcp_listen_remap, "81:80,80:81".parse().ok());
        }
    }

    #[test]
    fn the_places_of_a_plan_are_paths() {
        for line in ["x plan --from /a --to b/c", "x plan --json --to file:b/c --from file:/a"] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let Command::Plan(plan) = cli.command else { panic!("{line}") };
            assert_eq!(plan.from, Place::Directory("/a".into()));
            assert_eq!(plan.to, Some(Place::Directory("b/c".into())));
        }
        for line in ["x plan", "x plan --to /b", "x plan --from", "x plan --from= --to /b"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "x capture --to file:",
            "x capture --to ftp://x",
            "x capture --to tcp://host",
            "x capture --to tcp://:1",
            "x serve --tcp-listen-remap 80:65536",
            "x serve --tcp-listen-remap 0:80",
            "x serve --tcp-listen-remap 80:81,80:82",
            "x capture -s 1 --to file:/x",
            "x capture -e ../x:4",
            "x capture --memory 1.5G",
            "x",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
