//! This machine: the lock that gives one test at a time the run of it, folders, and hosts made of
//! network namespaces.

use std::fs::{self, File};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

use super::process::run;
use super::{Result, wait_for};

/// Held by a test that restores processes: their numbers must be free, and what each test claims
/// about time should not depend on the others.
#[derive(Debug)]
pub struct Machine {
    _lock: Flock<File>,
}

impl Machine {
    /// Waits for all other such tests, of this process and of others.
    pub fn acquire() -> Result<Self> {
        let path = std::env::temp_dir().join("vramstream-real-criu.lock");
        let mut file = Some(File::create(path)?);
        let lock = wait_for("the machine", Duration::from_secs(1800), || {
            let Some(this) = file.take() else { return Err("no lock file".into()) };
            match Flock::lock(this, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => Ok(Some(lock)),
                Err((again, _)) => {
                    file = Some(again);
                    Ok(None)
                }
            }
        })?;
        Ok(Self { _lock: lock })
    }
}

/// A folder of one's own, removed on drop, but never through a mount.
#[derive(Debug)]
pub struct Scratch {
    dir: Option<TempDir>,
    path: PathBuf,
}

impl Scratch {
    /// Makes one.
    pub fn new() -> Result<Self> {
        Self::in_dir(&std::env::temp_dir())
    }

    /// Makes one in a directory.
    pub fn in_dir(dir: &Path) -> Result<Self> {
        // Short, because a socket's path has but 107 bytes.
        let dir = tempfile::Builder::new().prefix("vs").tempdir_in(dir)?;
        let path = dir.path().canonicalize()?;
        Ok(Self { dir: Some(dir), path })
    }

    /// Makes the folder `name` in it.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Mounts a tmpfs of `bytes` at the folder `name` in it.
    pub fn small_disk(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.dir(name)?;
        let size = format!("size={bytes}");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some(size.as_str()))?;
        Ok(path)
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let Ok(info) = fs::read_to_string("/proc/self/mountinfo") else { return Vec::new() };
        let mounts = info.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        mounts.filter(|mount| mount.starts_with(&self.path)).collect()
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for mount in self.mounts().iter().rev() {
            let _ = umount2(mount, MntFlags::MNT_DETACH);
        }
        let keep = std::env::var_os("VRAMSTREAM_KEEP").is_some() || !self.mounts().is_empty();
        if let (true, Some(dir)) = (keep, self.dir.take()) {
            let _ = dir.keep();
        }
    }
}

/// Two network namespaces joined by a virtual cable.
#[derive(Debug)]
pub struct Link {
    names: [String; 2],
}

/// The addresses of the two ends of a [`Link`], of those set aside for documentation.
pub const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

impl Link {
    /// Makes both and the cable, which carries `megabits` per second.
    pub fn new(megabits: u32) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let stem = format!("vs{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let link = Self { names: [format!("{stem}a"), format!("{stem}b")] };
        let [a, b] = &link.names;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&["-n", a, "link", "add", "v0", "type", "veth", "peer", "name", "v0", "netns", b])?;
        for (name, address) in link.names.iter().zip(ADDRESSES) {
            ip(&["-n", name, "address", "add", &format!("{address}/30"), "dev", "v0"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "v0", "up"])?;
            let rate = format!("{megabits}mbit");
            let shape = ["root", "tbf", "rate", &rate, "burst", "1mb", "latency", "50ms"];
            run(Command::new("tc").args(["-n", name, "qdisc", "add", "dev", "v0"]).args(shape))?;
        }
        Ok(link)
    }

    /// The command words that run a program on host `host`, 0 or 1.
    pub fn enter(&self, host: usize) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/run/netns/{}", self.names[host])]
    }

    /// Pulls the cable.
    pub fn cut(&self) -> Result<()> {
        ip(&["-n", &self.names[0], "link", "set", "v0", "down"])
    }

    /// How many bytes host 0 has sent.
    pub fn sent(&self) -> Result<u64> {
        let enter = self.enter(0);
        let devices =
            run(Command::new(&enter[0]).args(&enter[1..]).args(["cat", "/proc/self/net/dev"]))?;
        let line = devices.lines().find_map(|line| line.trim().strip_prefix("v0:"));
        let sent = line.and_then(|line| line.split_whitespace().nth(8)).ok_or("no device v0")?;
        Ok(sent.parse()?)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<()> {
    run(Command::new("ip").args(args)).map(drop)
}
