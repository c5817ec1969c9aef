//! The benchmark of whole streamer programs. `scripts/bench-streamer` runs it.
//!
//! | module | what it is |
//! |---|---|
//! | [`options`] | the command line |
//! | [`content`] | what is dumped |
//! | [`measure`] | one run: a dump, a restore |
//! | [`cases`] | which runs are compared, and what they must reach |
//! | [`report`] | the table and the JSON |
//!
//! The programs of a case take turns (A B, B A, ...), so that a machine that slows down slows all
//! of them and none is always the first; medians are reported. Everything that is dumped is in memory before the clock starts.

pub mod cases;
pub mod content;
pub mod measure;
pub mod options;
pub mod report;

use std::io;

use cases::{Case, Setup};
use options::Options;
use report::{Row, Verdict};

/// Runs the chosen cases. The result says whether all of them ran.
pub fn run(options: &Options) -> io::Result<bool> {
    let setup = Setup::new(options)?;
    // The first run of a day is slow whoever makes it. If it fails, a case will say so.
    let _ = setup.warm_up();
    let mut results = Vec::new();
    for case in cases::all(&setup) {
        if !options.wants(case.id) {
            continue;
        }
        eprintln!("{}: {}", case.id, case.title);
        results.push(run_case(case, options.runs()));
    }
    print!("{}", report::table(&results));
    if let Some(path) = &options.json {
        std::fs::write(path, report::json(options, &results)?)?;
    }
    Ok(results.iter().all(|result| result.rows.iter().all(|row| row.error.is_none())))
}

/// A case that was run.
#[derive(Debug)]
pub struct CaseResult {
    /// Its letter.
    pub id: char,
    /// What it is.
    pub title: String,
    /// A row for each program.
    pub rows: Vec<Row>,
    /// What was to be reached.
    pub verdicts: Vec<Verdict>,
}

fn run_case(case: Case<'_>, runs: usize) -> CaseResult {
    let mut rows: Vec<Row> = case.variants.iter().map(|variant| Row::new(&variant.name)).collect();
    for turn in 0..runs {
        let mut order: Vec<_> = case.variants.iter().zip(&mut rows).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for (variant, row) in order {
            if row.error.is_some() {
                continue;
            }
            match (variant.run)() {
                Ok(sample) => {
                    eprintln!("  {} {}: {sample}", turn + 1, variant.name);
                    row.samples.push(sample);
                }
                Err(error) => {
                    eprintln!("  {} {}: failed: {error}", turn + 1, variant.name);
                    row.error = Some(error.to_string());
                }
            }
        }
    }
    let verdicts = case.targets.iter().map(|target| Verdict::of(target, &rows)).collect();
    CaseResult { id: case.id, title: case.title, rows, verdicts }
}
