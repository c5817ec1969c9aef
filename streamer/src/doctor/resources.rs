//! How much this process may have, and what the kernel offers.

use vramstream::ring::{Budget, ByteSize};

use super::{Check, Surroundings, rights};

/// A dump has a descriptor for each BO, and large processes have ten thousand of them.
const FILES_WITH_GPUS: u64 = 16 << 10;
/// A dump has a descriptor for each image.
const FILES: u64 = 1 << 10;
/// What streams ask for.
const PIPE_BYTES: u64 = 1 << 20;

/// io_uring, locked memory, open files, pipes.
pub(super) fn check(here: &Surroundings, gpus: usize) -> Vec<Check> {
    vec![uring(here), locked_memory(here, gpus), open_files(here, gpus), pipes(here)]
}

/// Files can be written without it, so it is in nobody's way.
fn uring(here: &Surroundings) -> Check {
    let Err(why) = &here.uring else {
        return Check::ok("io_uring", "usable");
    };
    let check = Check::does_not_matter("io_uring", format!("{why}; files are written without it"));
    match here.text("/proc/sys/kernel/io_uring_disabled").as_deref() {
        Ok(value @ ("1" | "2")) => check.advice(format!(
            "kernel.io_uring_disabled is {value}; faster with: sysctl kernel.io_uring_disabled=0"
        )),
        _ => check.advice("faster where the container's seccomp profile allows io_uring"),
    }
}

fn locked_memory(here: &Surroundings, gpus: usize) -> Check {
    let (bytes, chunks) = Budget::default().shape(gpus);
    let wanted = (bytes * chunks) as u64;
    let limit = here.limits.locked_memory;
    if limit >= wanted || rights::may(here, rights::IPC_LOCK) {
        return Check::ok("locked_memory", "enough");
    }
    let (limit, wanted) = (ByteSize(limit), ByteSize(wanted));
    let found = format!("{limit} may be locked; the chunks of the GPUs have {wanted}");
    Check::does_not_matter("locked_memory", found).advice(
        "writes are a little faster with more: ulimit -l unlimited, or LimitMEMLOCK=infinity",
    )
}

fn open_files(here: &Surroundings, gpus: usize) -> Check {
    let limit = here.limits.open_files;
    let found = match limit {
        u64::MAX => "no limit".to_owned(),
        limit => format!("at most {limit}"),
    };
    let wanted = if gpus > 0 { FILES_WITH_GPUS } else { FILES };
    if limit >= wanted {
        return Check::ok("open_files", found);
    }
    let why = match gpus {
        0 => "images",
        _ => "memory objects of GPUs (BOs), of which a process can have ten thousand",
    };
    let advice = format!(
        "raise the hard limit to {wanted} (ulimit -Hn, or LimitNOFILE=): {why} take one each"
    );
    Check::problem("open_files", found, advice)
}

/// Smaller pipes are slower, and that is all.
fn pipes(here: &Surroundings) -> Check {
    let number = |path| here.text(path).ok().and_then(|text| text.parse::<u64>().ok());
    let most = number("/proc/sys/fs/pipe-max-size");
    let pages = number("/proc/sys/fs/pipe-user-pages-soft");
    let (Some(most), Some(pages)) = (most, pages) else {
        return Check::does_not_matter("pipes", "their limits cannot be seen in /proc/sys/fs");
    };
    let capable = rights::may(here, rights::SYS_RESOURCE) || rights::may(here, 21);
    if capable {
        return Check::ok("pipes", "as large as asked for");
    }
    let found = format!("of up to {}", ByteSize(most));
    if most < PIPE_BYTES {
        return Check::does_not_matter("pipes", found)
            .advice(format!("faster with larger ones: sysctl fs.pipe-max-size={PIPE_BYTES}"));
    }
    // Beyond this a user's pipes shrink to a page or two. Sixteen that are full must fit.
    let enough = 16 * PIPE_BYTES / 4096;
    if pages != 0 && pages < enough {
        return Check::does_not_matter(
            "pipes",
            format!("{found}, {pages} pages for all of a user"),
        )
        .advice(format!("faster with more: sysctl fs.pipe-user-pages-soft={enough}"));
    }
    Check::ok("pipes", found)
}

#[cfg(test)]
mod tests {
    use super::super::{State, surroundings::tests::Scene};
    use super::*;

    fn unprivileged(scene: &Scene) {
        scene.write("proc/self/status", "CapEff:\t0000000000000000\n");
    }

    #[test]
    fn io_uring_is_missed_by_nobody_and_its_sysctl_is_named() {
        let mut scene = Scene::new(0);
        assert_eq!(uring(&scene.here), Check::ok("io_uring", "usable"));
        scene.here.uring = Err("io_uring is not available".into());
        let check = uring(&scene.here);
        assert_eq!(check.state, State::DoesNotMatter);
        assert!(check.advice.unwrap().contains("seccomp"));
        for (value, named) in [("0", false), ("1", true), ("2", true)] {
            scene.write("proc/sys/kernel/io_uring_disabled", format!("{value}\n"));
            let advice = uring(&scene.here).advice.unwrap();
            let sysctl = format!("kernel.io_uring_disabled is {value};");
            assert_eq!(advice.contains(&sysctl), named, "{advice}");
        }
    }

    #[test]
    fn chunks_of_all_gpus_may_be_locked_or_not() {
        let mut scene = Scene::new(0);
        scene.here.limits.locked_memory = 8 << 20;
        assert_eq!(locked_memory(&scene.here, 4).state, State::Ok, "CAP_IPC_LOCK");
        unprivileged(&scene);
        let check = locked_memory(&scene.here, 4);
        assert_eq!(check.state, State::DoesNotMatter);
        assert!(check.found.contains("8M may be locked; the chunks of the GPUs have 256M"));
        scene.here.limits.locked_memory = 256 << 20;
        assert_eq!(locked_memory(&scene.here, 4).state, State::Ok);
        assert_eq!(locked_memory(&scene.here, 5).state, State::DoesNotMatter);
    }

    #[test]
    fn every_bo_takes_a_descriptor() {
        let mut scene = Scene::new(0);
        let cases = [
            (u64::MAX, 2, State::Ok),
            (16 << 10, 2, State::Ok),
            ((16 << 10) - 1, 2, State::Problem),
            (1024, 0, State::Ok),
            (1023, 0, State::Problem),
        ];
        for (limit, gpus, state) in cases {
            scene.here.limits.open_files = limit;
            let check = open_files(&scene.here, gpus);
            assert_eq!(check.state, state, "{check:?}");
        }
    }

    #[test]
    fn small_pipes_are_slow_unless_one_may_have_larger_ones() {
        let scene = Scene::new(0);
        let set = |most: &str, pages: &str| {
            scene.write("proc/sys/fs/pipe-max-size", most);
            scene.write("proc/sys/fs/pipe-user-pages-soft", pages);
            pipes(&scene.here)
        };
        assert_eq!(set("4096", "16").state, State::Ok);
        unprivileged(&scene);
        assert_eq!(set("1048576", "16384").state, State::Ok);
        assert_eq!(set("1048576", "0").state, State::Ok);
        let check = set("65536", "16384");
        assert_eq!(check.state, State::DoesNotMatter);
        assert!(check.advice.unwrap().contains("fs.pipe-max-size=1048576"));
        let check = set("1048576", "64");
        assert_eq!(check.state, State::DoesNotMatter);
        assert!(check.advice.unwrap().contains("fs.pipe-user-pages-soft=4096"));
        assert!(set("", "").found.contains("cannot be seen"));
    }
}
