//! What must match between the machines of a checkpoint and of its restore, and what a person says
//! need not: the `KFD_*_CHECK` variables of CRIU's amdgpu plugin.
//!
//! All are on. `0` or `NO` turns one off, `1` or `YES` on, in upper or lower case. Anything else is
//! an error: who sets such a variable means something by it, and a guess would restore onto GPUs
//! that somebody wanted refused, or refuse what somebody wanted done.

use std::{ffi::OsString, fmt};

/// A variable that turns off a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variable {
    /// The firmware of the compute engines is not older.
    FwVer,
    /// The firmware of the SDMA engines is not older.
    SdmaFwVer,
    /// There are not fewer caches.
    CachesCount,
    /// There is not less global wave sync.
    NumGws,
    /// There is not less VRAM.
    VramSize,
    /// GPUs of one CPU node stay together, and those of different ones apart.
    Numa,
    /// The capabilities are the same.
    Capability,
}

impl Variable {
    /// All of them.
    pub const ALL: [Variable; 7] = [
        Variable::FwVer,
        Variable::SdmaFwVer,
        Variable::CachesCount,
        Variable::NumGws,
        Variable::VramSize,
        Variable::Numa,
        Variable::Capability,
    ];

    /// Its name in the environment.
    pub fn name(self) -> &'static str {
        match self {
            Variable::FwVer => "KFD_FW_VER_CHECK",
            Variable::SdmaFwVer => "KFD_SDMA_FW_VER_CHECK",
            Variable::CachesCount => "KFD_CACHES_COUNT_CHECK",
            Variable::NumGws => "KFD_NUM_GWS_CHECK",
            Variable::VramSize => "KFD_VRAM_SIZE_CHECK",
            Variable::Numa => "KFD_NUMA_CHECK",
            Variable::Capability => "KFD_CAPABILITY_CHECK",
        }
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A variable with a value that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} is not understood: set it to 0, NO, 1 or YES, or unset it")]
pub struct CheckError {
    /// The variable.
    pub variable: Variable,
    /// Its value.
    pub value: String,
}

/// Which checks are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checks {
    /// A bit for each variable.
    off: u8,
}

impl Checks {
    /// What the environment says.
    pub fn from_env() -> Result<Self, CheckError> {
        Self::from_values(|name| std::env::var_os(name))
    }

    /// What an environment says: the value for each name.
    pub fn from_values(value: impl Fn(&str) -> Option<OsString>) -> Result<Self, CheckError> {
        let mut checks = Checks::default();
        for variable in Variable::ALL {
            let Some(value) = value(variable.name()) else { continue };
            let value = value.to_string_lossy();
            match value.to_ascii_uppercase().as_str() {
                "1" | "YES" => {}
                "0" | "NO" => checks = checks.without(variable),
                _ => return Err(CheckError { variable, value: value.into_owned() }),
            }
        }
        Ok(checks)
    }

    /// Whether something is checked.
    pub fn is_on(self, variable: Variable) -> bool {
        self.off & bit(variable) == 0
    }

    /// The same without one of them.
    #[must_use]
    pub fn without(self, variable: Variable) -> Self {
        Checks { off: self.off | bit(variable) }
    }
}

fn bit(variable: Variable) -> u8 {
    1 << variable as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn parse(name: &'static str, value: impl Into<OsString>) -> Result<Checks, CheckError> {
        let value = value.into();
        Checks::from_values(move |asked| (asked == name).then(|| value.clone()))
    }

    #[test]
    fn everything_is_checked_unless_somebody_says_otherwise() {
        let checks = Checks::from_values(|_| None).unwrap();
        assert!(Variable::ALL.into_iter().all(|variable| checks.is_on(variable)));
        for variable in Variable::ALL {
            for (value, on) in [("0", false), ("NO", false), ("no", false), ("No", false)]
                .into_iter()
                .chain([("1", true), ("YES", true), ("yes", true), ("yEs", true)])
            {
                let checks = parse(variable.name(), value).unwrap();
                for other in Variable::ALL {
                    assert_eq!(checks.is_on(other), on || other != variable, "{variable}={value}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_an_error_that_names_it() {
        for variable in Variable::ALL {
            for value in ["", " ", "00", "01", "2", "on", "OFF", "false", "N", "1 ", "-1"] {
                let error = parse(variable.name(), value).unwrap_err();
                assert_eq!(error, CheckError { variable, value: value.into() });
                let message = error.to_string();
                assert!(message.starts_with(&format!("{variable}={value:?} ")), "{message}");
            }
        }
        let error = parse("KFD_NUMA_CHECK", OsString::from_vec(vec![0xff, b'1'])).unwrap_err();
        assert_eq!(error.variable, Variable::Numa);
    }
}
