//! The table.

use std::{fmt::Write, fs};

use super::options::Case;

/// A line.
#[derive(Debug, Default)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// How long it took.
    pub seconds: Option<f64>,
    /// Bytes of contents, for the columns that are for each 10^9 of them.
    pub bytes: u64,
    /// Processor time of CRIU and the streamer.
    pub cpu: Option<f64>,
    /// The most memory, in bytes.
    pub peak: Option<u64>,
    /// How it compares.
    pub ratio: Option<Ratio>,
}

/// How something compares, and how it must.
#[derive(Debug)]
pub struct Ratio {
    /// The figure.
    pub value: f64,
    /// In words: of what.
    pub of: String,
    /// What it has to be, where that was set.
    pub goal: Option<Goal>,
}

/// A limit.
#[derive(Debug, Clone, Copy)]
pub enum Goal {
    /// No less.
    AtLeast(f64),
    /// No more.
    AtMost(f64),
}

impl Ratio {
    /// Whether it is as it has to be.
    fn is_well(&self) -> bool {
        match self.goal {
            None => true,
            Some(Goal::AtLeast(limit)) => self.value >= limit,
            Some(Goal::AtMost(limit)) => self.value <= limit,
        }
    }
}

impl Row {
    /// Whether it has reached its goal, if it has one.
    pub fn is_well(&self) -> bool {
        self.ratio.as_ref().is_none_or(Ratio::is_well)
    }
}

/// Everything as text.
pub fn table(cases: &[(Case, Vec<Row>)]) -> String {
    let mut out = String::new();
    for (case, rows) in cases {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "\n{}", case.title());
        let _ = writeln!(
            out,
            "  {:<52} {:>8} {:>7} {:>9} {:>9}  ratio and goal",
            "", "seconds", "GB/s", "CPU-s/GB", "peak MiB"
        );
        for row in rows {
            let number = |value: Option<f64>, digits: usize| {
                value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let gigabytes = (row.bytes > 0).then(|| float(row.bytes) / 1e9);
            let _ = writeln!(
                out,
                "  {:<52} {:>8} {:>7} {:>9} {:>9}  {}",
                row.name,
                number(row.seconds, 3),
                number(gigabytes.zip(row.seconds).map(|(bytes, seconds)| bytes / seconds), 2),
                number(gigabytes.zip(row.cpu).map(|(bytes, cpu)| cpu / bytes), 2),
                number(row.peak.map(|bytes| float(bytes) / f64::from(1 << 20)), 1),
                row.ratio.as_ref().map_or(String::new(), words),
            );
        }
    }
    out
}

fn words(ratio: &Ratio) -> String {
    let goal = match ratio.goal {
        None => return format!("{:.2} {}", ratio.value, ratio.of),
        Some(Goal::AtLeast(limit)) => format!("at least {limit}"),
        Some(Goal::AtMost(limit)) => format!("at most {limit}"),
    };
    let verdict = if ratio.is_well() { "OK" } else { "MISSED" };
    format!("{:.2} {}, {goal}: {verdict}", ratio.value, ratio.of)
}

/// What it was measured on.
pub fn machine() -> String {
    let field = |path: &str, name: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("?", |(_, value)| value.trim()).to_owned()
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = field("/proc/meminfo", "MemTotal");
    let memory = memory.split(' ').next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "measured on {cores} cores of {}, {} GiB of memory, Linux {}",
        field("/proc/cpuinfo", "model name"),
        (memory + (1 << 19)) >> 20,
        kernel.trim()
    )
}

/// The middle of some figures.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    match values.len() % 2 {
        1 => Some(upper),
        _ => Some(f64::midpoint(*values.get(values.len() / 2 - 1)?, upper)),
    }
}

/// As a number to compare.
#[expect(clippy::cast_precision_loss, reason = "a measurement, not an account")]
pub fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: f64, goal: Goal) -> Row {
        let ratio = Ratio { value, of: "times as much".into(), goal: Some(goal) };
        Row { name: "what".into(), ratio: Some(ratio), ..Row::default() }
    }

    #[test]
    fn what_is_missed_is_said() {
        let rows = vec![row(1.2, Goal::AtMost(1.15)), row(0.9, Goal::AtLeast(0.95))];
        assert!(rows.iter().all(|row| !row.is_well()));
        let table = table(&[(Case::Overlap, rows)]);
        assert!(table.contains("1.20 times as much, at most 1.15: MISSED"), "{table}");
        assert!(row(1.15, Goal::AtMost(1.15)).is_well() && row(1.0, Goal::AtLeast(1.0)).is_well());
    }

    #[test]
    fn the_middle_of_an_even_number_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }
}
