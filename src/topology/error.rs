//! What can be wrong with a topology.

use std::{io, path::PathBuf};

/// A topology that cannot be read, or that contradicts itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// There is no topology.
    #[error(
        "{}: cannot read the KFD topology: {source} (is the amdgpu driver loaded, and is this \
         directory visible here?)",
        dir.display()
    )]
    NoTree {
        /// The directory that should hold a directory for each node.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be read, and not because it is hidden from us.
    #[error("{}: cannot read this part of the KFD topology: {source}", file.display())]
    Read {
        /// The file or directory.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is not what it should be.
    #[error("{}:{line}: {what}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Something that must be there is not.
    #[error("{}: there is no {what}", file.display())]
    Missing {
        /// The file or directory.
        file: PathBuf,
        /// What.
        what: &'static str,
    },
    /// A file that is larger than any of its kind.
    #[error("{}: larger than {most} bytes, which no file of a KFD topology is", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The limit.
        most: usize,
    },
    /// More of something than a machine can have.
    #[error("more than {most} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        most: usize,
    },
    /// Two nodes have one number.
    #[error("there are two nodes {node}")]
    TwoNodes {
        /// The number.
        node: u32,
    },
    /// Two GPUs have one id.
    #[error("nodes {} and {} are both GPU {gpu_id:#06x}", nodes.0, nodes.1)]
    TwoGpus {
        /// The id.
        gpu_id: u32,
        /// The numbers of the nodes.
        nodes: (u32, u32),
    },
}
