//! `scripts/install`, into a directory, with a program that was built already.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use vramstream_tests::streamer::Program;

const OURS: &str = "an ELF of sorts; vramstream plugin 0.1.0\0";
const OTHERS: &str = "an ELF of sorts; CR_PLUGIN_DESC amdgpu_plugin\0";

/// A place to install into, and what to install.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::create_dir(dir.path().join("build"))?;
        fs::create_dir(dir.path().join("root"))?;
        let program = fs::canonicalize(Program::under_test()?.path())?;
        symlink(program, dir.path().join("build/vramstream"))?;
        fs::write(dir.path().join("build/libvramstream.so"), OURS)?;
        Ok(Scene { dir })
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn plugin(&self) -> PathBuf {
        self.root().join("usr/lib/criu/amdgpu_plugin.so")
    }

    fn orig(&self) -> PathBuf {
        self.root().join("usr/lib/criu/amdgpu_plugin.so.orig")
    }

    /// The plugin of somebody else.
    fn rival(&self) -> io::Result<()> {
        fs::create_dir_all(self.root().join("usr/lib/criu"))?;
        fs::write(self.plugin(), OTHERS)
    }

    fn install(&self, words: &[&str], variables: &[(&str, &str)]) -> io::Result<Output> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/install");
        Command::new(script)
            .args(words)
            .env_remove("PREFIX")
            .env_remove("CRIU_PLUGIN_DIR")
            .env("BUILD_DIR", self.dir.path().join("build"))
            .env("DESTDIR", self.root())
            .envs(variables.iter().copied())
            .output()
    }

    fn done(&self, words: &[&str], variables: &[(&str, &str)]) -> io::Result<()> {
        let output = self.install(words, variables)?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn refused(&self, words: &[&str], why: &str) -> io::Result<()> {
        let before = files(&self.root())?;
        let output = self.install(words, &[])?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
        assert_eq!(files(&self.root())?, before);
        Ok(())
    }
}

/// All files and directories, and the permissions of each.
fn files(root: &Path) -> io::Result<BTreeMap<String, u32>> {
    fn add(dir: &Path, root: &Path, all: &mut BTreeMap<String, u32>) -> io::Result<()> {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let meta = path.symlink_metadata()?;
            let name = path.strip_prefix(root).map_err(io::Error::other)?;
            all.insert(name.to_string_lossy().into_owned(), meta.permissions().mode() & 0o777);
            if meta.is_dir() {
                add(&path, root, all)?;
            }
        }
        Ok(())
    }
    let mut all = BTreeMap::new();
    add(root, root, &mut all)?;
    Ok(all)
}

#[test]
fn everything_is_in_its_place_and_leaves_it_without_a_trace() -> io::Result<()> {
    let scene = Scene::new()?;
    scene.done(&[], &[])?;
    let installed = files(&scene.root())?;
    for (file, mode) in [
        ("usr/local/bin/vramstream", 0o755),
        ("usr/lib/criu/amdgpu_plugin.so", 0o644),
        ("usr/local/share/man/man1/vramstream.1", 0o644),
        ("usr/local/share/man/man1/vramstream-capture.1", 0o644),
        ("usr/local/share/man/man1/vramstream-doctor.1", 0o644),
        ("usr/local/share/man/man7/vramstream-plugin.7", 0o644),
        ("usr/local/share/bash-completion/completions/vramstream", 0o644),
        ("usr/local/share/zsh/site-functions/_vramstream", 0o644),
        ("usr/local/share/fish/vendor_completions.d/vramstream.fish", 0o644),
        ("usr/local/share/doc/vramstream/LICENSE-MIT", 0o644),
        ("usr/local/share/doc/vramstream/LICENSE-APACHE", 0o644),
    ] {
        assert_eq!(installed.get(file), Some(&mode), "{file}: {installed:#?}");
    }
    let empty = installed.keys().filter(|file| {
        fs::metadata(scene.root().join(file)).is_ok_and(|meta| meta.is_file() && meta.len() == 0)
    });
    assert_eq!(empty.count(), 0);
    // Nothing else that CRIU would load.
    assert_eq!(fs::read_dir(scene.root().join("usr/lib/criu"))?.count(), 1);
    // Once more changes nothing, and is still all removed.
    scene.done(&[], &[])?;
    assert_eq!(files(&scene.root())?, installed);
    scene.done(&["--uninstall"], &[])?;
    assert_eq!(files(&scene.root())?, BTreeMap::new());
    scene.refused(&["--uninstall"], "nothing was installed")
}

#[test]
fn what_was_there_before_stays() -> io::Result<()> {
    let scene = Scene::new()?;
    fs::create_dir_all(scene.root().join("usr/local/bin"))?;
    fs::create_dir_all(scene.root().join("usr/lib/criu"))?;
    fs::write(scene.root().join("usr/lib/criu/cuda_plugin.so"), "another")?;
    let before = files(&scene.root())?;
    scene.done(&[], &[])?;
    scene.done(&["--uninstall"], &[])?;
    assert_eq!(files(&scene.root())?, before);
    Ok(())
}

#[test]
fn the_plugin_of_somebody_else_is_not_overwritten() -> io::Result<()> {
    let scene = Scene::new()?;
    scene.rival()?;
    scene.refused(&[], "is not of vramstream")?;
    scene.done(&["--force"], &[])?;
    assert_eq!(fs::read_to_string(scene.plugin())?, OURS);
    assert_eq!(fs::read_to_string(scene.orig())?, OTHERS);
    // An update keeps it.
    scene.done(&[], &[])?;
    assert_eq!(fs::read_to_string(scene.orig())?, OTHERS);
    scene.done(&["--uninstall"], &[])?;
    assert_eq!(fs::read_to_string(scene.plugin())?, OTHERS);
    assert!(!scene.orig().exists());
    // With two of them nobody can say which one is to be kept.
    fs::write(scene.orig(), OTHERS)?;
    scene.refused(&["--force"], "neither is of vramstream")?;
    Ok(())
}

#[test]
fn a_plugin_that_took_the_place_of_ours_stays() -> io::Result<()> {
    let scene = Scene::new()?;
    scene.done(&[], &[])?;
    fs::write(scene.plugin(), OTHERS)?;
    scene.done(&["--uninstall"], &[])?;
    assert_eq!(fs::read_to_string(scene.plugin())?, OTHERS);
    assert!(!scene.root().join("usr/local").exists());
    Ok(())
}

#[test]
fn other_places() -> io::Result<()> {
    let scene = Scene::new()?;
    let places = [("PREFIX", "/opt/vramstream"), ("CRIU_PLUGIN_DIR", "/usr/lib64/criu")];
    scene.done(&[], &places)?;
    let plugin = scene.root().join("usr/lib64/criu/amdgpu_plugin.so");
    assert!(plugin.is_file() && scene.root().join("opt/vramstream/bin/vramstream").is_file());
    assert!(!scene.root().join("usr/lib").exists() && !scene.root().join("usr/local").exists());
    // It moves, and the former place is cleared.
    scene.done(&[], &places[..1])?;
    assert!(!plugin.exists() && scene.plugin().is_file());
    // What was installed where is known without being told.
    scene.done(&["--uninstall"], &places[..1])?;
    assert_eq!(files(&scene.root())?, BTreeMap::new());
    Ok(())
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_written() -> io::Result<()> {
    let scene = Scene::new()?;
    scene.refused(&["--surprise"], "is not an option")?;
    fs::write(scene.dir.path().join("build/libvramstream.so"), "no plugin")?;
    scene.refused(&[], "no version of the plugin")?;
    fs::remove_file(scene.dir.path().join("build/libvramstream.so"))?;
    scene.refused(&[], "is not there")?;
    let output = scene.install(&[], &[("PREFIX", "here")])?;
    assert!(!output.status.success());
    Ok(())
}
