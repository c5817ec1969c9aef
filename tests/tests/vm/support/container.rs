//! Containers: a bundle for `runc` or `crun` in which one GPU of the host can be used, its checkpoint
//! and its restore from another bundle.
//!
//! The container has the machine's programs (read only), a tmpfs at `/dev` with the nodes of its GPU and
//! no others, and a device cgroup that allows these alone; sysfs shows the host's.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::sys::stat::{major, minor, stat};
use serde_json::{Value, json};
use vramstream_tests::real::{
    process::{Process, run, tail},
    wait_for,
};

use super::{Case, Criu, PLUGIN, Result, criu::LONG};

/// What both runtimes have CRIU read.
const CRIU_OPTIONS: &str = "/etc/criu/runc.conf";
/// Where the container's folder for reports is, inside.
pub(crate) const REPORTS: &str = "/reports";
/// The machine's folders that the container has.
const SHARED: [&str; 3] = ["/usr", "/etc", "/vm"];

/// Who makes containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// `runc`.
    Runc,
    /// `crun`.
    Crun,
}

impl Runtime {
    /// Its program.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Runtime::Runc => "runc",
            Runtime::Crun => "crun",
        }
    }

    /// Runs it with these words for a container. What it says is the result `name`.said: it gives its
    /// standard streams to the container, so they are nothing.
    fn run(self, case: &Case, criu: &Criu, name: &str, words: &[&OsStr]) -> Result<()> {
        // They take the `criu` that is found first.
        let dir = criu.path().parent().ok_or("CRIU is in no directory")?;
        let path = std::env::var("PATH").unwrap_or_default();
        let said = case.log(&format!("{name}.said"))?;
        let mut command = Command::new(self.program());
        command.env("PATH", format!("{}:{path}", dir.display()));
        command.arg("--log").arg(&said).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = Process::start(name, &mut command)?.wait(LONG)?;
        if status.success() {
            return Ok(());
        }
        let criu = case.log(&format!("{name}.log"))?;
        let (said, criu) = (tail(&said, "", 5), tail(&criu, "Error", 12));
        Err(format!("{name}: {status}\n{said}\n{criu}").into())
    }
}

/// A container, ended on drop.
#[derive(Debug)]
pub(crate) struct Container {
    runtime: Runtime,
    criu: Criu,
    name: String,
}

/// A bundle: what a container is made from.
#[derive(Debug)]
pub(crate) struct Bundle {
    dir: PathBuf,
}

impl Bundle {
    /// One in the folder `dir` for the program `args`, which may use the GPU of render node `render`
    /// (as the kernel knows it now), with the folder `reports` to write to.
    pub(crate) fn new(dir: &Path, args: &[&str], render: u32, reports: &Path) -> Result<Self> {
        let root = dir.join("rootfs");
        for name in ["dev", "proc", "sys", "tmp", "run", "reports", "usr", "etc", "vm"] {
            fs::create_dir_all(root.join(name))?;
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            let link = root.join(name);
            if !link.is_symlink() {
                symlink(format!("usr/{name}"), link)?;
            }
        }
        let kfd = stat("/dev/kfd")?.st_rdev;
        let kfd = (major(kfd), minor(kfd));
        let config = config(args, kfd, (226, render.into()), reports);
        fs::write(dir.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
        Ok(Self { dir: dir.to_owned() })
    }
}

/// The runtime's `config.json`.
fn config(args: &[&str], kfd: (u64, u64), render: (u64, u64), reports: &Path) -> Value {
    let capabilities = ["CAP_KILL", "CAP_DAC_OVERRIDE", "CAP_IPC_LOCK", "CAP_SYS_RESOURCE"];
    let node = |path: String, (major, minor): (u64, u64)| json!({ "path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666, "uid": 0, "gid": 0 });
    let allowed = |(major, minor): (u64, u64)| json!({ "allow": true, "type": "c", "major": major, "minor": minor, "access": "rwm" });
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
            "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] }),
        json!({ "destination": "/dev/shm", "type": "tmpfs", "source": "shm",
            "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"] }),
        json!({ "destination": "/sys", "type": "sysfs", "source": "sysfs",
            "options": ["nosuid", "noexec", "nodev", "ro"] }),
        json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs" }),
        json!({ "destination": REPORTS, "type": "bind", "source": reports,
            "options": ["rbind", "rw"] }),
    ];
    mounts.extend(SHARED.map(|dir| {
        json!({ "destination": dir, "type": "bind", "source": dir, "options": ["bind", "ro"] })
    }));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": 0, "gid": 0 },
            "args": args,
            "env": ["PATH=/usr/sbin:/usr/bin", "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1"],
            "cwd": "/",
            "capabilities": {
                "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
            },
            "noNewPrivileges": true,
        },
        "root": { "path": "rootfs", "readonly": false },
        "mounts": mounts,
        "linux": {
            "devices": [
                node("/dev/kfd".into(), kfd),
                node(format!("/dev/dri/renderD{}", render.1), render),
            ],
            "resources": {
                "devices": [
                    { "allow": false, "access": "rwm" },
                    allowed(kfd),
                    allowed(render),
                ],
            },
            "namespaces": [
                { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" },
            ],
        },
    })
}

impl Container {
    /// Starts one from a bundle.
    pub(crate) fn run(
        case: &Case,
        runtime: Runtime,
        criu: &Criu,
        name: &str,
        bundle: &Bundle,
    ) -> Result<Self> {
        let container = Self { runtime, criu: criu.clone(), name: name.to_owned() };
        let words: [&OsStr; 5] = [
            "run".as_ref(),
            "--detach".as_ref(),
            "--bundle".as_ref(),
            bundle.dir.as_ref(),
            name.as_ref(),
        ];
        runtime.run(case, criu, &format!("{name}-run"), &words)?;
        Ok(container)
    }

    /// Has CRIU dump it into the folder `images`, with our plugin; it is gone then.
    pub(crate) fn checkpoint(self, case: &Case, images: &Path) -> Result<()> {
        let name = format!("{}-checkpoint", self.name);
        plugin_for_runtimes(case, &format!("{name}.log"))?;
        let work = case.dir("work")?;
        let words: [&OsStr; 6] = [
            "checkpoint".as_ref(),
            "--image-path".as_ref(),
            images.as_ref(),
            "--work-path".as_ref(),
            work.as_ref(),
            self.name.as_ref(),
        ];
        self.runtime.run(case, &self.criu, &name, &words)?;
        wait_for("the end of the container", LONG, || Ok(self.pid().is_err().then_some(())))
    }

    /// Has CRIU restore it from the folder `images`, with our plugin, in another bundle.
    pub(crate) fn restore(
        case: &Case,
        runtime: Runtime,
        criu: &Criu,
        name: &str,
        bundle: &Bundle,
        images: &Path,
    ) -> Result<Self> {
        let container = Self { runtime, criu: criu.clone(), name: name.to_owned() };
        plugin_for_runtimes(case, &format!("{name}-restore.log"))?;
        let work = case.dir("work")?;
        let words: [&OsStr; 9] = [
            "restore".as_ref(),
            "--detach".as_ref(),
            "--bundle".as_ref(),
            bundle.dir.as_ref(),
            "--image-path".as_ref(),
            images.as_ref(),
            "--work-path".as_ref(),
            work.as_ref(),
            name.as_ref(),
        ];
        runtime.run(case, criu, &format!("{name}-restore"), &words)?;
        Ok(container)
    }

    /// Its first process, as the host numbers it.
    pub(crate) fn pid(&self) -> Result<u32> {
        let state = run(Command::new(self.runtime.program()).args(["state", &self.name]))?;
        let state: Value = serde_json::from_str(&state)?;
        let pid = state["pid"].as_u64().filter(|&pid| pid != 0).ok_or("it has no process")?;
        Ok(pid.try_into()?)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let delete = ["delete", "--force", &self.name];
        let _ = run(Command::new(self.runtime.program()).args(delete));
    }
}

/// Has CRIU load our plugin where it is not told how by its command line, and write its log where it is
/// kept.
fn plugin_for_runtimes(case: &Case, log: &str) -> Result<()> {
    if let Some(dir) = Path::new(CRIU_OPTIONS).parent() {
        fs::create_dir_all(dir)?;
    }
    let log = case.log(log)?;
    let options = format!("libdir {PLUGIN}\nlog-file {}\nverbosity 4\n", log.display());
    Ok(fs::write(CRIU_OPTIONS, options)?)
}
