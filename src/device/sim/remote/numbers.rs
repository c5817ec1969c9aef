//! Numbers of processes in pid namespaces.
//!
//! A process has a number in its own namespace and in each of those around it; `NSpid` in its status
//! lists them from ours inwards. KFD tells a process's number in that process's namespace, and takes
//! one in its caller's.

use std::{fs::File, os::fd::AsRawFd};

use nix::{errno::Errno, libc, sys::stat::fstat};

use super::{super::caller::Inode, new_descriptor, status_line};

/// The namespace around a namespace.
const NS_GET_PARENT: libc::c_ulong = 0xb702;
/// So deep can namespaces be.
const DEEPEST: usize = 33;

/// What a process calls itself.
pub(super) fn own(pid: u32) -> u32 {
    numbers(pid).last().copied().unwrap_or(pid)
}

/// The process, of some, that has a number in the namespace of `caller`.
pub(super) fn find(caller: u32, number: u32, among: &[u32]) -> Option<u32> {
    let depth = numbers(caller).len();
    let is_it = |&pid: &u32| {
        let known = numbers(pid);
        let there = depth.checked_sub(1).and_then(|at| known.get(at)) == Some(&number);
        // In our own namespace is everybody.
        there && (depth == 1 || around(pid, known.len() - depth) == around(caller, 0))
    };
    among.iter().copied().find(is_it)
}

/// From our namespace inwards.
fn numbers(pid: u32) -> Vec<u32> {
    let line = status_line(pid, "NSpid:").unwrap_or_default();
    line.split_ascii_whitespace().take(DEEPEST).filter_map(|word| word.parse().ok()).collect()
}

/// The namespace so many levels around that of a process.
fn around(pid: u32, levels: usize) -> Option<Inode> {
    let mut namespace = File::open(format!("/proc/{pid}/ns/pid")).ok()?;
    for _ in 0..levels {
        namespace = parent(&namespace)?;
    }
    let stat = fstat(&namespace).ok()?;
    Some(Inode { device: stat.st_dev, number: stat.st_ino })
}

fn parent(namespace: &File) -> Option<File> {
    // SAFETY: the call takes no argument and opens a descriptor.
    let answer = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    new_descriptor(Errno::result(answer).ok()?).map(File::from)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// The process that runs in a pid namespace of its own, in another namespace, and the shell
    /// that waits for it.
    fn nested() -> Option<(Child, [u32; 2])> {
        let script = "unshare --user --map-root-user --pid --fork sh -c \
                      'echo x; unshare --pid --fork sh -c \"echo x; read line\"; :'";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = [0; 4];
        let ready = shell.stdout.as_mut().unwrap().read_exact(&mut said);
        if ready.is_err() {
            let _ = shell.wait();
            eprintln!("no pid namespaces here: not tested");
            return None;
        }
        // Down to the innermost: shell, unshare, sh, unshare, sh.
        let (mut pid, mut inside) = (shell.id(), Vec::new());
        while let Some(child) = child_of(pid) {
            pid = child;
            inside.push((numbers(pid).len(), pid));
        }
        let of_depth = |depth| inside.iter().rfind(|one| one.0 == depth).unwrap().1;
        let ours = numbers(std::process::id()).len();
        Some((shell, [of_depth(ours + 1), of_depth(ours + 2)]))
    }

    fn child_of(pid: u32) -> Option<u32> {
        let path = format!("/proc/{pid}/task/{pid}/children");
        std::fs::read_to_string(path).ok()?.split_ascii_whitespace().next()?.parse().ok()
    }

    #[test]
    fn a_process_has_a_number_in_each_namespace_around_it() {
        let me = std::process::id();
        assert_eq!(own(me), *numbers(me).last().unwrap());
        assert_eq!(find(me, own(me), &[me]), Some(me));
        let Some((mut shell, [outer, inner])) = nested() else { return };
        let known = numbers(inner);
        let [in_ours, in_outer, in_inner] = known[known.len() - 3..].try_into().unwrap();
        let among = [me, outer, inner];
        assert_eq!(own(inner), in_inner);
        assert_eq!(find(me, in_ours, &among), Some(inner));
        assert_eq!(find(outer, in_outer, &among), Some(inner));
        assert_eq!(find(inner, in_inner, &among), Some(inner));
        assert_eq!(find(inner, in_ours, &among), None);
        // Another namespace of the same depth, in which the same numbers are others.
        let Some((mut other_shell, [other, _])) = nested() else { return };
        assert_eq!(numbers(other).len(), numbers(outer).len());
        assert_eq!(find(other, own(outer), &among), None);
        drop((shell.stdin.take(), other_shell.stdin.take()));
        for shell in [&mut shell, &mut other_shell] {
            shell.wait().unwrap();
        }
    }
}
