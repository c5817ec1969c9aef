//! The CRIU versions of the virtual machine, and their dumps and restores with the plugin.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use vramstream_tests::real::{criu, process::tail};

use super::{Case, PLUGIN, Result, case::Ended};

/// For a dump or a restore; the machine is slow.
pub(crate) const LONG: Duration = Duration::from_secs(180);

/// Debian's own.
const INSTALLED: &str = "/usr/sbin/criu";
/// Further ones, a directory each.
const FURTHER: &str = "/vm/criu";

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct Criu {
    /// Its version, such as 4.1.1.
    pub(crate) version: String,
    path: PathBuf,
}

/// How CRIU is run.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// The plugin is there.
    pub(crate) plugin: bool,
    /// Images go through a streamer that waits in their directory.
    pub(crate) stream: bool,
    /// As much as can be is logged; else as much as by default, on standard error.
    pub(crate) log: bool,
    /// Further words.
    pub(crate) words: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { plugin: true, stream: false, log: true, words: Vec::new() }
    }
}

impl Options {
    /// With these words as well.
    #[must_use]
    pub(crate) fn with(mut self, words: &[&str]) -> Self {
        self.words.extend(words.iter().map(|&word| word.to_owned()));
        self
    }
}

/// Runs `test` with each version. The results of each go into a folder of its own.
pub(crate) fn each_criu(case: &Case, test: impl Fn(&Case, &Criu) -> Result<()>) -> Result<()> {
    for criu in Criu::all()? {
        let case = case.part(&format!("criu-{}", criu.version))?;
        test(&case, &criu).map_err(|error| {
            // Printed here, because a test that returns an error shows it as one escaped line.
            eprintln!("with CRIU {}: {error}", criu.version);
            format!("failed with CRIU {}", criu.version)
        })?;
    }
    Ok(())
}

impl Criu {
    /// All of them.
    pub(crate) fn all() -> Result<Vec<Self>> {
        let mut paths = vec![PathBuf::from(INSTALLED)];
        for entry in fs::read_dir(FURTHER)? {
            paths.push(entry?.path().join("criu"));
        }
        let criu = |path: PathBuf| {
            let output = Command::new(&path).arg("--version").output()?;
            let output = String::from_utf8_lossy(&output.stdout).into_owned();
            let version = output.lines().find_map(|line| line.strip_prefix("Version: "));
            let version = version.ok_or_else(|| format!("{}: {output:?}", path.display()))?;
            Ok(Self { version: version.to_owned(), path })
        };
        let mut all = paths.into_iter().map(criu).collect::<Result<Vec<_>>>()?;
        all.sort_by(|a, b| a.version.cmp(&b.version));
        if all.len() < 2 {
            return Err(format!("there is but one CRIU: {all:?}").into());
        }
        Ok(all)
    }

    /// The program.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The same for what takes one of the tests outside of virtual machines.
    pub(crate) fn real(&self) -> criu::Criu {
        criu::Criu::at(&self.version, &self.path)
    }

    /// The command with these words, with its log as the result `name`.log, to run or to start.
    pub(crate) fn command(
        &self,
        case: &Case,
        name: &str,
        words: &[&str],
        images: &Path,
        options: &Options,
    ) -> Result<Command> {
        let mut command = Command::new(&self.path);
        command.args(words).arg("-D").arg(images);
        if options.plugin {
            command.args(["-L", PLUGIN]);
        }
        if options.stream {
            command.arg("--stream");
        }
        if options.log {
            command.arg("-v4").arg("-o").arg(case.log(&format!("{name}.log"))?);
        }
        command.args(&options.words);
        Ok(command)
    }

    /// Runs it with these words to its end; another status than 0 is an error with what it said.
    fn run(
        &self,
        case: &Case,
        name: &str,
        words: &[&str],
        images: &Path,
        options: &Options,
    ) -> Result<Ended> {
        let mut command = self.command(case, name, words, images, options)?;
        case.ok(name, &mut command, LONG).map_err(|error| {
            let log = case.log(&format!("{name}.log")).map(|log| tail(&log, "Error", 12));
            format!("{error}\n{}", log.unwrap_or_default()).into()
        })
    }

    /// Dumps process `pid` and all below it into `images`.
    pub(crate) fn dump(
        &self,
        case: &Case,
        name: &str,
        pid: u32,
        images: &Path,
        options: &Options,
    ) -> Result<Ended> {
        self.run(case, name, &["dump", "-t", &pid.to_string()], images, options)
    }

    /// Restores what is in `images`: the number of the process, and what CRIU said.
    pub(crate) fn restore(
        &self,
        case: &Case,
        name: &str,
        images: &Path,
        options: &Options,
    ) -> Result<(u32, Ended)> {
        // CRIU does not overwrite it.
        let pidfile = case.dir("pids")?.join(name);
        let _ = fs::remove_file(&pidfile);
        let words = ["restore", "-d", "--pidfile", &pidfile.display().to_string()];
        let ended = self.run(case, name, &words, images, options)?;
        let pid = fs::read_to_string(&pidfile)?;
        Ok((pid.trim().parse()?, ended))
    }
}
