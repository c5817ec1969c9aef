//! What this process may do, which is what CRIU may do if the same person runs it.

use std::fs;

use super::{Check, Surroundings};

const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const CHECKPOINT_RESTORE: u32 = 40;

/// Lets a process lock as much memory as it likes.
pub(super) const IPC_LOCK: u32 = 14;
/// Lets a process exceed and raise its limits.
pub(super) const SYS_RESOURCE: u32 = 24;

/// The inode of the initial user namespace, which is the same on every Linux.
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

/// Capabilities, user namespace, ptrace.
pub(super) fn check(here: &Surroundings, has_gpus: bool) -> Vec<Check> {
    let mut checks = vec![capabilities(here)];
    checks.extend(user_namespace(here, has_gpus));
    checks.push(ptrace(here));
    checks
}

/// Whether this process has a capability.
pub(super) fn may(here: &Surroundings, capability: u32) -> bool {
    effective(here).is_some_and(|set| set & (1 << capability) != 0)
}

fn effective(here: &Surroundings) -> Option<u64> {
    let status = here.text("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn capabilities(here: &Surroundings) -> Check {
    let as_root = "run this, and CRIU, as root (in a container: with these capabilities)";
    if effective(here).is_none() {
        let found = "cannot be seen in /proc/self/status";
        return Check::problem("capabilities", found, "mount /proc");
    }
    let restore = match (may(here, CHECKPOINT_RESTORE), may(here, SYS_ADMIN)) {
        (true, _) => Some("CAP_CHECKPOINT_RESTORE"),
        (false, true) => Some("CAP_SYS_ADMIN"),
        _ => None,
    };
    let ptrace = may(here, SYS_PTRACE);
    match restore {
        Some(name) if ptrace => Check::ok("capabilities", format!("{name}, CAP_SYS_PTRACE")),
        Some(_) => Check::problem("capabilities", "no CAP_SYS_PTRACE", as_root),
        None if ptrace => {
            let found = "neither CAP_CHECKPOINT_RESTORE nor CAP_SYS_ADMIN";
            Check::problem("capabilities", found, as_root)
        }
        None => {
            let found = "neither CAP_CHECKPOINT_RESTORE nor CAP_SYS_ADMIN, and no CAP_SYS_PTRACE";
            Check::problem("capabilities", found, as_root)
        }
    }
}

fn user_namespace(here: &Surroundings, has_gpus: bool) -> Option<Check> {
    // A kernel without user namespaces has no such file.
    let link = fs::read_link(here.path("/proc/self/ns/user")).ok()?;
    Some(match link.to_string_lossy() == INITIAL_USER_NAMESPACE {
        true => Check::ok("user_namespace", "the initial one"),
        false if has_gpus => {
            let found = "not the initial one: KFD takes capabilities in that one only";
            let advice = "run CRIU outside of the (rootless) container";
            Check::problem("user_namespace", found, advice)
        }
        false => Check::does_not_matter("user_namespace", "not the initial one"),
    })
}

fn ptrace(here: &Surroundings) -> Check {
    match here.text("/proc/sys/kernel/yama/ptrace_scope").as_deref() {
        Ok("3") => {
            let found = "kernel.yama.ptrace_scope is 3: nobody may trace, and CRIU cannot";
            Check::problem("ptrace", found, "set it to 2 or less at the next boot: now it is final")
        }
        Ok(scope) => Check::ok("ptrace", format!("kernel.yama.ptrace_scope is {scope}")),
        Err(_) => Check::ok("ptrace", "not restricted"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{State, surroundings::tests::Scene};
    use super::*;

    #[test]
    fn a_checkpoint_takes_two_capabilities() {
        let scene = Scene::new(0);
        let bit = |n: u32| 1_u64 << n;
        let cases = [
            (bit(CHECKPOINT_RESTORE) | bit(SYS_PTRACE), State::Ok, "CAP_CHECKPOINT_RESTORE, "),
            (bit(SYS_ADMIN) | bit(SYS_PTRACE), State::Ok, "CAP_SYS_ADMIN, "),
            (bit(SYS_PTRACE), State::Problem, "neither CAP_CHECKPOINT_RESTORE nor"),
            (bit(SYS_ADMIN), State::Problem, "no CAP_SYS_PTRACE"),
            (!bit(SYS_PTRACE), State::Problem, "no CAP_SYS_PTRACE"),
            (0, State::Problem, "neither"),
        ];
        for (set, state, found) in cases {
            scene.write("proc/self/status", format!("Name:\tx\nCapEff:\t{set:016x}\n"));
            let check = capabilities(&scene.here);
            assert_eq!(check.state, state, "{set:x}: {check:?}");
            assert!(check.found.contains(found), "{set:x}: {check:?}");
        }
        for status in ["Name:\tx\n", "CapEff:\tfull\n"] {
            scene.write("proc/self/status", status);
            assert_eq!(capabilities(&scene.here).state, State::Problem);
        }
    }

    #[test]
    fn kfd_wants_the_initial_user_namespace() {
        let scene = Scene::new(0);
        let state = |gpus| user_namespace(&scene.here, gpus).map(|check| check.state);
        assert_eq!(state(true), Some(State::Ok));
        let link = scene.here.path("proc/self/ns/user");
        fs::remove_file(&link).unwrap();
        assert_eq!(state(true), None);
        std::os::unix::fs::symlink("user:[4026532345]", &link).unwrap();
        assert_eq!(state(true), Some(State::Problem));
        assert_eq!(state(false), Some(State::DoesNotMatter));
    }

    #[test]
    fn a_kernel_may_forbid_tracing() {
        let scene = Scene::new(0);
        assert_eq!(ptrace(&scene.here).state, State::Ok);
        for (scope, state) in [("0", State::Ok), ("2", State::Ok), ("3", State::Problem)] {
            scene.write("proc/sys/kernel/yama/ptrace_scope", format!("{scope}\n"));
            assert_eq!(ptrace(&scene.here).state, state, "{scope}");
        }
    }
}
