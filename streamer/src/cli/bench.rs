//! `vramstream bench`: its options, and what is done with them.

use std::{fmt, num::NonZeroU64, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Subcommand, ValueEnum, error::ErrorKind};
use vramstream::{
    device::sim::{Profile, Speed},
    ring::ByteSize,
};

use super::{Cli, Options};
use crate::{
    bench::{self, BoSizes, Contents, Direction, Over, Scenario, Sink, goals},
    error::Result,
    signals::Signals,
};

/// How often the goals are measured.
const GOAL_RUNS: u32 = 5;

/// Options of `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// What to measure [default: whether the goals are reached]
    #[command(subcommand)]
    what: Option<What>,

    /// How often; the figures are the middle of all runs [default: 5 for the goals, otherwise 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=99), global = true)]
    runs: Option<u32>,

    /// Where the goals write files, on the disk to be measured [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Measure one scenario
    Run(Wanted),
    /// Measure one scenario with rings of many sizes, or with 1 to 8 GPUs
    Sweep(Swept),
}

/// A scenario, again and again.
#[derive(Debug, Args)]
struct Swept {
    /// What changes
    #[arg(long, value_enum)]
    over: Axis,

    /// Draw the throughput into this file, as SVG
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    wanted: Wanted,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Axis {
    /// Size of the ring
    Ring,
    /// Number of GPUs
    Gpus,
}

impl From<Axis> for Over {
    fn from(axis: Axis) -> Self {
        match axis {
            Axis::Ring => Over::Ring,
            Axis::Gpus => Over::Gpus,
        }
    }
}

/// A scenario.
#[derive(Debug, Args)]
struct Wanted {
    /// Simulated GPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: u32,

    /// Memory on each GPU
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    vram: ByteSize,

    /// Size of a BO, or mixed: what a process that trains a model has
    #[arg(long, value_name = "SIZE|mixed", default_value = "mixed")]
    bos: BoSizes,

    /// What is in the memory
    #[arg(long, value_enum, default_value_t = Bits::Random)]
    contents: Bits,

    /// Which GPUs: gfx900, gfx906, gfx908, gfx90a, gfx942
    #[arg(long, value_name = "NAME", default_value = "gfx90a", value_parser = profile)]
    profile: Profile,

    /// Bytes that each GPU copies in a second [default: as fast as this machine can]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    sdma_rate: Option<NonZeroU64>,

    /// From a submission to its first byte
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    sdma_latency_us: u64,

    /// Where the image goes, or comes from: null, file:DIR, pipe or tcp
    #[arg(long, value_name = "WHERE", default_value = "null")]
    sink: Sink,

    /// Bytes that the sink takes in a second [default: as fast as it can]
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    sink_rate: Option<NonZeroU64>,

    /// Size of the ring [default: what `KFD_MAX_BUFFER_SIZE` says, or 64M for each GPU]
    #[arg(long, value_name = "SIZE")]
    ring: Option<ByteSize>,

    /// From GPUs to the sink, from the sink to GPUs, or from GPUs to other GPUs
    #[arg(long, value_enum, default_value_t = Way::Dump)]
    direction: Way,

    /// Do not compare what was restored with what was dumped
    #[arg(long)]
    no_verify: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Bits {
    /// Bytes that nothing makes smaller
    Random,
    /// Weights of a model
    Bf16,
    /// Zeros
    Zeros,
    /// Random bytes and zeros
    HalfZeros,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Way {
    /// From GPUs to the sink
    Dump,
    /// From the sink to GPUs
    Restore,
    /// From GPUs through the sink to other GPUs
    Both,
}

fn profile(name: &str) -> Result<Profile, String> {
    Profile::named(name).ok_or_else(|| format!("there is no GPU called {name:?} here"))
}

fn rate(text: &str) -> Result<NonZeroU64, String> {
    let ByteSize(bytes) = text.parse().map_err(|error| format!("{error}"))?;
    NonZeroU64::new(bytes).ok_or_else(|| "nothing would ever end: give more than 0".into())
}

impl Wanted {
    fn scenario(&self, runs: Option<u32>, options: &Options) -> Scenario {
        let default = Scenario::default();
        Scenario {
            gpus: self.gpus,
            vram: self.vram.0,
            bos: self.bos,
            contents: match self.contents {
                Bits::Random => Contents::Random,
                Bits::Bf16 => Contents::Bf16,
                Bits::Zeros => Contents::Zeros,
                Bits::HalfZeros => Contents::HalfZeros,
            },
            profile: self.profile.clone(),
            speed: Speed {
                bytes_per_second: self.sdma_rate.map(NonZeroU64::get),
                latency: Duration::from_micros(self.sdma_latency_us),
            },
            shards: if self.sink == Sink::Tcp { options.connections } else { options.shards },
            sink: self.sink.clone(),
            sink_rate: self.sink_rate,
            direct: !options.no_direct,
            ring: self.ring.map(|size| size.0),
            compression: options.compress.into(),
            direction: match self.direction {
                Way::Dump => Direction::Dump,
                Way::Restore => Direction::Restore,
                Way::Both => Direction::Both,
            },
            verify: !self.no_verify,
            runs: runs.unwrap_or(default.runs),
        }
    }
}

impl Bench {
    /// Ends the program where options make no sense together, as for options that make none alone.
    pub(super) fn check_or_exit(&self, options: &Options) {
        let checked = match &self.what {
            Some(What::Run(wanted)) => wanted.scenario(self.runs, options).check(),
            Some(What::Sweep(swept)) => {
                let scenario = swept.wanted.scenario(self.runs, options);
                let points = Over::from(swept.over).scenarios(&scenario);
                points.iter().try_for_each(|(_, scenario)| scenario.check())
            }
            None => Ok(()),
        };
        if let Err(what) = checked {
            Cli::command().error(ErrorKind::ValueValidation, what).exit();
        }
    }
}

pub(super) fn bench(bench: &Bench, options: &Options) -> Result<()> {
    let signals = Signals::take()?;
    let note = |what: &str| {
        if !options.quiet && !options.json {
            eprintln!("{what}");
        }
    };
    match &bench.what {
        Some(What::Run(wanted)) => {
            let report = bench::run(&wanted.scenario(bench.runs, options), &signals, &note)?;
            tell(&report, &report, options);
        }
        Some(What::Sweep(swept)) => {
            let scenario = swept.wanted.scenario(bench.runs, options);
            let sweep = bench::sweep(swept.over.into(), &scenario, &signals, &note)?;
            tell(&sweep, &sweep, options);
            if let Some(file) = &swept.plot {
                bench::plot(&sweep, file)?;
            }
        }
        None => {
            let wanted = goals::Options {
                runs: bench.runs.unwrap_or(GOAL_RUNS),
                dir: bench.dir.clone().unwrap_or_else(std::env::temp_dir),
                direct: !options.no_direct,
            };
            let goals = goals::goals(&wanted, &signals, &note)?;
            let text: Vec<String> = goals.iter().map(ToString::to_string).collect();
            tell(&text.join("\n"), &goals, options);
        }
    }
    Ok(())
}

fn tell(text: &dyn fmt::Display, json: &impl serde::Serialize, options: &Options) {
    if options.json {
        println!("{}", serde_json::to_string(json).unwrap_or_default());
    } else {
        print!("{text}");
    }
}
