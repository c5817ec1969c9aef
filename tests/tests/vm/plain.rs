//! A machine without a GPU, with the plugin installed.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    time::Duration,
};

use vramstream_tests::real::{
    process::kill_pid,
    streamer::Start,
    workload::{Kind, Workload},
};

use crate::support::{BIN, Case, Criu, Result, Snapshot, case, criu::Options, each_criu};

/// For what takes no time, on a slow machine.
pub(crate) const SHORT: Duration = Duration::from_secs(120);

#[test]
fn criu_finds_all_that_it_needs() -> Result<()> {
    each_criu(&case!()?, |case, criu| {
        let mut check = Command::new(criu.path());
        let said = case.ok("check", check.arg("check"), SHORT)?;
        let said = said.stdout + &said.stderr;
        assert!(said.contains("Looks good"), "{said}");
        Ok(())
    })
}

#[test]
fn without_a_gpu_criu_says_the_same_with_the_plugin_as_without() -> Result<()> {
    each_criu(&case!()?, |case, criu| {
        assert!(!Path::new("/dev/kfd").exists() && !Path::new("/sys/class/kfd").exists());
        let said = |plugin| -> Result<_> {
            let case = case.part(if plugin { "with" } else { "without" })?;
            let options = Options { plugin, log: false, ..Options::default() };
            there_and_back(&case, criu, Kind::Tree(4), &options)
        };
        // What one version has found out about the kernel is of no use to the other, and it says so.
        case.ok("check", Command::new(criu.path()).arg("check"), SHORT)?;
        assert_eq!(said(true)?, said(false)?);
        Ok(())
    })
}

/// The plugin has no word in whether a file that is not a GPU's can be dumped.
#[test]
fn a_file_of_another_driver_is_refused_as_it_is_without_the_plugin() -> Result<()> {
    each_criu(&case!()?, |case, criu| {
        let workload = start(case, criu, Kind::Device("/dev/fuse"))?;
        let refusal = |plugin| -> Result<String> {
            let case = case.part(if plugin { "with" } else { "without" })?;
            let (images, options) = (case.dir("images")?, Options { plugin, ..Options::default() });
            let Err(error) = criu.dump(&case, "dump", workload.target(), &images, &options) else {
                return Err("it was dumped".into());
            };
            workload.goes_on()?;
            Ok(comparable(&error.to_string()))
        };
        let (with, without) = (refusal(true)?, refusal(false)?);
        assert!(with.contains("of that type"), "{with}");
        assert_eq!(with, without);
        Ok(())
    })
}

#[test]
fn a_process_goes_through_the_streamer_and_its_original_goes_on() -> Result<()> {
    each_criu(&case!()?, |case, criu| {
        let options = Options { stream: true, ..Options::default() };
        let mut workload = start(case, criu, Kind::Counter)?;
        let (here, there) = (case.dir("here")?, case.dir("there")?);
        let archive = case.dir("archive")?.join("image");
        let stream = File::create(&archive)?;
        let mut capture = Start::new(&here, &["capture"]).stdout(stream).start()?;
        capture.ready(SHORT)?;
        let files = Snapshot::of(case, &case.dir("status")?)?;
        let leave = files.options(&options.clone().with(&["--leave-running"]));
        criu.dump(case, "dump", workload.target(), &here, &leave)?;
        capture.succeeds(SHORT)?;
        workload.goes_on()?;
        // The restored one wants its number.
        kill_pid(workload.target())?;
        workload.gone()?;
        files.bring_back()?;
        let stream = File::open(&archive)?;
        let mut serve = Start::new(&there, &["serve"]).stdin(stream).start()?;
        serve.ready(SHORT)?;
        let (pid, _) = criu.restore(case, "restore", &there, &options)?;
        workload.set_restored(pid);
        serve.succeeds(SHORT)?;
        workload.goes_on()
    })
}

fn start(case: &Case, criu: &Criu, kind: Kind) -> Result<Workload> {
    start_in(&case.dir("status")?, criu, kind)
}

/// Starts a workload that reports in a folder.
pub(crate) fn start_in(dir: &Path, criu: &Criu, kind: Kind) -> Result<Workload> {
    Workload::start(&format!("{BIN}/vramstream-workload"), kind, &criu.real(), dir)
}

/// Times, numbers of processes and the like are others each time, and so is whether a process is asleep
/// when it is stopped.
fn comparable(said: &str) -> String {
    let lines = said.lines().filter(|line| !line.contains("with interrupted system call"));
    let lines = lines.collect::<Vec<_>>().join("\n");
    let parts = lines.split(|c: char| c.is_ascii_digit());
    parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("N")
}

/// Whether the plugin said that anything is wrong, in what CRIU says by default.
pub(crate) fn without_errors(said: &str) -> Result<()> {
    match said.lines().find(|line| line.contains("vramstream") || line.contains("Error")) {
        Some(line) => Err(format!("CRIU says {line:?}").into()),
        None => Ok(()),
    }
}

/// Dumps and restores a workload: what CRIU said on standard error.
pub(crate) fn there_and_back(
    case: &Case,
    criu: &Criu,
    kind: Kind,
    options: &Options,
) -> Result<[String; 2]> {
    let images = case.dir("images")?;
    let mut workload = start(case, criu, kind)?;
    let dump = criu.dump(case, "dump", workload.target(), &images, options)?;
    workload.gone()?;
    let (pid, restore) = criu.restore(case, "restore", &images, options)?;
    workload.set_restored(pid);
    workload.goes_on()?;
    assert!(fs::read_dir(&images)?.count() > 4, "there are hardly any images");
    Ok([comparable(&dump.stderr), comparable(&restore.stderr)])
}
