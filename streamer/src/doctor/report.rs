//! What was found, and what to do about it.

use std::fmt;

use serde::Serialize;

/// What a finding means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// It stands in the way.
    Problem,
    /// It stands in nobody's way here.
    DoesNotMatter,
}

/// One thing that was looked at. The names are the interface to programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What is checked, always by the same word.
    pub check: &'static str,
    /// Of which thing, where there can be several.
    pub about: Option<String>,
    /// What it means.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do.
    pub advice: Option<String>,
}

impl Check {
    /// As it should be.
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Check { check, about: None, state: State::Ok, found: found.into(), advice: None }
    }

    /// In the way, with what to do about it.
    pub(super) fn problem(
        check: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let advice = Some(advice.into());
        Check { state: State::Problem, advice, ..Check::ok(check, found) }
    }

    /// In nobody's way.
    pub(super) fn does_not_matter(check: &'static str, found: impl Into<String>) -> Self {
        Check { state: State::DoesNotMatter, ..Check::ok(check, found) }
    }

    /// The same, of one thing among several.
    pub(super) fn about(mut self, thing: impl Into<String>) -> Self {
        self.about = Some(thing.into());
        self
    }

    /// The same, with something that can be done.
    pub(super) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// All that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Of this program.
    pub version: &'static str,
    /// Whether nothing stands in the way.
    pub ready: bool,
    /// How many things do.
    pub problems: usize,
    /// Everything.
    pub checks: Vec<Check>,
}

impl Report {
    pub(super) fn new(checks: Vec<Check>) -> Self {
        let problems = checks.iter().filter(|check| check.state == State::Problem).count();
        Report { version: env!("CARGO_PKG_VERSION"), ready: problems == 0, problems, checks }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let state = match check.state {
                State::Ok => "ok",
                State::Problem => "PROBLEM",
                State::DoesNotMatter => "-",
            };
            let about = check.about.as_ref().map_or(String::new(), |about| format!("{about}: "));
            writeln!(f, "{state:<8} {:<14} {about}{}", check.check, check.found)?;
            if let Some(advice) = &check.advice {
                writeln!(f, "{:<23} -> {advice}", "")?;
            }
        }
        match self.ready {
            true => writeln!(f, "\nNothing stands in the way."),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::new(vec![
            Check::ok("criu", "CRIU 4.2"),
            Check::does_not_matter("gpu", "not GFX9").about("renderD130"),
            Check::problem("kfd", "no device", "load the driver"),
        ])
    }

    #[test]
    fn people_read_a_line_for_each_check_and_what_to_do() {
        let expected = "ok       criu           CRIU 4.2\n\
                        -        gpu            renderD130: not GFX9\n\
                        PROBLEM  kfd            no device\n\
                        \x20                       -> load the driver\n";
        assert_eq!(report().to_string(), expected);
        let ready = Report::new(vec![Check::ok("criu", "CRIU 4.2")]);
        assert!(ready.ready && ready.to_string().ends_with("\n\nNothing stands in the way.\n"));
    }

    #[test]
    fn programs_read_the_same_by_names() {
        let json = serde_json::to_value(report()).unwrap();
        let expected = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "ready": false,
            "problems": 1,
            "checks": [
                { "check": "criu", "about": null, "state": "ok", "found": "CRIU 4.2", "advice": null },
                { "check": "gpu", "about": "renderD130", "state": "does_not_matter", "found": "not GFX9", "advice": null },
                { "check": "kfd", "about": null, "state": "problem", "found": "no device", "advice": "load the driver" },
            ],
        });
        assert_eq!(json, expected);
    }
}
