//! Everything that can go wrong in the streamer, as one type.
//!
//! Each message names what failed (the file, the peer, the image) and, where there is something to
//! do about it, says what. A message never repeats its source: [`Report`] prints the chain.

use std::{fmt, io};

use vramstream::{
    device::DeviceError,
    gpu::GpuError,
    handoff::HandoffError,
    image::ImageError as GpuImageError,
    topology::{CheckError, PlanError, TopologyError},
};

use crate::format::{FormatError, ImageError, NameError};

/// What a fallible function of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the streamer could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("cannot {doing}")]
    Io {
        /// What was being done, to what: "write shard 2 (file descriptor 11)".
        doing: String,
        /// What the system answered.
        #[source]
        source: io::Error,
    },
    /// The bytes of a shard are not what they should be.
    #[error("{shard}")]
    Shard {
        /// The shard, by where it comes from.
        shard: String,
        /// What is wrong with it.
        #[source]
        source: FormatError,
    },
    /// The shards do not make an image.
    #[error("the image was refused")]
    Image(#[from] ImageError),
    /// A chunk's payload is not what was dumped.
    #[error("{shard}: damaged: the payload of {file} at byte {offset} does not match its checksum")]
    Payload {
        /// The shard, by where it comes from.
        shard: String,
        /// The file.
        file: String,
        /// Where in the file.
        offset: u64,
    },
    /// A stream in criu-image-streamer's format is not what it should be.
    #[error("{shard}: not a valid criu-image-streamer image: {what}")]
    Marker {
        /// The shard, by where it comes from.
        shard: String,
        /// What is wrong with it.
        what: String,
    },
    /// Shards without a byte.
    #[error("no image: the stream is empty; did the capture fail?")]
    Empty,
    /// An image that is whole, or may be, and is not that of the process that is being restored.
    #[error(
        "the image does not fit the GPUs: {0}; they may have part of it, and the process cannot be used"
    )]
    Misfit(String),
    /// CRIU's dump did not complete, so there is no image.
    #[error("the dump is not complete: {0}; nothing was published")]
    DumpIncomplete(String),
    /// CRIU, or whoever is at its socket, does not keep to the protocol.
    #[error("the client at {socket} does not speak CRIU's streamer protocol: {what}")]
    Client {
        /// The socket.
        socket: String,
        /// What it did.
        what: String,
    },
    /// A file name that cannot be used.
    #[error("the file name was refused")]
    Name(#[from] NameError),
    /// The other end of a transfer reports a failure or does what it may not.
    #[error("{peer}: {what}")]
    Peer {
        /// The address.
        peer: String,
        /// What it said or did.
        what: String,
    },
    /// Nothing was heard from the other end for too long.
    #[error(
        "{peer}: nothing was heard for {seconds} s while {doing}: it is dead, stopped or cut off"
    )]
    Silent {
        /// The address or descriptor.
        peer: String,
        /// How long.
        seconds: u64,
        /// In which state.
        doing: String,
    },
    /// A sender was told that its image is here, and nobody knows whether it heard.
    #[error(
        "the image arrived whole, but {peer} did not confirm that it knows: its process may go on \
         there; look before you use what was received here"
    )]
    Unconfirmed {
        /// The address.
        peer: String,
        /// Why no answer came.
        #[source]
        source: Box<Error>,
    },
    /// Memory would be needed beyond what was allowed.
    #[error("{what}; raise {option} or use a source that can be read twice (--from file:DIR)")]
    Memory {
        /// What needs it and how much there is.
        what: String,
        /// The option that sets the limit.
        option: &'static str,
    },
    /// The command makes no sense as given.
    #[error("{0}")]
    Usage(String),
    /// A signal asked us to stop.
    #[error("stopped by {0}; nothing was published")]
    Interrupted(&'static str),
    /// Something changed that nothing changes.
    #[error("{0}: the memory of this machine is faulty")]
    Faulty(&'static str),
    /// A GPU, or its contents.
    #[error("the contents of the GPUs could not be moved")]
    Gpu(#[source] Box<GpuError<Error>>),
    /// A device, or the state of its process.
    #[error("the state of the GPU process could not be moved")]
    Device(#[from] DeviceError),
    /// GPU contents were not handed over.
    #[error(transparent)]
    Handoff(#[from] HandoffError),
    /// The topology of a machine cannot be read.
    #[error("{0}")]
    Topology(TopologyError),
    /// An image of CRIU's amdgpu plugin cannot be read.
    #[error("{0}")]
    GpuImage(GpuImageError),
    /// A variable is not understood.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// It was not found out whether a checkpoint can be restored.
    #[error("{from}")]
    Plan {
        /// The image or topology.
        from: String,
        /// Why.
        #[source]
        source: PlanError,
    },
    /// A checkpoint cannot be restored, as was told elsewhere.
    #[error("{0} cannot be restored on this machine")]
    NotRestorable(String),
    /// What the doctor found, as was told elsewhere.
    #[error("this machine is not ready: what is marked PROBLEM stands in the way ({0})")]
    NotReady(usize),
    /// Something else failed first, elsewhere: that is the error to report.
    #[error("given up, because something else has failed")]
    GivenUp,
    /// A thread of ours panicked: a bug.
    #[error("internal error: the {0} thread panicked; please report this")]
    Panicked(String),
}

impl From<GpuError<Error>> for Error {
    fn from(error: GpuError<Error>) -> Self {
        match error {
            GpuError::Other(error) => error,
            GpuError::GivenUp => Error::GivenUp,
            error => Error::Gpu(Box::new(error)),
        }
    }
}

impl From<TopologyError> for Error {
    /// Its messages have their causes in them.
    fn from(error: TopologyError) -> Self {
        Error::Topology(error)
    }
}

impl From<GpuImageError> for Error {
    /// Its messages have their causes in them.
    fn from(error: GpuImageError) -> Self {
        Error::GpuImage(error)
    }
}

impl Error {
    /// Wraps the answer of a system call: `.map_err(Error::io(|| format!("open {path}")))`.
    pub fn io<S: Into<String>, E: Into<io::Error>>(
        doing: impl FnOnce() -> S,
    ) -> impl FnOnce(E) -> Error {
        move |source| Error::Io { doing: doing().into(), source: source.into() }
    }

    /// Names the shard that the error is about.
    pub fn shard(shard: &str) -> impl FnOnce(FormatError) -> Error + '_ {
        move |source| Error::Shard { shard: shard.to_owned(), source }
    }

    /// The message with all its causes, for a person.
    pub fn report(&self) -> Report<'_> {
        Report(self)
    }
}

/// Prints an error and its causes on one line.
#[derive(Debug)]
pub struct Report<'a>(&'a Error);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = std::error::Error::source(self.0);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        if let Error::Io { source, .. } = self.0
            && let Some(hint) = hint(source)
        {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}

/// What a person can do about an errno that says too little by itself.
fn hint(error: &io::Error) -> Option<&'static str> {
    use nix::errno::Errno;
    match Errno::from_raw(error.raw_os_error()?) {
        Errno::ENOSPC | Errno::EDQUOT => Some("free some space or choose another directory"),
        Errno::EMFILE | Errno::ENFILE => Some("raise the limit on open files, ulimit -n"),
        Errno::EPIPE => Some("the program at the other end of the pipe has ended"),
        Errno::EACCES | Errno::EPERM => Some("check the permissions, or run as root"),
        Errno::ECONNREFUSED => Some("is the receiver running, and is the port right?"),
        _ => None,
    }
}
