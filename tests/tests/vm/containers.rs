//! A container with one of the host's GPUs, moved to a host where the same kind of GPU has another render
//! node.

use std::{fs, path::Path, time::Duration};

use vramstream_tests::{machine::MachineSpec, real::wait_for};

use crate::support::{
    Case, Criu, Machine, Result, case,
    container::{Bundle, Container, REPORTS, Runtime},
    each_criu,
};

const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until the program in the container has counted on.
fn counts_on(reports: &Path) -> Result<()> {
    let count = || -> Result<u64> {
        let report = fs::read_to_string(reports.join("count")).unwrap_or_default();
        match report.trim().split_once(' ') {
            None => Ok(0),
            Some((count, "ok")) => Ok(count.parse()?),
            Some((_, wrong)) => Err(wrong.into()),
        }
    };
    let before = count()?;
    wait_for("the container to count", PATIENCE, || Ok((count()? >= before + 3).then_some(())))
}

fn moves(case: &Case, criu: &Criu, runtime: Runtime) -> Result<()> {
    let reports = case.dir("reports")?;
    let program = format!("{REPORTS}/count");
    let args = ["/usr/bin/python3", "/vm/frameworks/counter.py", &program];
    let images = case.dir("images")?;
    let name = format!("{}-{}", runtime.program(), std::process::id());

    let here = MachineSpec::gpus(8);
    let source = Machine::start(&here)?;
    let bundle = Bundle::new(&case.dir("source")?, &args, here.first_minor + 2, &reports)?;
    let container = Container::run(case, runtime, criu, &name, &bundle)?;
    counts_on(&reports)?;
    container.checkpoint(case, &images)?;
    assert_eq!(source.stop()?, [""; 0]);

    let there = MachineSpec::gpus(8).elsewhere();
    let destination = Machine::start(&there)?;
    let minor = there.first_minor + 3;
    let bundle = Bundle::new(&case.dir("destination")?, &args, minor, &reports)?;
    let container = Container::restore(case, runtime, criu, &name, &bundle, &images)?;
    counts_on(&reports)?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", container.pid()?))?;
    let mapped: Vec<_> = maps.lines().filter(|line| line.contains("/dev/dri/")).collect();
    assert!(!mapped.is_empty(), "no VRAM is mapped:\n{maps}");
    let node = format!("/dev/dri/renderD{minor}");
    assert!(mapped.iter().all(|line| line.ends_with(&node)), "{mapped:#?}");
    drop(container);
    assert_eq!(destination.stop()?, [""; 0]);
    Ok(())
}

#[test]
fn a_container_of_runc_finds_its_gpu_on_another_host() -> Result<()> {
    each_criu(&case!()?, |case, criu| moves(case, criu, Runtime::Runc))
}

mod long {
    use super::*;

    #[test]
    fn a_container_of_crun_finds_its_gpu_on_another_host() -> Result<()> {
        each_criu(&case!()?, |case, criu| moves(case, criu, Runtime::Crun))
    }
}
