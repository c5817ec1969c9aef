//! One scenario with many rings, or with more and more GPUs.

use std::fmt;

use serde::Serialize;
use vramstream::ring::ByteSize;

use super::{Note, Report, Scenario, report::gb, run};
use crate::{error::Result, signals::Signals};

/// What changes from point to point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// The size of the ring, 64 KiB to 256 MiB.
    Ring,
    /// The number of GPUs, 1 to 8.
    Gpus,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Sweep {
    /// Over what.
    pub over: Over,
    /// In order.
    pub points: Vec<Point>,
}

/// One of them.
#[derive(Debug, Clone, Serialize)]
pub struct Point {
    /// Where: "64K", "8".
    pub at: String,
    /// What was measured there.
    pub report: Report,
}

impl Over {
    /// The scenarios, each with a name.
    pub fn scenarios(self, scenario: &Scenario) -> Vec<(String, Scenario)> {
        match self {
            Over::Ring => (16..=28)
                .step_by(2)
                .map(|shift| {
                    let bytes = 1 << shift;
                    let at = ByteSize(bytes).to_string();
                    (at, Scenario { ring: Some(bytes), ..scenario.clone() })
                })
                .collect(),
            Over::Gpus => [1, 2, 4, 8]
                .map(|gpus| (gpus.to_string(), Scenario { gpus, ..scenario.clone() }))
                .into(),
        }
    }
}

/// Measures at every point.
pub fn sweep(over: Over, scenario: &Scenario, signals: &Signals, note: Note<'_>) -> Result<Sweep> {
    let points = over.scenarios(scenario).into_iter().map(|(at, scenario)| {
        let report = run(&scenario, signals, note)?;
        Ok(Point { at, report })
    });
    Ok(Sweep { over, points: points.collect::<Result<_>>()? })
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Over::Ring => "ring",
            Over::Gpus => "GPUs",
        })
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = self.over.to_string();
        writeln!(
            f,
            "{over:>8} {:>12} {:>12} {:>12} {:>8} {:>10} {:>10}",
            "together", "each GPU", "bound", "reached", "CPU-s/GB", "peak MiB"
        )?;
        for Point { at, report } in &self.points {
            writeln!(
                f,
                "{at:>8} {:>12} {:>12} {:>12} {:>6.0} % {:>10.2} {:>10}",
                gb(report.rate),
                gb(report.rate_per_gpu),
                gb(report.bound.rate),
                100.0 * report.share,
                report.own_cpu_per_gb,
                report.peak_bytes >> 20
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::Bounds;

    pub(in crate::bench) fn some(over: Over) -> Sweep {
        let scenario = Scenario { vram: 1 << 20, ..Scenario::default() };
        let ring = Scenario { ring: Some(1 << 20), ..scenario.clone() }.make_ring().unwrap();
        let points = over.scenarios(&scenario).into_iter().zip(1_i32..).map(|((at, point), n)| {
            let mut report = Report::new(&point, &ring, Vec::new(), &Bounds::default());
            report.rate = f64::from(n) * 1e9;
            report.bound.rate = f64::from(n) * 2e9;
            Point { at, report }
        });
        Sweep { over, points: points.collect() }
    }

    #[test]
    fn points_are_those_that_people_read_off_an_axis() {
        let names = |over: Over| {
            over.scenarios(&Scenario::default()).into_iter().map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(names(Over::Ring), ["64K", "256K", "1M", "4M", "16M", "64M", "256M"]);
        assert_eq!(names(Over::Gpus), ["1", "2", "4", "8"]);
        assert!(Over::Ring.scenarios(&Scenario::default()).iter().all(|(_, s)| s.check().is_ok()));
    }

    #[test]
    fn a_table_has_a_line_for_each_point() {
        let table = some(Over::Ring).to_string();
        assert_eq!(table.lines().count(), 8, "{table}");
        assert!(table.contains("256M    7.00 GB/s"), "{table}");
    }
}
