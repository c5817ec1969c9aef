//! Which plugins would CRIU load?
//!
//! It loads every file of its directory for plugins whose name ends in `.so`, and asks them in
//! whatever order the directory has. So our plugin must be there, and no other one for AMD GPUs.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::{Check, State, Surroundings, criu::Criu};

/// The plugin's file in CRIU's directory.
pub const PLUGIN_FILE: &str = "amdgpu_plugin.so";

/// What is in the file of our plugin, before its version and a NUL.
pub const MARKER: &[u8] = b"vramstream plugin ";
/// What is in the file of every plugin of CRIU: the name of its descriptor.
const DESCRIPTOR: &[u8] = b"CR_PLUGIN_DESC";
/// What is in the file of CRIU's own plugin for AMD GPUs: its name.
const AMDGPU: &[u8] = b"amdgpu_plugin";

/// Where CRIU looks if it is not told otherwise.
const DEFAULT_DIR: &str = "/usr/lib/criu";
/// The most files of the directory that are looked at.
const MOST_FILES: usize = 1024;
/// The most of a file that is read: far more than a plugin has, debugging symbols included.
const MOST_BYTES: u64 = 1 << 30;
/// How much of it at a time.
const PIECE: usize = 1 << 20;
/// The longest version.
const MOST_VERSION: usize = 64;

/// What a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Our plugin, and its version.
    Ours(String),
    /// Another plugin for AMD GPUs.
    Rival,
    /// Something else: a plugin for other devices.
    Other,
}

/// Looks at the directory for plugins. Without a GPU nobody needs one.
pub(super) fn check(here: &Surroundings, criu: Option<&Criu>, needed: bool) -> Vec<Check> {
    let (dir, chosen) = directory(here, criu);
    let shown = dir.display();
    let missing = |found: String, advice: &str| match needed {
        true => Check::problem("plugin", found, advice),
        false => {
            Check::does_not_matter("plugin", format!("{found}; without a GPU it is not needed"))
        }
    };
    let install = "install it with scripts/install or the Debian package";
    let files = match libraries(&dir) {
        Ok(files) => files,
        Err(error) if chosen.is_some() => {
            // CRIU itself fails then.
            let found = format!("{shown}: {error}");
            let by = chosen.unwrap_or_default();
            let advice =
                format!("{by} names this directory for plugins, and criu fails without it");
            return vec![Check::problem("plugin", found, advice)];
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return vec![missing(format!("{shown} is not there: CRIU loads no plugin"), install)];
        }
        Err(error) => {
            let advice = "run this as root";
            return vec![Check::problem("plugin", format!("{shown}: {error}"), advice)];
        }
    };
    let (mut ours, mut checks, mut rivals) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match kind(&file) {
            Ok(Kind::Ours(version)) => ours.push((name, version)),
            Ok(Kind::Rival) => rivals.push(name),
            Ok(Kind::Other) => {}
            Err(error) => {
                let found = format!("{}: {error}", file.display());
                let advice = "run this as root, or move the file away: CRIU loads it, too";
                checks.push(Check::problem("plugin", found, advice));
            }
        }
    }
    let ours_first = match ours.iter().position(|(name, _)| name == PLUGIN_FILE) {
        _ if ours.is_empty() && rivals.is_empty() => {
            missing(format!("{shown} has no {PLUGIN_FILE}"), install)
        }
        _ if ours.is_empty() => {
            let found = format!("{shown} has no plugin of vramstream");
            missing(found, install)
        }
        None => {
            let found = format!("{shown}/{} is it, under another name", ours[0].0);
            let advice = format!(
                "call it {PLUGIN_FILE}: so another one cannot be installed beside it unnoticed"
            );
            Check::problem("plugin", found, advice)
        }
        Some(at) => {
            let version = ours.swap_remove(at).1;
            ours.push((PLUGIN_FILE.to_owned(), version.clone()));
            of_version(&format!("{shown}/{PLUGIN_FILE}"), &version)
        }
    };
    let has_ours = ours_first.state == State::Ok;
    checks.insert(0, ours_first);
    let others = ours.iter().map(|(name, _)| name).filter(|name| *name != PLUGIN_FILE);
    for name in others.chain(&rivals) {
        if !has_ours && !rivals.contains(name) {
            continue;
        }
        let found = format!("{shown}/{name} is another plugin for AMD GPUs");
        let advice = format!(
            "move it away, or give it a name that does not end in .so \
             (mv {shown}/{name} {shown}/{name}.orig): CRIU loads both and asks either"
        );
        checks.push(match needed || has_ours {
            true => Check::problem("other_plugin", found, advice),
            false => Check::does_not_matter("other_plugin", found),
        });
    }
    checks
}

fn of_version(path: &str, version: &str) -> Check {
    let this = env!("CARGO_PKG_VERSION");
    if version == this {
        return Check::ok("plugin", format!("{path}, version {version}"));
    }
    let found = format!("{path} is of version {version}, and this program of {this}");
    Check::problem("plugin", found, "install both from the same version")
}

/// Where CRIU looks, and who says so if it is not the default.
fn directory(here: &Surroundings, criu: Option<&Criu>) -> (PathBuf, Option<&'static str>) {
    if let Some(dir) = &here.libdir {
        return (dir.clone(), Some("--libdir"));
    }
    if let Some(dir) = here.variable("CRIU_LIBS_DIR") {
        return (dir.into(), Some("CRIU_LIBS_DIR"));
    }
    let compiled = criu.and_then(|criu| criu.default_libdir.as_deref());
    let dir = compiled.unwrap_or(Path::new(DEFAULT_DIR));
    (here.root.join(dir.strip_prefix("/").unwrap_or(dir).components().as_path()), None)
}

/// The files that CRIU would load, by name.
fn libraries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)?.take(MOST_FILES) {
        let path = entry?.path();
        if path.as_os_str().as_encoded_bytes().ends_with(b".so") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn kind(path: &Path) -> io::Result<Kind> {
    let mut file = File::open(path)?.take(MOST_BYTES);
    let (mut descriptor, mut amdgpu) = (false, false);
    let mut bytes = Vec::new();
    loop {
        // What was read before stays as far as something may have begun there.
        let keep = bytes.len().min(MARKER.len() + MOST_VERSION);
        bytes.drain(..bytes.len() - keep);
        let read = (&mut file).take(PIECE as u64).read_to_end(&mut bytes)?;
        if let Some(version) = version(&bytes) {
            return Ok(Kind::Ours(version));
        }
        descriptor |= find(&bytes, DESCRIPTOR).is_some();
        amdgpu |= find(&bytes, AMDGPU).is_some();
        if read == 0 {
            return Ok(if descriptor && amdgpu { Kind::Rival } else { Kind::Other });
        }
    }
}

/// The version after a marker. (There may be bytes like the marker's elsewhere.)
fn version(mut bytes: &[u8]) -> Option<String> {
    while let Some(at) = find(bytes, MARKER) {
        bytes = bytes.get(at + MARKER.len()..)?;
        let end = bytes.iter().take(MOST_VERSION).position(|&byte| byte == 0);
        let version = end.and_then(|end| std::str::from_utf8(&bytes[..end]).ok());
        if let Some(version) = version.filter(|v| v.starts_with(|c: char| c.is_ascii_digit())) {
            return Some(version.to_owned());
        }
    }
    None
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::super::surroundings::tests::Scene;
    use super::*;

    const CRIUS_OWN: &str = "\x7fELF..CR_PLUGIN_DESC\0..amdgpu_plugin\0/dev/kfd";

    fn ours(version: &str) -> Vec<u8> {
        // The marker lies across two pieces.
        let mut file = vec![b'x'; PIECE - 7];
        file.extend(format!("vramstream plugin {version}\0CR_PLUGIN_DESC\0amdgpu_plugin").bytes());
        file
    }

    fn this() -> Vec<u8> {
        ours(env!("CARGO_PKG_VERSION"))
    }

    fn checked(scene: &Scene, needed: bool) -> Vec<(&'static str, State, String)> {
        let checks = check(&scene.here, None, needed);
        let text =
            |check: &Check| format!("{} {}", check.found, check.advice.as_deref().unwrap_or(""));
        checks.iter().map(|check| (check.check, check.state, text(check))).collect()
    }

    fn states(scene: &Scene, needed: bool) -> Vec<(&'static str, State)> {
        checked(scene, needed).into_iter().map(|(name, state, _)| (name, state)).collect()
    }

    #[test]
    fn it_must_be_there_where_there_are_gpus() {
        let scene = Scene::new(1);
        for made in [false, true] {
            if made {
                fs::create_dir_all(scene.here.path(DEFAULT_DIR)).unwrap();
                scene.write("usr/lib/criu/cuda_plugin.so", "CR_PLUGIN_DESC\0cuda_plugin");
                scene.write("usr/lib/criu/amdgpu_plugin.so.1", CRIUS_OWN);
            }
            assert_eq!(states(&scene, true), [("plugin", State::Problem)]);
            assert_eq!(states(&scene, false), [("plugin", State::DoesNotMatter)]);
        }
        scene.write("usr/lib/criu/amdgpu_plugin.so", this());
        assert_eq!(states(&scene, true), [("plugin", State::Ok)]);
        assert_eq!(states(&scene, false), [("plugin", State::Ok)]);
    }

    #[test]
    fn another_version_is_a_problem() {
        let scene = Scene::new(1);
        scene.write("usr/lib/criu/amdgpu_plugin.so", ours("99.1.0-rc1"));
        let checks = checked(&scene, true);
        assert_eq!((checks.len(), checks[0].1), (1, State::Problem));
        assert!(checks[0].2.contains("is of version 99.1.0-rc1"), "{checks:?}");
        // The marker without a version is no plugin of ours: this program has it, too.
        scene.write(
            "usr/lib/criu/amdgpu_plugin.so",
            "vramstream plugin CR_PLUGIN_DESC amdgpu_plugin",
        );
        assert_eq!(
            states(&scene, true),
            [("plugin", State::Problem), ("other_plugin", State::Problem)]
        );
    }

    #[test]
    fn another_plugin_for_the_same_devices_is_named() {
        let scene = Scene::new(1);
        scene.write("usr/lib/criu/amdgpu_plugin.so", CRIUS_OWN);
        let both = [("plugin", State::Problem), ("other_plugin", State::Problem)];
        assert_eq!(states(&scene, true), both);
        let neither = [("plugin", State::DoesNotMatter), ("other_plugin", State::DoesNotMatter)];
        assert_eq!(states(&scene, false), neither);

        scene.write("usr/lib/criu/amdgpu_plugin.so", this());
        for other in [CRIUS_OWN.as_bytes().to_vec(), this()] {
            scene.write("usr/lib/criu/old.so", other);
            for needed in [true, false] {
                let checks = checked(&scene, needed);
                let found: Vec<_> = checks.iter().map(|check| (check.0, check.1)).collect();
                assert_eq!(found, [("plugin", State::Ok), ("other_plugin", State::Problem)]);
                assert!(checks[1].2.contains("/usr/lib/criu/old.so is another"), "{checks:?}");
                assert!(checks[1].2.contains("old.so.orig"), "{checks:?}");
            }
        }
    }

    #[test]
    fn it_has_the_name_that_others_would_replace() {
        let scene = Scene::new(1);
        scene.write("usr/lib/criu/libvramstream.so", this());
        let checks = checked(&scene, true);
        assert_eq!((checks.len(), checks[0].1), (1, State::Problem));
        assert!(checks[0].2.contains("call it amdgpu_plugin.so"), "{checks:?}");
    }

    #[test]
    fn criu_is_told_the_directory_in_three_ways() {
        let mut scene = Scene::new(1);
        scene.write("opt/criu/amdgpu_plugin.so", this());
        let compiled = Criu { default_libdir: Some("/opt/criu/".into()) };
        assert_eq!(check(&scene.here, Some(&compiled), true)[0].state, State::Ok);
        assert_eq!(check(&scene.here, None, true)[0].state, State::Problem);
        let absent = scene.here.path("absent");
        scene.set("CRIU_LIBS_DIR", absent.clone());
        // CRIU fails then, GPU or not.
        for needed in [true, false] {
            let checks = checked(&scene, needed);
            assert_eq!(checks[0].1, State::Problem);
            assert!(checks[0].2.contains("CRIU_LIBS_DIR names this directory"), "{checks:?}");
        }
        scene.here.libdir = Some(scene.here.path("opt/criu"));
        assert_eq!(states(&scene, true), [("plugin", State::Ok)]);
        scene.here.libdir = Some(absent);
        assert!(checked(&scene, true)[0].2.contains("--libdir names this directory"));
    }
}
