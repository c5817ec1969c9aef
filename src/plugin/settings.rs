//! What the environment asks for.

use std::ffi::OsString;

use super::error::{Error, Result};
use crate::{
    abi::criu::{HOOKS_WITH_RETRY, Stage},
    ring::{BUDGET_VARIABLE, Budget},
    topology::Checks,
};

/// When a dump waits for contents that were handed to the streamer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Join {
    /// In the last hook whose failure fails the dump.
    #[default]
    Hook,
    /// In `exit`: CRIU writes its images meanwhile, and a failure is for the streamer to act on.
    Exit,
}

/// The environment variable that chooses where a dump waits for contents that were handed over.
pub const JOIN: &str = "VRAMSTREAM_JOIN";

/// What a dump or a restore goes by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub budget: Budget,
    pub checks: Checks,
    pub join: Join,
    /// Whether CRIU has a hook after all tasks were dumped, whose failure fails the dump.
    pub has_late_hook: bool,
}

impl Settings {
    /// What an environment says: the value for each name.
    pub(super) fn new(
        stage: Stage,
        hooks: usize,
        value: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self> {
        let checks = match stage {
            Stage::Restore => Checks::from_values(&value)?,
            // Nobody minds them then.
            Stage::Dump | Stage::PreDump => Checks::default(),
        };
        let join = match value(JOIN).as_ref().map(|value| value.to_string_lossy()) {
            None => Join::Hook,
            Some(value) => match &*value {
                "hook" => Join::Hook,
                "exit" => Join::Exit,
                _ => return Err(Error::Join { value: value.into_owned() }),
            },
        };
        let budget = Budget::from_value(value(BUDGET_VARIABLE).as_deref())?;
        Ok(Settings { budget, checks, join, has_late_hook: hooks >= HOOKS_WITH_RETRY })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_named() {
        let settings = |stage, name: &'static str, given: &'static str| {
            let value = |asked: &str| (asked == name).then(|| given.into());
            Settings::new(stage, 12, value).map_err(|error| error.to_string())
        };
        assert_eq!(settings(Stage::Dump, JOIN, "exit").unwrap().join, Join::Exit);
        assert_eq!(settings(Stage::Dump, JOIN, "hook").unwrap().join, Join::Hook);
        assert!(settings(Stage::Dump, JOIN, "").unwrap_err().contains("VRAMSTREAM_JOIN=\"\""));
        let size = settings(Stage::Dump, "KFD_MAX_BUFFER_SIZE", "2GiBs").unwrap_err();
        assert!(size.contains("KFD_MAX_BUFFER_SIZE=\"2GiBs\""), "{size}");
        let check = "KFD_NUMA_CHECK";
        assert!(settings(Stage::Dump, check, "maybe").is_ok());
        assert!(settings(Stage::Restore, check, "maybe").unwrap_err().contains(check));
    }
}
