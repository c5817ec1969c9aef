//! The command line of the benchmark.

use std::path::{Path, PathBuf};

use clap::Parser;

use super::content::Content;

/// Measures streamer programs as a whole: throughput, CPU time and peak memory.
///
/// The program under test is VRAMSTREAM_BIN, or `vramstream` next to this program. PEER names a
/// program with criu-image-streamer's command line to compare with.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench-streamer")]
pub struct Options {
    /// How much to dump in one run; K, M and G are powers of 1024
    #[arg(long, default_value = "4G", value_parser = parse_size)]
    pub size: u64,

    /// Runs of each program; the median counts
    #[arg(long, default_value_t = 5)]
    pub runs: usize,

    /// A smoke test: 256 MiB, one run, small sizes everywhere
    #[arg(long)]
    pub quick: bool,

    /// Only these cases, by letter: `--case a,d`
    #[arg(long = "case", value_delimiter = ',')]
    pub cases: Vec<char>,

    /// What the dumped memory holds
    #[arg(long, value_enum, default_value_t = Content::Random)]
    pub content: Content,

    /// The consumers of shards: `read` copies out of the pipe, as whatever stores an image does and
    /// as `cat` does; `null` moves pages to /dev/null, which flatters whoever passes pages on
    #[arg(long, value_enum, default_value_t = Sink::Read)]
    pub sink: Sink,

    /// The sizes for the case that compares peak memory
    #[arg(long, default_value = "1G,4G,16G", value_delimiter = ',', value_parser = parse_size)]
    pub memory_sizes: Vec<u64>,

    /// A directory in memory, for images that are replayed
    #[arg(long, default_value = "/dev/shm")]
    pub scratch: PathBuf,

    /// A directory for images in files; the temporary directory if not given
    #[arg(long)]
    pub disk: Option<PathBuf>,

    /// More words for `vramstream serve` where it reads a pipe: `--serve-arg=--memory=8G`
    #[arg(long = "serve-arg")]
    pub serve_args: Vec<String>,

    /// The program under test has criu-image-streamer's options only: for comparing two builds of
    /// that, or it with itself
    #[arg(long)]
    pub same_interface: bool,

    /// Also write the results to this file
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// What takes the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sink {
    /// Pages go to /dev/null without being touched.
    Null,
    /// Bytes are read, 1 MiB at a time.
    Read,
}

impl Options {
    /// Whether to run the case of this letter.
    pub fn wants(&self, case: char) -> bool {
        self.cases.is_empty() || self.cases.contains(&case)
    }

    /// How much to dump.
    pub fn size(&self) -> u64 {
        if self.quick { 256 << 20 } else { self.size }
    }

    /// How often.
    pub fn runs(&self) -> usize {
        if self.quick { 1 } else { self.runs.max(1) }
    }

    /// The sizes for the memory case.
    pub fn memory_sizes(&self) -> Vec<u64> {
        if self.quick { vec![128 << 20, 512 << 20] } else { self.memory_sizes.clone() }
    }

    /// Where files go.
    pub fn disk(&self) -> PathBuf {
        self.disk.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Where images in memory go.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }
}

fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G']) {
        Some(digits) if text.ends_with(['k', 'K']) => (digits, 10),
        Some(digits) if text.ends_with(['m', 'M']) => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
}
