//! `vramstream doctor`, as a person and as a script runs it: on a simulated machine, and on one
//! without GPUs.
#![forbid(unsafe_code)]

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
    thread,
};

use serde_json::Value;
use vramstream::device::sim::{Daemon, Machine, Profile, SimHost};
use vramstream_tests::streamer::Program;

/// A machine in a directory, with a CRIU and a directory for plugins.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    /// A machine with so many GPUs; without any there is no topology and no device either.
    fn new(gpus: u32) -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        let scene = Scene { dir };
        fs::create_dir(scene.path("machine"))?;
        fs::create_dir(scene.path("plugins"))?;
        scene.criu("4.2.1")?;
        if gpus > 0 {
            let host = SimHost::new(Machine::new(&Profile::gfx942(), gpus))?;
            host.write_sysfs(&scene.path("machine/topology")).map_err(io::Error::other)?;
            fs::write(scene.path("machine/dev"), "511:0\n")?;
            let daemon = Arc::new(Daemon::bind(host, &scene.path("machine/gpus.sock"))?);
            thread::spawn(move || daemon.serve());
        }
        Ok(scene)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn criu(&self, version: &str) -> io::Result<()> {
        let path = self.path("criu");
        fs::write(&path, format!("#!/bin/sh\necho Version: {version}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
    }

    fn plugin(&self, name: &str, version: &str) -> io::Result<()> {
        let contents = format!("CR_PLUGIN_DESC\0amdgpu_plugin\0vramstream plugin {version}\0");
        fs::write(self.path("plugins").join(name), contents)
    }

    fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> io::Result<Output> {
        let mut command = Program::under_test()?.command();
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("KFD_") || name == "CRIU_LIBS_DIR" {
                command.env_remove(name);
            }
        }
        command.env("VRAMSTREAM_SIMULATED_GPUS", self.path("machine"));
        command.arg("doctor").arg("--criu").arg(self.path("criu"));
        command.arg("--libdir").arg(self.path("plugins"));
        command.args(words).envs(variables.iter().copied()).output()
    }

    /// What a script reads. The exit status always says the same.
    fn json(&self, variables: &[(&str, &str)]) -> io::Result<Value> {
        let output = self.run(&["--json"], variables)?;
        let json: Value = serde_json::from_slice(&output.stdout)?;
        let problems = states(&json, None).iter().filter(|state| *state == "problem").count();
        assert_eq!(json["problems"], problems, "{json:#}");
        assert_eq!(json["ready"], problems == 0, "{json:#}");
        assert_eq!(output.status.code(), Some(i32::from(problems > 0)), "{json:#}");
        Ok(json)
    }
}

/// The states of all checks, or of those with a name.
fn states(json: &Value, name: Option<&str>) -> Vec<String> {
    let checks = json["checks"].as_array().into_iter().flatten();
    let of_name = checks.filter(|check| name.is_none_or(|name| check["check"] == name));
    of_name.map(|check| check["state"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_machine_with_gpus_and_everything_else() -> io::Result<()> {
    let scene = Scene::new(2)?;
    scene.plugin("amdgpu_plugin.so", env!("CARGO_PKG_VERSION"))?;
    let json = scene.json(&[])?;
    for (name, states_of_name) in [
        ("machine", &["does_not_matter"][..]),
        ("criu", &["ok"]),
        ("plugin", &["ok"]),
        ("other_plugin", &[]),
        ("kernel", &["ok"]),
        ("kfd", &["ok"]),
        ("topology", &["ok"]),
        ("gpu", &["ok", "ok"]),
        ("variables", &["ok"]),
    ] {
        assert_eq!(states(&json, Some(name)), states_of_name, "{name}: {json:#}");
    }
    for name in ["capabilities", "ptrace", "io_uring", "locked_memory", "open_files", "pipes"] {
        assert_eq!(states(&json, Some(name)).len(), 1, "{name}: {json:#}");
    }
    // What is wrong with this machine itself is not of interest here: one problem more is.
    let before = json["problems"].as_u64().unwrap();
    let more = |json: Value| json["problems"].as_u64().unwrap() - before;
    assert_eq!(more(scene.json(&[("KFD_NUMA_CHECK", "perhaps")])?), 1);
    assert_eq!(more(scene.json(&[("KFD_NUMA_CHECK", "0")])?), 0);
    scene.criu("3.19")?;
    assert_eq!(more(scene.json(&[])?), 1);
    scene.criu("4.0")?;
    scene.plugin("other.so", "0.0.1")?;
    let json = scene.json(&[])?;
    assert_eq!(states(&json, Some("other_plugin")), ["problem"], "{json:#}");
    assert_eq!(more(json), 1);
    fs::remove_dir_all(scene.path("plugins"))?;
    assert_eq!(more(scene.json(&[])?), 1);
    Ok(())
}

#[test]
fn a_machine_without_gpus() -> io::Result<()> {
    let scene = Scene::new(0)?;
    let json = scene.json(&[])?;
    for (name, state) in
        [("criu", "ok"), ("plugin", "does_not_matter"), ("gpus", "does_not_matter")]
    {
        assert_eq!(states(&json, Some(name)), [state], "{name}: {json:#}");
    }
    for name in ["kfd", "topology", "gpu", "hidden_gpu"] {
        assert!(states(&json, Some(name)).is_empty(), "{name}: {json:#}");
    }
    let before = json["problems"].as_u64().unwrap();
    let json = scene.json(&[("KFD_MAX_BUFFER_SIZE", "much")])?;
    assert_eq!(json["problems"].as_u64(), Some(before + 1), "{json:#}");
    Ok(())
}

#[test]
fn people_read_what_to_do() -> io::Result<()> {
    let scene = Scene::new(1)?;
    scene.plugin("amdgpu_plugin.so", "0.0.1")?;
    let output = scene.run(&[], &[("KFD_FW_VER_CHECK", "sometimes")])?;
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    for line in [
        "ok       criu           CRIU 4.2.1, ",
        "amdgpu_plugin.so is of version 0.0.1, and this program of ",
        "                        -> install both from the same version\n",
        "ok       gpu            renderD128: GPU 0x",
        "PROBLEM  variables      KFD_FW_VER_CHECK: KFD_FW_VER_CHECK=\"sometimes\" is not understood",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(said.contains("Error: ") && said.contains("stands in the way ("), "{said}");
    assert_eq!(scene.run(&["--surprise"], &[])?.status.code(), Some(2));
    Ok(())
}

#[test]
fn root_is_not_needed_to_be_told_that_it_would_be() -> io::Result<()> {
    let scene = Scene::new(0)?;
    let own = scene.path("vramstream");
    fs::copy(Program::under_test()?.path(), &own)?;
    let mut command = Program::at(&own).as_nobody().command();
    let output = command
        .env("VRAMSTREAM_SIMULATED_GPUS", scene.path("machine"))
        .args(["doctor", "--json", "--criu"])
        .arg(scene.path("criu"))
        .output()?;
    let json: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(states(&json, Some("capabilities")), ["problem"], "{json:#}");
    assert_eq!(output.status.code(), Some(1));
    Ok(())
}

#[test]
fn it_leaves_nothing_behind() -> io::Result<()> {
    let scene = Scene::new(1)?;
    let before = listing(scene.dir.path())?;
    scene.json(&[])?;
    assert_eq!(listing(scene.dir.path())?, before);
    Ok(())
}

fn listing(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            paths.extend(listing(&path)?);
        }
        paths.push(path);
    }
    paths.sort();
    Ok(paths)
}
