//! A scenario from its start to its report.

use super::{Bounds, Note, Report, Scenario, lab::Lab};
use crate::{error::Result, signals::Signals};

/// Runs a scenario as often as it says, each time after its parts alone.
pub fn run(scenario: &Scenario, signals: &Signals, note: Note<'_>) -> Result<Report> {
    note(&format!("{}: filling the simulated memory", scenario.describe()));
    let lab = Lab::start(scenario, signals)?;
    let (mut bounds, mut samples) = (Bounds::default(), Vec::new());
    for run in 1..=scenario.runs {
        note(&format!("run {run} of {}", scenario.runs));
        signals.check()?;
        bounds.measure(&lab)?;
        samples.push(lab.run()?);
    }
    Ok(Report::new(scenario, &lab.ring, samples, &bounds))
}
