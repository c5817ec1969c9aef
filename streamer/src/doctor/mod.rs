//! What a person needs to know before the first dump: is everything here that a checkpoint takes?
//!
//! | file | what it is |
//! |---|---|
//! | here | which checks there are, and in which order they are told |
//! | `report` | a [`Check`] and all of them, for programs and for people |
//! | `surroundings` | everything that is looked at, so that a test can be another machine |
//! | `criu`, `plugin` | CRIU, and the plugins it would load |
//! | `gpus` | KFD, the GPUs and their render nodes |
//! | `rights`, `resources`, `variables` | what this process may do, how much of it, and what it was told |
//!
//! It changes nothing. What it opens it closes again; the one program that it runs is CRIU, for its
//! version and the place of its plugins. It does not need root, and says what it cannot see without.

mod criu;
mod gpus;
mod plugin;
mod report;
mod resources;
mod rights;
mod surroundings;
mod variables;

pub use plugin::{MARKER, PLUGIN_FILE};
pub use report::{Check, Report, State};
pub use surroundings::{Limits, Surroundings};

/// Looks at everything.
pub fn examine(here: &Surroundings) -> Report {
    let mut checks = Vec::new();
    checks.extend(here.simulated.as_ref().map(|dir| {
        let found = format!("the GPUs are simulated ({})", dir.display());
        Check::does_not_matter("machine", found)
    }));
    let (criu, of_criu) = criu::check(here);
    let (gpus, of_gpus) = gpus::check(here);
    checks.extend(of_criu);
    checks.extend(plugin::check(here, criu.as_ref(), gpus > 0));
    checks.extend(of_gpus);
    checks.extend(rights::check(here, gpus > 0));
    checks.extend(resources::check(here, gpus));
    checks.extend(variables::check(here));
    Report::new(checks)
}
