//! The processes that the calling thread traces. CRIU has them all before it dumps any.

use std::{fs, io};

use nix::unistd::{Pid, gettid};

/// All of them.
pub(super) fn of_this_thread() -> io::Result<Vec<Pid>> {
    let this = gettid().to_string();
    let mut tracees = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that ends meanwhile is none.
        let Ok(status) = fs::read_to_string(entry.path().join("status")) else { continue };
        if tracer(&status) == Some(&this) {
            tracees.push(Pid::from_raw(pid));
        }
    }
    Ok(tracees)
}

/// Who traces a process, by its status.
fn tracer(status: &str) -> Option<&str> {
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map(str::trim)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use nix::sys::ptrace;

    use super::*;

    #[test]
    fn they_are_found_among_all_processes() {
        let sleeper = || Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let (mut traced, mut other) = (sleeper(), sleeper());
        assert_eq!(of_this_thread().unwrap(), []);
        let pid = Pid::from_raw(traced.id().cast_signed());
        ptrace::seize(pid, ptrace::Options::empty()).unwrap();
        assert_eq!(of_this_thread().unwrap(), [pid]);
        // It is this thread's, and not another's.
        let elsewhere = std::thread::spawn(|| of_this_thread().unwrap());
        assert_eq!(elsewhere.join().unwrap(), []);
        for child in [&mut traced, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
