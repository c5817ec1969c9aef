//! The benchmark of the CRIU plugin. `scripts/bench-plugin` runs it, as root.
//!
//! | module | what it measures |
//! |---|---|
//! | [`handover`] | what it costs to hand over ten thousand BOs |
//! | [`overlap`] | real CRIU: a process's memory and its GPUs' at the same time, against each alone |
//! | [`peak`] | real CRIU: its memory, with GPU memory and without |
//! | [`directory`] | contents to files, against writing as many bytes, and against the copies alone |
//! | [`dump`] | one dump by real CRIU, and what it cost |
//! | [`report`] | the table |
//! | [`options`] | the command line |
//!
//! The GPUs are simulated, in a process of their own, whose processor time is not counted. What is
//! compared takes turns in the same run (A B, B A, ...) and a ratio is the middle of those of the
//! turns, so that a machine that slows down slows all of them.

pub mod directory;
pub mod dump;
pub mod handover;
pub mod options;
pub mod overlap;
pub mod peak;
pub mod report;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;

use crate::real::{Result, host::Machine};
use options::{Case, Options};
use report::Row;

/// Measures what is asked for and prints it. The result says whether all goals were reached.
pub fn run(options: &Options) -> Result<bool> {
    if !geteuid().is_root() {
        return Err("CRIU needs root: run this as root".into());
    }
    // A descriptor for each BO.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let _machine = Machine::acquire()?;
    let mut rows = Vec::new();
    for case in Case::ALL.into_iter().filter(|case| options.wants(*case)) {
        eprintln!("{}", case.title());
        let measured = match case {
            Case::Handover => handover::measure(options)?,
            Case::Overlap => overlap::measure(options)?,
            Case::Peak => peak::measure(options)?,
            Case::Directory => directory::measure(options)?,
        };
        rows.push((case, measured));
    }
    print!("{}", report::table(&rows));
    println!("\n{}", report::machine());
    Ok(rows.iter().flat_map(|(_, rows)| rows).all(Row::is_well))
}
