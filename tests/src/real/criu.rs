//! The CRIU versions that `scripts/criu-setup` sets up.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::Result;
use super::process::{Process, run, tail};
use super::workload::{Kind, Workload};

/// One of them.
#[derive(Clone, Debug)]
pub struct Criu {
    /// Its version, such as 4.1.1.
    pub version: String,
    path: PathBuf,
}

/// All of them, set up at the first call.
pub fn versions() -> Result<Vec<Criu>> {
    static VERSIONS: OnceLock<std::result::Result<Vec<Criu>, String>> = OnceLock::new();
    let versions = VERSIONS.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/criu-setup");
        let lines = run(&mut Command::new(script)).map_err(|e| e.to_string())?;
        let lines = lines.lines().filter_map(|line| line.split_once(' '));
        Ok(lines.map(|(v, path)| Criu { version: v.into(), path: path.into() }).collect())
    });
    Ok(versions.clone()?)
}

/// A dump that goes on.
#[derive(Debug)]
pub struct Dump {
    /// CRIU itself.
    pub process: Process,
    log: PathBuf,
}

impl Dump {
    /// Waits for its end, at most for `limit`: whether it succeeded, and what CRIU logged as errors.
    pub fn end(&mut self, limit: Duration) -> Result<std::result::Result<(), String>> {
        let status = self.process.wait(limit)?;
        if status.success() {
            return Ok(Ok(()));
        }
        Ok(Err(format!("criu dump: {status}\n{}", tail(&self.log, "Error", 8))))
    }
}

impl Criu {
    /// One that is there already.
    pub fn at(version: &str, path: &Path) -> Self {
        Self { version: version.to_owned(), path: path.to_owned() }
    }

    /// Whether its version is at least `major.minor`.
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.version.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (major, minor)
    }

    /// The program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn command(&self, words: &[&str], images: &Path, log: &str) -> Result<Command> {
        let mut command = Command::new(&self.path);
        command.args(words).args(["--stream", "-v4", "-o", log]).arg("-D").arg(images);
        // What CRIU says before it has opened its log.
        let early = File::create(images.join(format!("{log}.early")))?;
        command.stdin(Stdio::null()).stdout(early.try_clone()?).stderr(early);
        Ok(command)
    }

    /// Starts to dump `workload` to the streamer at the folder `images`, with further `options`.
    pub fn dump(&self, workload: &Workload, images: &Path, options: &[&str]) -> Result<Dump> {
        self.dump_pid(workload.target(), images, options)
    }

    /// The same with any process.
    pub fn dump_pid(&self, pid: u32, images: &Path, options: &[&str]) -> Result<Dump> {
        let mut command = self.command(&["dump"], images, "dump.log")?;
        command.arg("-t").arg(pid.to_string()).args(options);
        let process = Process::start("criu dump", &mut command)?;
        Ok(Dump { process, log: images.join("dump.log") })
    }

    /// Restores `workload` from the streamer at the folder `images`; it must be gone.
    pub fn restore(&self, workload: &mut Workload, images: &Path, limit: Duration) -> Result<()> {
        let mut command = self.command(&["restore", "-d"], images, "restore.log")?;
        if let Kind::Namespaces = workload.kind() {
            // The root of a restored mount namespace must be a mount point. It is made one in a mount
            // namespace that ends with CRIU: one left behind in the test's folder would have the
            // cleaning up of that folder go through it.
            let root = images.join("root");
            fs::create_dir_all(&root)?;
            command.arg("--root").arg(&root);
            let mut inner = Command::new("unshare");
            let script = "mount --bind / \"$1\" && shift && exec \"$@\"";
            inner.args(["--mount", "sh", "-c", script, "sh"]).arg(&root);
            inner.arg(command.get_program()).args(command.get_args());
            let early = File::create(images.join("restore.log.early"))?;
            inner.stdin(Stdio::null()).stdout(early.try_clone()?).stderr(early);
            command = inner;
        }
        // Also of a restore that failed, there may be something to end.
        let (pid, result) = Self::restored(command, images, limit)?;
        if let Some(pid) = pid {
            workload.set_restored(pid);
        }
        result
    }

    /// Restores any process from the streamer at the folder `images`: its number.
    pub fn restore_pid(&self, images: &Path, limit: Duration) -> Result<u32> {
        let command = self.command(&["restore", "-d"], images, "restore.log")?;
        let (pid, result) = Self::restored(command, images, limit)?;
        result?;
        pid.ok_or_else(|| "criu restore: no pid file".into())
    }

    /// Runs a restore: the number of the process if it was made, and how it ended.
    fn restored(
        mut command: Command,
        images: &Path,
        limit: Duration,
    ) -> Result<(Option<u32>, Result<()>)> {
        let pidfile = images.join("pid");
        command.arg("--pidfile").arg(&pidfile);
        let mut process = Process::start("criu restore", &mut command)?;
        let status = process.wait(limit);
        let pid = match fs::read_to_string(&pidfile) {
            Ok(pid) => Some(pid.trim().parse()?),
            Err(_) => None,
        };
        let result = status.and_then(|status| {
            if status.success() && pid.is_some() {
                return Ok(());
            }
            let log = tail(&images.join("restore.log"), "Error", 8);
            let early = tail(&images.join("restore.log.early"), "", 8);
            Err(format!("criu restore: {status}\n{log}\n{early}").into())
        });
        Ok((pid, result))
    }
}
