//! The variables of the environment: what each may be, what it is without, what it means.

use clap_mangen::roff::{Inline, bold, italic, roman};
use vramstream::{
    plugin::JOIN_VARIABLE,
    ring::{BUDGET_VARIABLE, Budget, ByteSize},
    system::SIMULATED_GPUS,
    topology::Variable as Switch,
};

/// A variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variable {
    name: &'static str,
    value: &'static str,
    meaning: String,
    default: String,
}

/// Stands for all `KFD_*_CHECK` variables.
pub(super) const CHECKS: &str = "KFD_*_CHECK";

/// The values of those.
const SWITCH: &str = "0|NO|1|YES";

impl Variable {
    pub(super) fn term(&self) -> [Inline; 3] {
        [bold(self.name), roman("="), italic(self.value)]
    }

    pub(super) fn meaning(&self) -> String {
        format!("{} Default: {}.", self.meaning, self.default)
    }
}

/// The variables of a name, or of several.
pub(super) fn find(name: &str) -> Vec<Variable> {
    match name {
        CHECKS => Switch::ALL.iter().map(|&switch| of_switch(switch)).collect(),
        name => all().into_iter().filter(|variable| variable.name == name).collect(),
    }
}

fn of_switch(switch: Switch) -> Variable {
    let what = match switch {
        Switch::FwVer => "Whether the firmware of the compute engines must not be older.",
        Switch::SdmaFwVer => "Whether the firmware of the SDMA engines must not be older.",
        Switch::CachesCount => "Whether there must not be fewer caches.",
        Switch::NumGws => "Whether there must not be less global wave sync (GWS).",
        Switch::VramSize => "Whether there must not be less VRAM.",
        Switch::Numa => {
            "Whether GPUs of one CPU node must stay together, and those of different ones apart."
        }
        Switch::Capability => "Whether the capabilities of the GPUs must be the same.",
    };
    let meaning = format!(
        "{what} In upper or lower case; anything else, also the empty string, is an error that names the variable."
    );
    Variable { name: switch.name(), value: SWITCH, meaning, default: "1".into() }
}

fn all() -> Vec<Variable> {
    let (chunk, chunks) = Budget::default().shape(1);
    let for_a_gpu = ByteSize((chunk * chunks) as u64);
    let variable = |name, value, meaning: &str, default: &str| Variable {
        name,
        value,
        meaning: meaning.into(),
        default: default.into(),
    };
    vec![
        Variable {
            name: BUDGET_VARIABLE,
            value: "SIZE",
            meaning: "The memory that the contents of GPUs pass through: of all GPUs of a process together, on \
                dump and on restore. Digits, then nothing or one of k, m, g (K, M, G), then optionally B or iB: \
                4096, 64M, 2GiB. 0 is the default, and more than that is not used. The least is 8K, two \
                pages. Anything else is an error before anything is stopped."
                .into(),
            default: format!("{for_a_gpu} for each GPU"),
        },
        variable(
            "CRIU_LIBS_DIR",
            "DIR",
            "Where CRIU looks for plugins, unless its option --libdir says so. CRIU reads it, and doctor does.",
            "what was compiled into CRIU, mostly /usr/lib/criu",
        ),
        variable("PATH", "DIRS", "Where criu is looked for.", "none"),
        variable(
            "CRTOOLS_SCRIPT_ACTION",
            "STAGE",
            "Set by CRIU: at which stage the action script is run. Only post-dump matters.",
            "as post-dump",
        ),
        variable(
            "CRTOOLS_IMAGE_DIR",
            "DIR",
            "Set by CRIU: the images directory, unless --images-dir names it.",
            "none",
        ),
        variable(
            JOIN_VARIABLE,
            "hook|exit",
            "Where a dump waits for contents that were handed to a streamer: in the hook, so that a failure fails the \
             dump, or in the end, so that CRIU writes its own images meanwhile. With exit a failure is for \
             vramstream-commit-gate(1) to act on: without it the process may be lost.",
            "hook",
        ),
        variable(
            SIMULATED_GPUS,
            "DIR",
            "For tests: a simulated machine in place of the devices of this one.",
            "unset: the devices of this machine",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_a_page_uses_is_a_variable() {
        for path in super::super::Notes::paths() {
            for name in super::super::Notes::of(path).environment {
                assert!(!find(name).is_empty(), "{path}: {name}");
            }
        }
        assert_eq!(find(CHECKS).len(), 7);
    }
}
