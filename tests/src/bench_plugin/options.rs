//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use vramstream::ring::ByteSize;

/// Measures the CRIU plugin on simulated GPUs, with real CRIU 4.2 where CRIU is in it.
///
/// Needs root, and memory for what is simulated: five times --size.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench-plugin")]
pub struct Options {
    /// Turns; the middle one counts
    #[arg(long, default_value_t = 3)]
    pub runs: usize,

    /// Memory of each GPU and of the process
    #[arg(long, default_value = "2G")]
    pub size: ByteSize,

    /// What an SDMA engine copies in a second, in the case that overlaps
    #[arg(long, default_value_t = 1_000_000_000)]
    pub bandwidth: u64,

    /// A smoke test: small sizes, one turn
    #[arg(long)]
    pub quick: bool,

    /// Only these cases
    #[arg(long = "case", value_enum, value_delimiter = ',')]
    pub cases: Vec<Case>,

    /// Where files go; the temporary directory if not given
    #[arg(long)]
    pub disk: Option<PathBuf>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Case {
    /// Handing over ten thousand BOs.
    Handover,
    /// A process's memory and its GPUs' at the same time.
    Overlap,
    /// CRIU's own memory.
    Peak,
    /// Contents to files.
    Directory,
}

impl Case {
    /// All of them.
    pub const ALL: [Case; 4] = [Case::Handover, Case::Overlap, Case::Peak, Case::Directory];

    /// What it is.
    pub fn title(self) -> &'static str {
        match self {
            Case::Handover => "handing BOs over to the streamer",
            Case::Overlap => {
                "real CRIU, handed over, 2 GPUs with limited SDMA, sink /dev/null, commit gate"
            }
            Case::Peak => "real CRIU, 1 GPU: the most memory of the criu process",
            Case::Directory => "the plugin alone, to a directory",
        }
    }
}

impl Options {
    /// Whether to measure this.
    pub fn wants(&self, case: Case) -> bool {
        self.cases.is_empty() || self.cases.contains(&case)
    }

    /// How often.
    pub fn runs(&self) -> usize {
        if self.quick { 1 } else { self.runs.max(1) }
    }

    /// Bytes of memory of each GPU and of the process: whole pages.
    pub fn size(&self) -> u64 {
        if self.quick { 128 << 20 } else { self.size.0.max(1 << 20) / (1 << 20) * (1 << 20) }
    }
}
