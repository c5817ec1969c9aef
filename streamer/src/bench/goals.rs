//! What the pipeline is to reach on any machine, and whether it does on this one.
//!
//! Each goal compares figures that were measured alternately, in the same minute, and takes the
//! middle of several runs. A goal that is missed is a finding; one that cannot be measured here says
//! why.

use std::{
    fmt,
    fs::File,
    io::Read,
    num::NonZeroU64,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use rustix::fs::OFlags;
use serde::Serialize;
use vramstream::device::sim::Speed;

use super::{
    BoSizes, Bounds, Contents, Note, Scenario, Sink,
    bounds::{CHECKSUM, COPIES_OUT},
    float,
    lab::Lab,
    median, places,
};
use crate::{
    error::{Error, Result},
    signals::Signals,
};

const GB: u64 = 1_000_000_000;
/// Bytes of what is written to a disk, as often as there are runs, and once more by dd.
const DISK_BYTES: u64 = 1 << 30;
/// As large as dd's blocks are to be.
const BLOCK_BYTES: u64 = 4 << 20;

/// How goals are measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// How often.
    pub runs: u32,
    /// Where files are written.
    pub dir: PathBuf,
    /// Whether past the page cache.
    pub direct: bool,
}

/// Something to reach.
#[derive(Debug, Clone, Serialize)]
pub struct Goal {
    /// In which case.
    pub case: &'static str,
    /// What.
    pub must_reach: &'static str,
    /// The figure that was measured, if it could be.
    pub value: Option<f64>,
    /// What it has to be: at least, or below where less is better.
    pub limit: f64,
    /// Whether it is.
    pub reached: Option<bool>,
    /// How it came about, or why it could not be measured.
    pub how: String,
    /// Every run.
    pub runs: Vec<f64>,
}

/// All goals, in turn.
pub fn goals(options: &Options, signals: &Signals, note: Note<'_>) -> Result<Vec<Goal>> {
    let bench = Bench { options, signals, note };
    Ok(vec![
        bench.overlap()?,
        bench.eight_gpus()?,
        bench.disk()?,
        bench.zeros()?,
        bench.small_bos()?,
    ])
}

struct Bench<'a> {
    options: &'a Options,
    signals: &'a Signals,
    note: Note<'a>,
}

impl Bench<'_> {
    fn overlap(&self) -> Result<Goal> {
        let goal = Goal::at_least(
            "one GPU at 1 GB/s SDMA into a sink of 1 GB/s",
            "at least 0.95 GB/s",
            0.95,
        );
        let speed = Speed { bytes_per_second: Some(GB), ..Speed::default() };
        let scenario = Scenario { speed, sink_rate: NonZeroU64::new(GB), ..Scenario::default() };
        self.measure(goal, &[&scenario], |labs| Ok(labs[0].run()?.rate() / 1e9))
    }

    fn eight_gpus(&self) -> Result<Goal> {
        let goal = Goal::at_least(
            "8 GPUs of 1 GiB, sink null, raw with CRC-32",
            "at least 0.9 of 1/(1/a + 1/b), a the copies and b the CRC alone",
            0.9,
        );
        let scenario = Scenario { gpus: 8, ..Scenario::default() };
        let mut bounds = Bounds::default();
        let mut rates = Vec::new();
        let mut goal = self.measure(goal, &[&scenario], |labs| {
            let mut alone = Bounds::default();
            alone.measure(&labs[0])?;
            let both = |bounds: &Bounds| Some((bounds.rate(COPIES_OUT)?, bounds.rate(CHECKSUM)?));
            let (copies, checksums) = both(&alone).unwrap_or((f64::NAN, f64::NAN));
            let rate = labs[0].run()?.rate();
            rates.push(rate);
            bounds.extend(alone);
            Ok(rate * (1.0 / copies + 1.0 / checksums))
        })?;
        let gb = |rate: Option<f64>| rate.unwrap_or(f64::NAN) / 1e9;
        if goal.value.is_some() {
            goal.how = format!(
                "{:.2} GB/s; copies alone {:.2}, CRC alone {:.2}",
                gb(median(rates)),
                gb(bounds.rate(COPIES_OUT)),
                gb(bounds.rate(CHECKSUM))
            );
        }
        Ok(goal)
    }

    fn disk(&self) -> Result<Goal> {
        let mut goal = Goal::at_least(
            "to a file through io_uring",
            "at least 0.95 of dd oflag=direct bs=4M, both with fsync",
            0.95,
        );
        let dir = &self.options.dir;
        if let Err(error) = takes_direct(dir) {
            goal.how = format!("{} takes no O_DIRECT ({error}): give another --dir", dir.display());
            return Ok(goal);
        }
        if !self.options.direct {
            goal.how = "--no-direct was given".into();
            return Ok(goal);
        }
        let scenario =
            Scenario { sink: Sink::Files(dir.clone()), vram: DISK_BYTES, ..Scenario::default() };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut goal = self.measure(goal, &[&scenario], |labs| {
            let dd = dd(&scenario.sink)?;
            let rate = labs[0].run()?.rate();
            ours.push(rate);
            theirs.push(dd);
            Ok(rate / dd)
        })?;
        if let (Some(ours), Some(theirs)) = (median(ours), median(theirs)) {
            goal.how = format!("{:.2} GB/s; dd {:.2}", ours / 1e9, theirs / 1e9);
        }
        Ok(goal)
    }

    fn zeros(&self) -> Result<Goal> {
        let goal = Goal::at_least(
            "zeros into a sink of 1 GB/s",
            "at least 3 times the rate of random data",
            3.0,
        );
        let random = Scenario { sink_rate: NonZeroU64::new(GB), ..Scenario::default() };
        let zeros = Scenario { contents: Contents::Zeros, ..random.clone() };
        let mut all = (Vec::new(), Vec::new());
        let mut goal = self.measure(goal, &[&random, &zeros], |labs| {
            let (random, zeros) = (labs[0].run()?.rate(), labs[1].run()?.rate());
            all.0.push(random);
            all.1.push(zeros);
            Ok(zeros / random)
        })?;
        if let (Some(random), Some(zeros)) = (median(all.0), median(all.1)) {
            goal.how = format!("zeros {:.2} GB/s, random {:.2}", zeros / 1e9, random / 1e9);
        }
        Ok(goal)
    }

    fn small_bos(&self) -> Result<Goal> {
        let goal =
            Goal::below("10 000 BOs of 4 KiB", "under 3 times the time of one BO of 40 MiB", 3.0);
        let of = |vram, size| Scenario { vram, bos: BoSizes::All(size), ..Scenario::default() };
        let (many, one) = (of(10_000 << 12, 4 << 10), of(40 << 20, 40 << 20));
        let mut all = (Vec::new(), Vec::new());
        let mut goal = self.measure(goal, &[&many, &one], |labs| {
            let (many, one) = (labs[0].run()?.seconds, labs[1].run()?.seconds);
            all.0.push(many);
            all.1.push(one);
            Ok(many / one)
        })?;
        if let (Some(many), Some(one)) = (median(all.0), median(all.1)) {
            goal.how = format!("many {:.1} ms, one {:.1} ms", many * 1e3, one * 1e3);
        }
        Ok(goal)
    }

    /// Runs as often as there are runs, after one that does not count: it touches the memory of the
    /// simulated GPUs for the first time.
    fn measure(
        &self,
        mut goal: Goal,
        scenarios: &[&Scenario],
        mut run: impl FnMut(&[Lab<'_>]) -> Result<f64>,
    ) -> Result<Goal> {
        (self.note)(&format!("{}: filling the simulated memory", goal.case));
        for scenario in scenarios {
            if let Err(error) = scenario.check_memory() {
                goal.how = error.report().to_string();
                return Ok(goal);
            }
        }
        let labs = scenarios.iter().map(|scenario| Lab::start(scenario, self.signals));
        let labs: Vec<_> = labs.collect::<Result<_>>()?;
        for lab in &labs {
            lab.warm_up()?;
        }
        for number in 1..=self.options.runs {
            (self.note)(&format!("  run {number} of {}", self.options.runs));
            self.signals.check()?;
            goal.runs.push(run(&labs)?);
        }
        goal.judge();
        Ok(goal)
    }
}

impl Goal {
    fn at_least(case: &'static str, must_reach: &'static str, limit: f64) -> Self {
        let how = String::new();
        Goal { case, must_reach, value: None, limit, reached: None, how, runs: Vec::new() }
    }

    /// One whose limit is negative while it is measured, so that more is always better.
    fn below(case: &'static str, must_reach: &'static str, limit: f64) -> Self {
        Self::at_least(case, must_reach, -limit)
    }

    fn judge(&mut self) {
        self.value = median(self.runs.iter().copied());
        self.reached = self.value.map(|value| match self.limit {
            limit if limit < 0.0 => value < -limit,
            limit => value >= limit,
        });
        self.limit = self.limit.abs();
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.case)?;
        writeln!(f, "  must reach  {}", self.must_reach)?;
        match (self.value, self.reached) {
            (Some(value), Some(reached)) => {
                write!(f, "  reached     {value:.2}")?;
                if !self.how.is_empty() {
                    write!(f, " ({})", self.how)?;
                }
                writeln!(f, "\n  goal        {}", if reached { "reached" } else { "MISSED" })
            }
            _ => writeln!(f, "  not measured: {}", self.how),
        }
    }
}

/// Whether files in a directory can be written past the page cache.
fn takes_direct(dir: &Path) -> Result<(), rustix::io::Errno> {
    let file = tempfile::tempfile_in(dir).map_err(|error| {
        rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
    })?;
    rustix::fs::fcntl_setfl(&file, OFlags::DIRECT)
}

/// What dd writes in a second, into a new file that is removed again.
fn dd(sink: &Sink) -> Result<f64> {
    let scratch = places::scratch(sink)?.ok_or(Error::Empty)?;
    let file = scratch.path().join("dd");
    let began = Instant::now();
    let running = Command::new("dd")
        .arg("if=/dev/zero")
        .arg(format!("of={}", file.display()))
        .arg(format!("bs={BLOCK_BYTES}"))
        .arg(format!("count={}", DISK_BYTES / BLOCK_BYTES))
        .args(["oflag=direct", "conv=fsync", "status=none"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut running = running.map_err(Error::io(|| "run dd: is it installed?"))?;
    let mut said = String::new();
    if let Some(stderr) = &mut running.stderr {
        let _ = stderr.read_to_string(&mut said);
    }
    let status = running.wait().map_err(Error::io(|| "wait for dd"))?;
    let seconds = began.elapsed().as_secs_f64();
    if !status.success() {
        return Err(Error::Usage(format!("dd failed: {}", said.trim())));
    }
    let size = File::open(&file).and_then(|file| file.metadata());
    let size = size.map_err(Error::io(|| format!("read {}", file.display())))?.len();
    Ok(float(size) / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(mut goal: Goal, runs: &[f64]) -> Goal {
        goal.runs = runs.to_vec();
        goal.judge();
        goal
    }

    #[test]
    fn the_middle_run_decides() {
        let goal = judged(Goal::at_least("case", "much", 0.9), &[0.1, 0.95, 0.9]);
        assert_eq!((goal.value, goal.reached, goal.limit), (Some(0.9), Some(true), 0.9));
        let goal = judged(Goal::at_least("case", "much", 0.9), &[0.89, 0.95, 0.1]);
        assert_eq!(goal.reached, Some(false));
        let goal = judged(Goal::below("case", "little", 3.0), &[2.0, 2.9, 9.0]);
        assert_eq!((goal.reached, goal.limit), (Some(true), 3.0));
        assert_eq!(judged(Goal::below("case", "little", 3.0), &[3.0]).reached, Some(false));
    }

    #[test]
    fn people_see_what_was_missed_and_what_could_not_be_measured() {
        let goal = judged(Goal::at_least("case", "much", 0.9), &[0.5]);
        assert!(goal.to_string().contains("MISSED"), "{goal}");
        let goal = Goal { how: "no disk".into(), ..Goal::at_least("case", "much", 0.9) };
        assert!(goal.to_string().contains("not measured: no disk"), "{goal}");
    }

    #[test]
    fn dd_writes_as_much_as_we_do() {
        assert_eq!(DISK_BYTES % BLOCK_BYTES, 0);
    }
}
