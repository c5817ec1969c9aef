//! What this process may use.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors kept back for everything that is not an image: standard streams, shards, sockets,
/// epoll.
const RESERVED_DESCRIPTORS: u64 = 40;

/// Raises the soft limit on open files to the hard one: a dump of many processes has many images
/// open at once. What the limit is then.
pub fn raise_open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 1024 };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        return hard;
    }
    soft
}

/// How many images may be open at once.
pub fn descriptors_for_images() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(limit.saturating_sub(RESERVED_DESCRIPTORS).max(8)).unwrap_or(usize::MAX)
}

/// What of it programs can have now, as the kernel estimates it.
pub fn available_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10).min(memory_bytes())
}

/// The memory of this machine, or of the control group if that is less, in bytes.
pub fn memory_bytes() -> u64 {
    let machine = nix::sys::sysinfo::sysinfo().map_or(1 << 30, |info| info.ram_total());
    let groups = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    groups
        .iter()
        .filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok())
        .fold(machine, u64::min)
}
