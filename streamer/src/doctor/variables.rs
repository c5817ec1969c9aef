//! Are the variables understood that the plugin and this program read?

use vramstream::{
    ring::{BUDGET_VARIABLE, Budget},
    topology::{Checks, Variable},
};

use super::{Check, Surroundings};

/// A check for each that is not understood, or one that tells what is set.
pub(super) fn check(here: &Surroundings) -> Vec<Check> {
    let (mut wrong, mut set) = (Vec::new(), Vec::new());
    let mut look = |name: &'static str, error: Option<String>| {
        let Some(value) = here.variable(name) else { return };
        match error {
            Some(error) => {
                let advice = format!("correct or unset {name}");
                wrong.push(Check::problem("variables", error, advice).about(name));
            }
            None => set.push(format!("{name}={}", value.to_string_lossy())),
        }
    };
    look(
        BUDGET_VARIABLE,
        Budget::from_value(here.variable(BUDGET_VARIABLE)).err().map(|error| error.to_string()),
    );
    for variable in Variable::ALL {
        let name = variable.name();
        let only = |asked: &str| {
            (asked == name).then(|| here.variable(name).map(ToOwned::to_owned)).flatten()
        };
        look(name, Checks::from_values(only).err().map(|error| error.to_string()));
    }
    let mut checks = wrong;
    if !set.is_empty() {
        checks.push(Check::ok("variables", set.join(", ")));
    } else if checks.is_empty() {
        checks.push(Check::ok("variables", "none is set: defaults"));
    }
    checks.extend(unknown(here));
    checks
}

/// Somebody meant something by these, too.
fn unknown(here: &Surroundings) -> Option<Check> {
    let known = |name: &str| Variable::ALL.iter().any(|variable| variable.name() == name);
    let names = here.environment.keys().filter_map(|name| name.to_str());
    let unknown = |name: &&str| name.starts_with("KFD_") && name.ends_with("_CHECK");
    let names: Vec<_> = names.filter(unknown).filter(|name| !known(name)).collect();
    (!names.is_empty()).then(|| {
        let found = format!("nobody reads {}", names.join(", "));
        let all = Variable::ALL.map(Variable::name).join(", ");
        Check::does_not_matter("variables", found).advice(format!("there are {all}"))
    })
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt};

    use super::super::{State, surroundings::tests::Scene};
    use super::*;

    #[test]
    fn every_variable_that_is_not_understood_is_named() {
        let mut scene = Scene::new(0);
        assert_eq!(check(&scene.here), [Check::ok("variables", "none is set: defaults")]);
        scene.set("KFD_NUMA_CHECK", "0");
        scene.set("KFD_MAX_BUFFER_SIZE", "64M");
        let good = Check::ok("variables", "KFD_MAX_BUFFER_SIZE=64M, KFD_NUMA_CHECK=0");
        assert_eq!(check(&scene.here), [good]);
        let names = Variable::ALL.map(Variable::name);
        for name in names.into_iter().chain(["KFD_MAX_BUFFER_SIZE"]) {
            for value in [OsString::from("perhaps"), OsString::from_vec(vec![b'1', 0xff])] {
                let mut scene = Scene::new(0);
                scene.set(name, value);
                let checks = check(&scene.here);
                assert_eq!(checks.len(), 1, "{checks:?}");
                assert_eq!(checks[0].state, State::Problem, "{checks:?}");
                assert_eq!(checks[0].about.as_deref(), Some(name));
                assert!(checks[0].found.contains(name), "{checks:?}");
            }
        }
        // One that is wrong hides no other.
        scene.set("KFD_FW_VER_CHECK", "");
        scene.set("KFD_CAPABILITY_CHECK", "maybe");
        let states: Vec<_> = check(&scene.here).iter().map(|check| check.state).collect();
        assert_eq!(states, [State::Problem, State::Problem, State::Ok]);
    }

    #[test]
    fn a_variable_that_does_not_exist_is_told() {
        let mut scene = Scene::new(0);
        scene.set("KFD_FW_CHECK", "0");
        scene.set("KFD_SOMETHING", "0");
        let checks = check(&scene.here);
        assert_eq!(checks.len(), 2);
        assert_eq!(checks[1].state, State::DoesNotMatter);
        assert_eq!(checks[1].found, "nobody reads KFD_FW_CHECK");
    }
}
