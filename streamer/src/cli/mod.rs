//! From the command line to the commands, and from their outcome to an exit status.
//!
//! | exit status | meaning |
//! |---|---|
//! | 0 | all of it was done |
//! | 1 | something failed; standard error says what |
//! | 2 | the command line is wrong |
//!
//! The program does the same under every name, with one exception: called `vramstream-commit-gate`
//! it is CRIU's `--action-script`, which is run without arguments.

use std::{
    ffi::OsString,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;

mod args;
mod bench;
mod commands;
mod descriptors;
mod generate;
mod places;

pub use args::{Cli, Command, Compress, Format, Options, Place};
pub use bench::Bench;
pub use generate::Generate;

use crate::{
    commit_gate,
    error::{Error, Result},
    limits,
    progress::{Display, Progress},
};

/// The name under which the program is an action script.
const COMMIT_GATE_NAME: &str = "vramstream-commit-gate";

/// Runs the program.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.collect();
    let name = arguments.first().and_then(|path| Path::new(path).file_name());
    let name = name.map_or("vramstream".into(), |name| name.to_string_lossy().into_owned());
    if name == COMMIT_GATE_NAME && arguments.len() == 1 {
        return exit(&name, commit_gate(None));
    }
    let cli = Cli::parse_from(arguments);
    limits::raise_open_files();
    exit(&name, run(cli))
}

fn exit(name: &str, outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // As the original writes it, which scripts look for.
            eprintln!("{name} Error: {}", error.report());
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    if let Command::Generate(what) = cli.command {
        return generate::generate(what);
    }
    let command = match &cli.command {
        Command::Capture => "capture",
        Command::Serve => "serve",
        Command::Extract => "extract",
        Command::Receive(_) => "receive",
        Command::Verify(_) => "verify",
        Command::Inspect(_) => "inspect",
        Command::Plan(_) => "plan",
        Command::Doctor(_) => "doctor",
        Command::Selftest => "selftest",
        Command::Bench(_) => "bench",
        Command::Generate(_) => "generate",
        Command::CommitGate => return commit_gate(cli.options.images_dir.as_deref()),
    };
    refuse_misplaced(command, &cli.options)?;
    if let Command::Bench(what) = &cli.command {
        what.check_or_exit(&cli.options);
    }
    let progress = progress(command, &cli.options)?;
    let outcome = match cli.command {
        Command::Capture => commands::capture(cli.options, &progress),
        Command::Serve => commands::serve(cli.options, &progress),
        Command::Extract => commands::extract(cli.options, &progress),
        Command::Receive(receive) => commands::receive(receive, cli.options, &progress),
        Command::Verify(source) => commands::verify(source.image, cli.options, &progress),
        Command::Inspect(source) => commands::inspect(source.image, cli.options, &progress),
        Command::Plan(plan) => commands::plan(plan, &cli.options),
        Command::Doctor(doctor) => commands::doctor(doctor, &cli.options),
        Command::Selftest => commands::selftest(&cli.options),
        Command::Bench(what) => bench::bench(&what, &cli.options),
        Command::CommitGate | Command::Generate(_) => Ok(()),
    };
    if let Err(error) = &outcome {
        progress.failed(&error.report().to_string());
    }
    outcome
}

/// Options that a command would ignore although somebody meant something by them.
fn refuse_misplaced(command: &str, options: &Options) -> Result<()> {
    let reads = ["serve", "extract", "verify", "inspect", "plan"].contains(&command);
    let misplaced = [
        ("--to", options.to.is_some() && !["capture", "plan"].contains(&command)),
        ("--from", options.from.is_some() && !reads),
        (
            "--tcp-listen-remap",
            options.tcp_listen_remap.is_some() && !["serve", "receive"].contains(&command),
        ),
    ];
    match misplaced.iter().find(|(_, misplaced)| *misplaced) {
        Some((option, _)) => Err(Error::Usage(format!("{option} means nothing to {command}"))),
        None => Ok(()),
    }
}

fn progress(command: &'static str, options: &Options) -> Result<Progress> {
    let terminal = std::io::stderr().is_terminal();
    let display = match (options.json, options.quiet) {
        (true, _) => Display::Json,
        (_, true) => Display::Silent,
        _ if terminal => Display::Bars,
        _ => Display::Silent,
    };
    // The lines go to standard error if nobody says otherwise; a person has bars there instead,
    // and a program that wants JSON has events.
    let number =
        options.progress_fd.or((display == Display::Silent && !options.quiet).then_some(2));
    let fd = number.map(|number| descriptors::inherit(number, "--progress-fd")).transpose()?;
    Ok(Progress::new(command, display, fd))
}

/// CRIU runs its action script at many stages; only one of them concerns us.
fn commit_gate(images_dir: Option<&Path>) -> Result<()> {
    if std::env::var_os("CRTOOLS_SCRIPT_ACTION")
        .is_some_and(|stage| stage != commit_gate::POST_DUMP)
    {
        return Ok(());
    }
    let from_criu = || std::env::var_os("CRTOOLS_IMAGE_DIR").map(PathBuf::from);
    let dir = images_dir.map(Path::to_owned).or_else(from_criu).ok_or_else(|| {
        Error::Usage("commit-gate needs --images-dir, or CRIU's CRTOOLS_IMAGE_DIR".into())
    })?;
    commit_gate::wait(&dir)
}
