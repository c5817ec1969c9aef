//! A simulated machine for other processes, until its standard input ends.
//!
//! ```text
//! simulated-gpus SOCKET GPUS VRAM PROFILE        simulated-gpus /tmp/gpus.sock 2 1G gfx90a
//! simulated-gpus --dir DIR [--gpus 2] ...        with all files that a machine is known by
//! ```
//!
//! With `--dir` it makes what `VRAMSTREAM_SIMULATED_GPUS=DIR` stands for: the socket, the topology,
//! the number of `/dev/kfd`, a place for shared memory; then each line of its standard input is an
//! order (`vramstream_tests::machine::orders`), whose answer ends in a line `end`.
//!
//! With `--relay` as well, its devices are also those of the machine that it runs on: `/dev/kfd`,
//! render nodes, the topology in `/sys`. `tests/vm/module` must be loaded there.
//!
//! Prints `ready` when it listens. At the end it waits for its clients to close their files and
//! prints what they did wrong, a line each; its status is 0 if that is nothing.
#![forbid(unsafe_code)]

use std::{
    error::Error,
    fs,
    io::{self, BufRead, Read},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use vramstream::{
    device::sim::{Daemon, Machine, Profile, Relay, SimHost},
    ring::ByteSize,
};
use vramstream_tests::machine::{END, MachineSpec, WRONG, orders::Orders};

/// How long clients may take to close their files at the end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A whole machine.
#[derive(Parser)]
struct Whole {
    /// Where its files are to be
    #[arg(long)]
    dir: PathBuf,
    /// Show its devices through the kernel module whose device this is
    #[arg(long)]
    relay: Option<PathBuf>,
    #[command(flatten)]
    spec: MachineSpec,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let answer = match args.as_slice() {
        [socket, gpus, vram, profile] if !socket.starts_with('-') => {
            serve(socket, gpus, vram, profile)
        }
        _ => whole(&Whole::parse()),
    };
    match answer {
        Ok(complaints) if complaints.is_empty() => ExitCode::SUCCESS,
        Ok(complaints) => {
            complaints.iter().for_each(|complaint| println!("{complaint}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("simulated-gpus: {error}");
            ExitCode::from(2)
        }
    }
}

fn serve(
    socket: &str,
    gpus: &str,
    vram: &str,
    profile: &str,
) -> Result<Vec<String>, Box<dyn Error>> {
    let profile = Profile::named(profile).ok_or("there is no such profile")?;
    let ByteSize(vram) = vram.parse()?;
    let machine = Machine::new(&profile, gpus.parse()?).vram_bytes(vram);
    let daemon = listen(SimHost::new(machine)?, Path::new(socket))?;
    println!("ready");
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(end(&daemon, || daemon.connections()))
}

fn whole(whole: &Whole) -> Result<Vec<String>, Box<dyn Error>> {
    let (dir, machine) = (&whole.dir, whole.spec.machine());
    fs::create_dir_all(dir.join("shm"))?;
    machine.write_sysfs(&dir.join("topology"))?;
    fs::write(dir.join("dev"), "511:0\n")?;
    let daemon = listen(SimHost::new(machine)?, &dir.join("gpus.sock"))?;
    let start = |device: &PathBuf| Relay::start(daemon.host().clone(), device);
    let relay = whole.relay.as_ref().map(start).transpose()?;
    println!("ready");
    let mut orders = Orders::to(&daemon);
    for line in io::stdin().lock().lines() {
        match orders.obey(&line?) {
            Ok(answer) => answer.iter().for_each(|line| println!("{line}")),
            Err(wrong) => println!("{WRONG}{}", wrong.replace('\n', " ")),
        }
        println!("{END}");
    }
    let open = || daemon.connections() + relay.as_ref().map_or(0, |relay| relay.open_files());
    Ok(end(&daemon, open))
}

fn listen(host: SimHost, socket: &Path) -> Result<Arc<Daemon>, Box<dyn Error>> {
    // A checkpoint has a descriptor for each BO.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let daemon = Arc::new(Daemon::bind(host, socket)?);
    let server = Arc::clone(&daemon);
    thread::spawn(move || server.serve());
    Ok(daemon)
}

fn end(daemon: &Daemon, open: impl Fn() -> usize) -> Vec<String> {
    let until = Instant::now() + PATIENCE;
    while open() > 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    daemon.host().check().iter().map(ToString::to_string).collect()
}
