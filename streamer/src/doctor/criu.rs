//! Is CRIU here, is it one that the plugin works with, and where does it look for plugins?

use std::{
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{Check, Surroundings};

/// The oldest version.
const OLDEST: (u32, u32) = (4, 0);
/// The newest that this was tried with.
const NEWEST: (u32, u32) = (4, 2);
/// How long it may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most of its help that is read.
const MOST_TEXT: u64 = 1 << 20;

/// A CRIU.
#[derive(Debug)]
pub(super) struct Criu {
    /// The directory for plugins that was compiled into it, as it says.
    pub(super) default_libdir: Option<PathBuf>,
}

/// Looks for CRIU.
pub(super) fn check(here: &Surroundings) -> (Option<Criu>, Vec<Check>) {
    let path = match find(here) {
        Ok(path) => path,
        Err(check) => return (None, vec![*check]),
    };
    let shown = path.display();
    let text = match output(&path, "--version") {
        Ok(text) => text,
        Err(why) => {
            let found = format!("{shown} cannot be run: {why}");
            let advice = "install CRIU 4.0 or later, or name one with --criu";
            return (None, vec![Check::problem("criu", found, advice)]);
        }
    };
    let Some((version, words)) = version(&text) else {
        let found = format!("{shown} does not tell its version");
        let advice = "is it CRIU? Name another one with --criu";
        return (None, vec![Check::problem("criu", found, advice)]);
    };
    let help = output(&path, "--help").unwrap_or_default();
    let criu = Criu { default_libdir: default_libdir(&help) };
    let found = format!("CRIU {words}, {shown}");
    let check = if version < OLDEST {
        let advice = "it is too old for the plugin: 4.0 or later is needed";
        Check::problem("criu", found, advice)
    } else if version > NEWEST {
        Check::ok("criu", format!("{found}; newer than 4.2, the newest that this was tried with"))
    } else {
        Check::ok("criu", found)
    };
    (Some(criu), vec![check])
}

fn find(here: &Surroundings) -> Result<PathBuf, Box<Check>> {
    if let Some(path) = &here.criu {
        return match is_program(path) {
            true => Ok(path.clone()),
            false => {
                let found = format!("{} is no program", path.display());
                let advice = "give --criu the path of the program criu";
                Err(Box::new(Check::problem("criu", found, advice)))
            }
        };
    }
    let path = here.variable("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(path).map(|dir| dir.join("criu"));
    // Where it is installed, which the PATH of ordinary users lacks.
    let usual = ["/usr/local/sbin", "/usr/sbin"].map(|dir| here.path(dir).join("criu"));
    dirs.chain(usual).find(|path| is_program(path)).ok_or_else(|| {
        let advice = "install the package criu (4.0 or later), or name the program with --criu";
        Box::new(Check::problem("criu", "there is no criu in PATH", advice))
    })
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// What it writes, but not for ever.
fn output(program: &Path, option: &str) -> Result<String, String> {
    let mut child = Command::new(program)
        .arg(option)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(MOST_TEXT).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let until = Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            answer => {
                let _ = child.kill();
                let _ = child.wait();
                let silent = || format!("it did not end within {} s", PATIENCE.as_secs());
                return Err(answer.err().map_or_else(silent, |error| error.to_string()));
            }
        }
    };
    match (status.success(), reader.join()) {
        (true, Ok(text)) => Ok(text),
        _ => Err(format!("it ended with {status}")),
    }
}

/// The version in what `criu --version` prints, as numbers and as words.
fn version(text: &str) -> Option<((u32, u32), String)> {
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let version = line("Version:")?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next().and_then(Result::ok).unwrap_or(0));
    // A build of the development branch has the number of the version before it.
    let words = match line("GitID:") {
        Some(id) if !id.is_empty() && id.trim_start_matches('v') != version => {
            format!("{version} ({id})")
        }
        _ => version.to_owned(),
    };
    Some(((major, minor), words))
}

/// `-L|--libdir           path to a plugin directory (by default /usr/lib/criu/)`
fn default_libdir(help: &str) -> Option<PathBuf> {
    let line = help.lines().find(|line| line.contains("--libdir"))?;
    let (_, rest) = line.split_once("(by default ")?;
    let dir = rest.split_once(')')?.0.trim();
    dir.starts_with('/').then(|| dir.into())
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::super::{State, surroundings::tests::Scene};
    use super::*;

    /// Puts a CRIU into the machine that prints this.
    pub(in crate::doctor) fn install(scene: &Scene, version: &str, libdir: &str) -> PathBuf {
        let script = format!(
            "#!/bin/sh\ncase $1 in\n--version) printf '{version}' ;;\n\
             --help) echo '  -L|--libdir  path to a plugin directory (by default {libdir})' ;;\nesac\n"
        );
        scene.write("usr/sbin/criu", script);
        let path = scene.here.path("usr/sbin/criu");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn checked(scene: &Scene) -> (Option<Criu>, Check) {
        let (criu, mut checks) = check(&scene.here);
        assert_eq!(checks.len(), 1);
        (criu, checks.remove(0))
    }

    #[test]
    fn versions_are_told_apart() {
        let cases = [
            ("Version: 4.0\\n", State::Ok, "CRIU 4.0,"),
            ("Version: 4.2.1\\n", State::Ok, "CRIU 4.2.1,"),
            ("Version: 4.1\\nGitID: v4.1\\n", State::Ok, "CRIU 4.1,"),
            ("Version: 4.2\\nGitID: v4.2-81-gab12\\n", State::Ok, "CRIU 4.2 (v4.2-81-gab12),"),
            ("Version: 4.3\\n", State::Ok, "newer than 4.2"),
            ("Version: 10.0\\n", State::Ok, "newer than 4.2"),
            ("Version: 3.19\\n", State::Problem, "CRIU 3.19,"),
            ("Version: 3\\n", State::Problem, "CRIU 3,"),
            ("Verzion 4.2\\n", State::Problem, "does not tell its version"),
            ("", State::Problem, "does not tell its version"),
        ];
        for (version, state, found) in cases {
            let scene = Scene::new(0);
            install(&scene, version, "/usr/lib/criu/");
            let (_, check) = checked(&scene);
            assert_eq!(check.state, state, "{version}: {check:?}");
            assert!(check.found.contains(found), "{version}: {check:?}");
            assert_eq!(check.advice.is_some(), state == State::Problem);
        }
    }

    #[test]
    fn it_is_looked_for_in_path_and_where_it_is_told() {
        let mut scene = Scene::new(0);
        let (criu, check) = checked(&scene);
        assert_eq!((criu.is_none(), check.state), (true, State::Problem));
        assert!(check.found.contains("no criu in PATH"), "{check:?}");

        let usual = install(&scene, "Version: 4.1\\n", "/opt/lib/criu/");
        assert!(checked(&scene).1.found.contains(&usual.display().to_string()));
        let other = scene.dir.path().join("bin/criu");
        fs::create_dir(scene.dir.path().join("bin")).unwrap();
        fs::copy(&usual, &other).unwrap();
        let mut path = std::ffi::OsString::from("/nonexistent:");
        path.push(scene.dir.path().join("bin"));
        scene.set("PATH", path);
        let (criu, check) = checked(&scene);
        assert!(check.found.contains(&other.display().to_string()), "{check:?}");
        assert_eq!(criu.unwrap().default_libdir, Some("/opt/lib/criu/".into()));

        scene.here.criu = Some(usual.clone());
        assert!(checked(&scene).1.found.contains(&usual.display().to_string()));
        // No program, no such file, and one that fails.
        fs::set_permissions(&usual, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(checked(&scene).1.found.contains("is no program"));
        scene.here.criu = Some("/nonexistent".into());
        assert!(checked(&scene).1.found.contains("is no program"));
        scene.here.criu = Some("/bin/false".into());
        assert!(checked(&scene).1.found.contains("cannot be run: it ended with exit status: 1"));
    }
}
