//! A program that plays CRIU for a plugin: it loads it as CRIU does, shows it CRIU's functions,
//! and calls its hooks in CRIU's order, in processes as CRIU has them.
//!
//! ```text
//!  exports    CRIU's functions, under their C names
//!  plugin     loads plugins, verifies them, runs a hook through all of them
//!  service    service descriptors: images, streamer, store of descriptors
//!  dump       criu dump: seizes the tasks, hands out their files
//!  restore    criu restore: the master
//!  task       and each task that it forks
//!  record     what of a dump is not the plugin's: which task has which file under which number
//! ```
//!
//! What it does is on standard output: a line for each call of a hook with its result, and one for
//! each thing that a plugin left behind. All messages of plugins, of each level, are in the log.
//! Standard error has what CRIU prints at its level.

mod dump;
mod exports;
mod plugin;
mod record;
mod restore;
mod service;
mod task;

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::fd::OwnedFd,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use clap::{Args, Parser, Subcommand};

/// What tells one CRIU from another.
#[derive(Debug)]
pub(crate) struct Flavour {
    /// How many hooks it knows.
    pub hooks: usize,
    /// Whether it has a list of plugins in the inventory.
    pub inventory: bool,
    /// Whether the store of descriptors is there when plugins are initialised for a restore.
    pub fdstore_before_init: bool,
}

/// Where CRIU keeps its plugins: a list head for all, and one for each hook. Plugins take the
/// number of hooks from its size.
macro_rules! plugin_ctl {
    ($hooks:expr) => {
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub(crate) static cr_plugin_ctl: [u64; 2 * ($hooks + 1)] = [0; 2 * ($hooks + 1)];
    };
}
pub(crate) use plugin_ctl;

/// The functions of a CRIU that has a list of plugins in the inventory.
#[allow(unused_macros)] // not in every flavour
macro_rules! inventory {
    () => {
        #[unsafe(no_mangle)]
        extern "C" fn add_inventory_plugin(name: *const std::ffi::c_char) -> i32 {
            $crate::host::inventory_add(name)
        }

        #[unsafe(no_mangle)]
        extern "C" fn check_and_remove_inventory_plugin(
            name: *const std::ffi::c_char,
            len: usize,
        ) -> bool {
            $crate::host::inventory_take(name, len)
        }
    };
}
#[allow(unused_imports)] // not in every flavour
pub(crate) use exports::{inventory_add, inventory_take};
#[allow(unused_imports)] // not in every flavour
pub(crate) use inventory;

#[derive(Parser, Debug)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Dump processes
    Dump(dump::Dump),
    /// Restore them
    Restore(restore::Restore),
}

/// What both have.
#[derive(Args, Debug)]
struct Common {
    /// A plugin, any number of times
    #[arg(long)]
    plugin: Vec<PathBuf>,
    /// The images directory
    #[arg(long)]
    images: PathBuf,
    /// What this program keeps between dump and restore
    #[arg(long)]
    record: PathBuf,
    /// All messages of plugins
    #[arg(long)]
    log: PathBuf,
    /// Images through an image streamer
    #[arg(long)]
    stream: bool,
    /// Up to this level messages are printed: 1 errors, 2 warnings, 3 information, 4 all
    #[arg(long, default_value_t = 2)]
    log_level: u32,
}

/// The command that runs: the argument of init and exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Dump = 0,
    PreDump = 1,
    Restore = 2,
}

/// What there is one of in this process.
#[derive(Debug)]
struct Host {
    flavour: &'static Flavour,
    stage: Stage,
    stream: bool,
    log_level: u32,
    /// The names in the inventory. `None`: an image of before there was a list.
    inventory: Mutex<Option<Vec<String>>>,
    /// Where this process is in its life: what may be called.
    pending: Mutex<Option<Pending>>,
    shared: service::Shared,
    /// How often CRIU itself has complained.
    errors: AtomicU32,
}

/// The descriptors of a task that are still to be restored.
#[derive(Debug, Clone)]
struct Pending {
    virtual_pid: i32,
    descriptors: Vec<i32>,
}

static HOST: OnceLock<Host> = OnceLock::new();

fn host() -> &'static Host {
    match HOST.get() {
        Some(host) => host,
        None => bug("a plugin called CRIU before CRIU had begun"),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a plugin may not do: CRIU ends by a signal.
fn bug(what: &str) -> ! {
    say(&format!("BUG {what}"));
    std::process::abort()
}

/// A line of standard output, at once: other processes write there too.
fn say(line: &str) {
    let _ = std::io::stdout().lock().write_all(format!("{line}\n").as_bytes());
}

/// Something that CRIU itself has to say.
fn complain(what: &str) {
    host().errors.fetch_add(1, Ordering::Relaxed);
    exports::message(1, &format!("Error (criu): {what}"));
    say(&format!("error {what}"));
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) fn main(flavour: &'static Flavour) -> ExitCode {
    let done = match Options::parse().command {
        Command::Dump(dump) => dump.run(flavour),
        Command::Restore(restore) => restore.run(flavour),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            say(&format!("error {error}"));
            eprintln!("criu-host: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Common {
    /// Makes this process a CRIU.
    fn begin(&self, flavour: &'static Flavour, stage: Stage) -> Result<()> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let host = Host {
            flavour,
            stage,
            stream: self.stream,
            log_level: self.log_level,
            inventory: Mutex::new(Some(Vec::new())),
            pending: Mutex::new(None),
            shared: service::Shared::new()?,
            errors: AtomicU32::new(0),
        };
        HOST.set(host).map_err(|_| "twice")?;
        exports::set_run_id();
        service::prepare()?;
        service::install(service::LOG, log.into())?;
        service::install(service::IMG, OwnedFd::from(File::open(&self.images)?))?;
        if self.stream {
            service::connect_streamer(&self.images, stage)?;
        }
        Ok(())
    }
}
