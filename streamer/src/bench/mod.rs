//! `vramstream bench`: how fast contents of GPUs go through the pipeline, and how near that is to
//! what is possible.
//!
//! ```text
//!  Scenario ──► Lab (simulated machines, ring) ──► run        one dump, restore, or both
//!                          │                        │
//!                          └─────────► bounds ──────┴──► Report    table, JSON, plot
//! ```
//!
//! A [`Scenario`] says what is moved where. Every run of it is preceded by runs of the parts alone:
//! the copies without anything behind them, the checksums without anything before them, the sink
//! fed with chunks that are ready. These say what could be reached, on this machine and at this
//! time; see [`bounds`](Bounds). [`goals`](mod@goals) are scenarios with something to reach.
//!
//! # What the figures mean
//!
//! The GPUs are simulated: their copies are made by this machine's CPUs, which a real SDMA engine
//! leaves alone. So CPU time is told twice, with and without the threads that play engines. The
//! simulated VRAM is memory of this process, but not anonymous memory: the peak that is told is of
//! anonymous memory, which is what the pipeline takes.
//!
//! This module does not know how anything is moved: it uses what a real dump and restore use.

mod bounds;
pub mod goals;
mod lab;
mod measure;
mod places;
mod plot;
mod replay;
mod report;
mod run;
mod scenario;
mod sweep;

pub use bounds::Bounds;
pub use measure::Sample;
pub use plot::plot;
pub use report::Report;
pub use run::run;
pub use scenario::{BoSizes, Contents, Direction, Scenario, Sink};
pub use sweep::{Over, Sweep, sweep};

/// Tells somebody who waits what is being measured.
pub type Note<'a> = &'a dyn Fn(&str);

/// The middle of some values; `None` of none.
fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some(f64::midpoint(*values.get(values.len() / 2 - 1)?, upper))
}

/// Bytes as a number to calculate with.
#[expect(clippy::cast_precision_loss, reason = "a measurement, not an account")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_the_middle() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }
}
