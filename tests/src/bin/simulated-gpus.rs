//! A simulated machine for other processes, until its standard input ends.
//!
//! ```text
//! simulated-gpus SOCKET GPUS VRAM PROFILE        simulated-gpus /tmp/gpus.sock 2 1G gfx90a
//! ```
//!
//! Prints `ready` when it listens. At the end it waits for its clients to close their files and
//! prints what they did wrong, a line each; its status is 0 if that is nothing.
#![forbid(unsafe_code)]

use std::{
    error::Error,
    io::{self, Read},
    path::Path,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use vramstream::{
    device::sim::{Daemon, Machine, Profile, SimHost},
    ring::ByteSize,
};

/// How long clients may take to close their files at the end.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let answer = match args.as_slice() {
        [socket, gpus, vram, profile] => serve(socket, gpus, vram, profile),
        _ => Err("usage: simulated-gpus SOCKET GPUS VRAM PROFILE".into()),
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
    // A checkpoint has a descriptor for each BO.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let profile = Profile::named(profile).ok_or("there is no such profile")?;
    let ByteSize(vram) = vram.parse()?;
    let machine = Machine::new(&profile, gpus.parse()?).vram_bytes(vram);
    let daemon = Arc::new(Daemon::bind(SimHost::new(machine)?, Path::new(socket))?);
    println!("ready");
    let server = Arc::clone(&daemon);
    thread::spawn(move || server.serve());
    io::stdin().read_to_end(&mut Vec::new())?;
    let until = Instant::now() + PATIENCE;
    while daemon.connections() > 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(daemon.host().check().iter().map(ToString::to_string).collect())
}
