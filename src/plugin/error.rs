//! Why a hook failed.

use std::io;

use crate::{
    device::DeviceError,
    gpu::{GpuError, NoWay},
    handoff::HandoffError,
    image::ImageError,
    ring::{BudgetError, RingError},
    topology::{CheckError, PlanError, TopologyError},
    uring::WriteError,
};

pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a hook failed. Each names what it is about, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable of the environment.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// A variable of the environment.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// A variable of the environment.
    #[error("VRAMSTREAM_JOIN={value:?} is not understood: set it to hook or exit, or unset it")]
    Join {
        /// Its value.
        value: String,
    },
    /// A CRIU that nobody here knows.
    #[error(
        "this CRIU has {}, and vramstream {} knows {known}: take a vramstream that was made for this CRIU, or a CRIU that is known",
        match hooks { Some(hooks) => format!("{hooks} plugin hooks"), None => "an unknown number of plugin hooks".into() },
        env!("CARGO_PKG_VERSION")
    )]
    Host {
        /// How many hooks it has.
        hooks: Option<usize>,
        /// What is known.
        known: String,
    },
    /// An image with GPU state on a machine without GPUs.
    #[error(
        "this image has GPU state (its inventory names amdgpu_plugin), and the kernel of this machine has no /dev/kfd: load the amdgpu driver, or restore on a machine with AMD GPUs"
    )]
    NoDriver,
    /// CRIU could not do what it was asked for.
    #[error("CRIU cannot {what}")]
    Criu {
        /// What.
        what: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The machine's topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// An image file.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// An image file that has what it cannot have, or not what it must.
    #[error("{file}: {what}")]
    Content {
        /// The file.
        file: String,
        /// What.
        what: String,
    },
    /// A file.
    #[error("{file}: cannot {what}")]
    File {
        /// The file.
        file: String,
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A write to a file.
    #[error("{file}")]
    Write {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: WriteError,
    },
    /// The process cannot be restored on this machine.
    #[error("{file}: this process cannot be restored here")]
    Plan {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: PlanError,
    },
    /// A GPU that the driver tells of is not in the topology.
    #[error("GPU {gpu_id:#06x} of the process is not in the topology{why}")]
    UnknownGpu {
        /// Its id.
        gpu_id: u32,
        /// What is known of that.
        why: String,
    },
    /// A BO whose contents cannot be had.
    #[error(transparent)]
    NoContents(#[from] NoWay),
    /// Memory for chunks.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// Contents were not copied.
    #[error("{process}")]
    Gpu {
        /// Whose.
        process: String,
        /// Why.
        #[source]
        source: Box<GpuError<Error>>,
    },
    /// The streamer.
    #[error(transparent)]
    Handoff(#[from] HandoffError),
    /// A state that cannot be dumped.
    #[error("{0}")]
    Unsupported(String),
    /// Somebody else failed first.
    #[error("given up")]
    GivenUp,
}

impl Error {
    /// Fits `map_err` for calls of CRIU.
    pub(super) fn criu(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Error::Criu { what, source }
    }

    /// Fits `map_err` for a file.
    pub(super) fn file(file: &str, what: &'static str) -> impl FnOnce(io::Error) -> Self + use<> {
        let file = file.to_owned();
        move |source| Error::File { file, what, source }
    }

    /// What happened, with all its causes, line by line.
    pub fn lines(&self) -> Vec<String> {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let more = error.to_string();
            // Some say what their cause says.
            if !text.ends_with(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            cause = error.source();
        }
        text.lines().map(str::to_owned).collect()
    }
}

/// A GPU's failure; where it was the other end's, which is ours, that one's.
pub(super) fn from_gpu(process: &str, error: GpuError<Error>) -> Error {
    match error {
        GpuError::Other(error) => error,
        GpuError::GivenUp => Error::GivenUp,
        error => Error::Gpu { process: process.to_owned(), source: Box::new(error) },
    }
}
