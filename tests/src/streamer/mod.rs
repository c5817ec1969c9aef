//! Runs an image streamer as a whole program: vramstream, or another with the same command line.
//!
//! | module | what it is |
//! |---|---|
//! | here | what to run and with which descriptors |
//! | [`running`] | a running program: its progress, its end, what it cost |
//! | [`inherit`] | giving descriptors to a child without `unsafe` and without leaking them to others |
//!
//! The program is `VRAMSTREAM_BIN`, or `vramstream` next to the running test.

pub mod inherit;
pub mod running;

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::pipe::{PipeFlags, pipe_with};

pub use running::{Outcome, Running};

/// What the streamer is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Take images from CRIU.
    Capture,
    /// Give images to CRIU.
    Serve,
    /// Write images into the directory.
    Extract,
    /// Take an image from the network.
    Receive,
}

impl Operation {
    /// The subcommand.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Capture => "capture",
            Operation::Serve => "serve",
            Operation::Extract => "extract",
            Operation::Receive => "receive",
        }
    }
}

/// The image formats that the program under test can write, as words for its command line. A
/// program with criu-image-streamer's own options (`VRAMSTREAM_BIN_PLAIN` is set) has one.
pub fn formats() -> &'static [&'static [&'static str]] {
    if env::var_os("VRAMSTREAM_BIN_PLAIN").is_some() {
        return &[&[]];
    }
    &[&["--format", "native"], &["--format", "criu-image-streamer"]]
}

/// A program that streams images.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    wrapper: Vec<OsString>,
}

impl Program {
    /// The one under test.
    pub fn under_test() -> io::Result<Self> {
        if let Some(path) = env::var_os("VRAMSTREAM_BIN").filter(|path| !path.is_empty()) {
            return Ok(Self::at(path));
        }
        let test = env::current_exe()?;
        let near = test.ancestors().skip(1).take(2).map(|dir| dir.join("vramstream"));
        near.into_iter().find(|path| path.is_file()).map(Self::at).ok_or_else(|| {
            io::Error::other(format!(
                "no vramstream next to {}: build it with `cargo build --workspace` first, \
                 or name one in VRAMSTREAM_BIN",
                test.display()
            ))
        })
    }

    /// This one.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Program { path: path.into(), wrapper: Vec::new() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs it through a command that ends in `exec`: other limits, another user.
    #[must_use]
    pub fn through<S: AsRef<OsStr>>(mut self, wrapper: &[S]) -> Self {
        self.wrapper = wrapper.iter().map(|word| word.as_ref().to_owned()).collect();
        self
    }

    /// The same program with at most so many descriptors.
    #[must_use]
    pub fn with_descriptors(self, limit: u32) -> Self {
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        self.through(&["sh", "-c", &script])
    }

    /// The same program as a user who may do nothing special.
    #[must_use]
    pub fn as_nobody(self) -> Self {
        self.through(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
    }

    /// A command that runs it.
    pub fn command(&self) -> Command {
        let mut words = self.wrapper.iter();
        match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(&self.path);
                command
            }
            None => Command::new(&self.path),
        }
    }
}

/// Where the shards are.
#[derive(Clone, Copy, Debug)]
enum Shards {
    /// On so many pipes given by number.
    Pipes(usize),
    /// One, on standard input or output.
    Standard,
    /// Not on descriptors.
    Elsewhere,
}

/// A program about to be started.
#[derive(Debug)]
pub struct Launch {
    program: Program,
    dir: PathBuf,
    before: Vec<OsString>,
    after: Vec<OsString>,
    shards: Shards,
    shard_pipe_bytes: Option<usize>,
    external: Vec<String>,
    external_on: Vec<(String, OwnedFd)>,
    progress_on_stderr: bool,
}

impl Launch {
    /// With this images directory, one shard on a pipe, and a pipe for progress.
    pub fn new(program: &Program, dir: &Path) -> Self {
        Launch {
            program: program.clone(),
            dir: dir.to_owned(),
            before: Vec::new(),
            after: Vec::new(),
            shards: Shards::Pipes(1),
            shard_pipe_bytes: None,
            external: Vec::new(),
            external_on: Vec::new(),
            progress_on_stderr: false,
        }
    }

    /// The images directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Adds words before the subcommand.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, words: &[S]) -> Self {
        self.before.extend(words.iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Adds words after the subcommand.
    #[must_use]
    pub fn args_after<S: AsRef<OsStr>>(mut self, words: &[S]) -> Self {
        self.after.extend(words.iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// So many shards on pipes.
    #[must_use]
    pub fn shards(mut self, count: usize) -> Self {
        self.shards = Shards::Pipes(count);
        self
    }

    /// Makes the shard pipes this large before the program gets them.
    #[must_use]
    pub fn shard_pipe_size(mut self, bytes: usize) -> Self {
        self.shard_pipe_bytes = Some(bytes);
        self
    }

    /// One shard, on standard input or output.
    #[must_use]
    pub fn standard_shard(mut self) -> Self {
        self.shards = Shards::Standard;
        self
    }

    /// No shards on descriptors: they are in files or on the network.
    #[must_use]
    pub fn no_shards(mut self) -> Self {
        self.shards = Shards::Elsewhere;
        self
    }

    /// An external file of this name, on a pipe.
    #[must_use]
    pub fn external(mut self, name: &str) -> Self {
        self.external.push(name.to_owned());
        self
    }

    /// An external file of this name, on this descriptor.
    #[must_use]
    pub fn external_on(mut self, name: &str, fd: OwnedFd) -> Self {
        self.external_on.push((name.to_owned(), fd));
        self
    }

    /// No `--progress-fd`: progress comes on standard error.
    #[must_use]
    pub fn progress_on_stderr(mut self) -> Self {
        self.progress_on_stderr = true;
        self
    }

    /// Starts it. The pipes' other ends are in the result.
    pub fn start(self, operation: Operation) -> io::Result<Running> {
        let mut ends = Ends::default();
        let mut command = self.program.command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.arg("-D").arg(&self.dir);
        match self.shards {
            Shards::Elsewhere => {}
            Shards::Standard => {
                let theirs = ends.shard(operation, self.shard_pipe_bytes)?;
                if operation == Operation::Capture {
                    command.stdout(theirs);
                } else {
                    command.stdin(theirs);
                }
            }
            Shards::Pipes(count) => {
                let mut numbers = Vec::new();
                for _ in 0..count {
                    let theirs = ends.shard(operation, self.shard_pipe_bytes)?;
                    numbers.push(ends.inherit(theirs));
                }
                command.arg("--shard-fds").arg(numbers.join(","));
            }
        }
        if !self.external.is_empty() || !self.external_on.is_empty() {
            let mut names = Vec::new();
            for (name, fd) in self.external_on {
                names.push(format!("{name}:{}", ends.inherit(fd)));
            }
            for name in &self.external {
                let (ours, theirs) = pair(operation != Operation::Capture)?;
                ends.external.push(ours);
                names.push(format!("{name}:{}", ends.inherit(theirs)));
            }
            command.arg("--ext-file-fds").arg(names.join(","));
        }
        let mut progress = None;
        if !self.progress_on_stderr {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
            progress = Some(read);
            command.arg("--progress-fd").arg(ends.inherit(write));
        }
        command.args(&self.before).arg(operation.name()).args(&self.after);
        let child = inherit::spawn(&mut command, ends.theirs)?;
        Running::new(child, progress, ends.shards, ends.external)
    }
}

/// The ends of the pipes that are made for a program.
#[derive(Debug, Default)]
struct Ends {
    theirs: Vec<OwnedFd>,
    shards: Vec<OwnedFd>,
    external: Vec<OwnedFd>,
}

impl Ends {
    fn shard(&mut self, operation: Operation, bytes: Option<usize>) -> io::Result<OwnedFd> {
        let (ours, theirs) = pair(operation == Operation::Capture)?;
        if let Some(bytes) = bytes {
            rustix::pipe::fcntl_setpipe_size(&ours, bytes)?;
        }
        self.shards.push(ours);
        Ok(theirs)
    }

    fn inherit(&mut self, fd: OwnedFd) -> String {
        let number = fd.as_raw_fd().to_string();
        self.theirs.push(fd);
        number
    }
}

/// A pipe as (our end, their end).
fn pair(they_write: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok(if they_write { (read, write) } else { (write, read) })
}
