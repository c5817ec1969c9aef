//! A test: its name, its folders, the programs that it runs.
//!
//! What a test writes to its [`Case::log`]s is given back to the host, in a directory of the test's
//! name. What is in its [`Case::dir`]s goes with the test.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use vramstream_tests::real::{host::Scratch, process::Process, process::tail};

use super::Result;

/// Where the results of all tests are.
const RESULTS: &str = "/vm/results";

/// The [`Case`] of the test that this stands in.
macro_rules! case {
    () => {{
        fn here() {}
        $crate::support::Case::new(std::any::type_name_of_val(&here))
    }};
}
pub(crate) use case;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Case {
    results: PathBuf,
    scratch: Scratch,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its status.
    pub(crate) status: ExitStatus,
    /// Its standard output.
    pub(crate) stdout: String,
    /// Its standard error.
    pub(crate) stderr: String,
}

impl Case {
    /// The test in which the function `here` is: see [`case!`](case).
    pub(crate) fn new(here: &str) -> Result<Self> {
        if !Path::new(RESULTS).is_dir() {
            return Err("this runs in a virtual machine only: use scripts/vm-test".into());
        }
        let name = here.strip_suffix("::here").unwrap_or(here);
        let name = name.split_once("::").map_or(name, |(_, name)| name);
        let results = Path::new(RESULTS).join(name.replace("::", "/"));
        fs::create_dir_all(&results)?;
        Ok(Self { results, scratch: Scratch::new()? })
    }

    /// A part of the test, with its results in a folder `name` of the test's, and folders of its own.
    pub(crate) fn part(&self, name: &str) -> Result<Self> {
        let results = self.results.join(name);
        fs::create_dir_all(&results)?;
        Ok(Self { results, scratch: Scratch::new()? })
    }

    /// The path of the result `name`. A name may have folders in it.
    pub(crate) fn log(&self, name: &str) -> Result<PathBuf> {
        let path = self.results.join(name);
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        Ok(path)
    }

    /// Makes the folder `name`, which goes with the test.
    pub(crate) fn dir(&self, name: &str) -> Result<PathBuf> {
        self.scratch.dir(name)
    }

    /// Runs a command to its end, at most for `limit`. What it says is kept as the results
    /// `name`.stdout and `name`.stderr: files, since others may keep them open after it.
    pub(crate) fn run(&self, name: &str, command: &mut Command, limit: Duration) -> Result<Ended> {
        let path = |stream: &str| self.log(&format!("{name}.{stream}"));
        let (stdout, stderr) = (path("stdout")?, path("stderr")?);
        command.stdin(Stdio::null());
        command.stdout(File::create(&stdout)?).stderr(File::create(&stderr)?);
        let status = Process::start(name, command)?.wait(limit)?;
        let read = |path| Ok::<_, std::io::Error>(String::from_utf8_lossy(&fs::read(path)?).into());
        Ok(Ended { status, stdout: read(stdout)?, stderr: read(stderr)? })
    }

    /// The same, where another status than 0 is an error.
    pub(crate) fn ok(&self, name: &str, command: &mut Command, limit: Duration) -> Result<Ended> {
        let ended = self.run(name, command, limit)?;
        if ended.status.success() {
            return Ok(ended);
        }
        let said = tail(&self.log(&format!("{name}.stderr"))?, "", 12);
        Err(format!("{name}: {}\n{said}", ended.status).into())
    }
}
