//! An application on real libhsakmt is dumped and restored by real CRIU, on real device files.

use std::{fs::File, time::Duration};

use vramstream_tests::{machine::MachineSpec, real::streamer::Start};

use crate::support::{App, Case, Criu, Machine, Result, State, case, criu::Options, each_criu};

/// For what is slow because the machine is.
const LONG: Duration = Duration::from_secs(180);

/// How images get from the dump to the restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Directory,
    /// `vramstream capture` and `serve`.
    Native,
    /// The same, in criu-image-streamer's format.
    Stock,
}

fn dump(case: &Case, criu: &Criu, app: &mut App, way: Way, turn: u32) -> Result<()> {
    let images = case.dir(&format!("images-{turn}"))?;
    let (name, options) = (format!("dump-{turn}"), Options::default());
    let stream = Options { stream: true, ..options.clone() };
    let image = images.join("image");
    match way {
        Way::Directory => drop(criu.dump(case, &name, app.pid(), &images, &options)?),
        Way::Native => {
            let to = format!("file:{}", image.display());
            let mut capture = Start::new(&images, &["capture", "--to", &to]).start()?;
            capture.ready(LONG)?;
            criu.dump(case, &name, app.pid(), &images, &stream)?;
            capture.succeeds(LONG)?;
        }
        Way::Stock => {
            let words = ["--format", "criu-image-streamer", "capture"];
            let start = Start::new(&images, &words).stdout(File::create(&image)?);
            let mut capture = start.start()?;
            capture.ready(LONG)?;
            criu.dump(case, &name, app.pid(), &images, &stream)?;
            capture.succeeds(LONG)?;
        }
    }
    app.gone()
}

fn restore(case: &Case, criu: &Criu, app: &mut App, way: Way, turn: u32) -> Result<()> {
    let images = case.dir(&format!("images-{turn}"))?;
    let (name, options) = (format!("restore-{turn}"), Options::default());
    let stream = Options { stream: true, ..options.clone() };
    let image = images.join("image");
    let serve = match way {
        Way::Directory => None,
        Way::Native => {
            let from = format!("file:{}", image.display());
            Some(Start::new(&images, &["serve", "--from", &from]))
        }
        Way::Stock => Some(Start::new(&images, &["serve"]).stdin(File::open(&image)?)),
    };
    let mut serve = serve.map(Start::start).transpose()?;
    if let Some(serve) = &mut serve {
        serve.ready(LONG)?;
    }
    let options = if serve.is_some() { stream } else { options };
    let (pid, _) = criu.restore(case, &name, &images, &options)?;
    app.set_restored();
    assert_eq!(pid, app.pid());
    serve.as_mut().map_or(Ok(()), |serve| serve.succeeds(LONG))
}

/// The application goes from machine to machine, and all of it comes with it.
fn travels(
    case: &Case,
    criu: &Criu,
    way: Way,
    words: &[&str],
    machines: &[MachineSpec],
) -> Result<()> {
    let mut machine = Machine::start(&machines[0])?;
    let mut app = App::start(case, words)?;
    let before: State = app.state(&machine)?;
    for (turn, spec) in (1..).zip(&machines[1..]) {
        dump(case, criu, &mut app, way, turn)?;
        assert_eq!(machine.stop()?, [""; 0]);
        machine = Machine::start(spec)?;
        restore(case, criu, &mut app, way, turn)?;
        assert!(machine.resumed(app.pid())?, "its queues do not run");
        app.goes_on()?;
        app.state(&machine)?.assert_is(&before, true);
        assert_eq!(machine.left_stopped()?, [""; 0]);
        assert_eq!(machine.complaints()?, [""; 0]);
    }
    app.kill()?;
    assert_eq!(machine.stop()?, [""; 0]);
    Ok(())
}

/// So many GPUs, and the same elsewhere.
fn here_and_there(gpus: u32) -> [MachineSpec; 2] {
    [MachineSpec::gpus(gpus), MachineSpec::gpus(gpus).elsewhere()]
}

#[test]
fn it_goes_through_a_directory_to_other_gpus_and_on() -> Result<()> {
    let [here, there] = here_and_there(2);
    let third = MachineSpec { first_minor: 150, hives_of: 1, ..MachineSpec::gpus(2) };
    each_criu(&case!()?, |case, criu| {
        let words = ["--children", "3", "--wait"];
        travels(case, criu, Way::Directory, &words, &[here.clone(), there.clone(), third.clone()])
    })
}

#[test]
fn it_goes_through_the_streamer() -> Result<()> {
    let criu = Criu::all()?.pop().ok_or("no CRIU")?;
    travels(&case!()?, &criu, Way::Native, &[], &here_and_there(2))
}

#[test]
fn it_goes_through_the_format_of_criu_image_streamer() -> Result<()> {
    let criu = Criu::all()?.remove(0);
    travels(&case!()?, &criu, Way::Stock, &[], &here_and_there(1))
}

#[test]
fn it_goes_on_after_a_dump_that_leaves_it_running() -> Result<()> {
    let case = case!()?;
    let criu = Criu::all()?.pop().ok_or("no CRIU")?;
    let machine = Machine::start(&MachineSpec::gpus(2))?;
    let mut app = App::start(&case, &["--wait"])?;
    let before = app.state(&machine)?;
    for turn in 0..2 {
        let images = case.dir(&format!("images-{turn}"))?;
        let options = Options::default().with(&["--leave-running"]);
        criu.dump(&case, &format!("dump-{turn}"), app.pid(), &images, &options)?;
        assert_eq!(machine.left_stopped()?, [""; 0]);
        app.goes_on()?;
        app.state(&machine)?.assert_is(&before, false);
    }
    app.kill()?;
    assert_eq!(machine.stop()?, [""; 0]);
    Ok(())
}

/// Two processes have a BO: that works, or is refused before anything is stopped.
#[test]
fn what_processes_share_is_restored_or_refused() -> Result<()> {
    let case = case!()?;
    let criu = Criu::all()?.pop().ok_or("no CRIU")?;
    let machine = Machine::start(&MachineSpec::gpus(1))?;
    let mut app = App::start(&case, &["--share"])?;
    let images = case.dir("images-1")?;
    let dumped = criu.dump(&case, "dump-1", app.pid(), &images, &Options::default());
    let Err(refused) = dumped else {
        app.gone()?;
        restore(&case, &criu, &mut app, Way::Directory, 1)?;
        app.goes_on()?;
        app.kill()?;
        assert_eq!(machine.stop()?, [""; 0]);
        return Ok(());
    };
    assert!(refused.to_string().contains("vramstream"), "{refused}");
    assert_eq!(machine.left_stopped()?, [""; 0]);
    app.goes_on()?;
    app.kill()?;
    assert_eq!(machine.stop()?, [""; 0]);
    Ok(())
}

mod long {
    use super::*;

    #[test]
    fn eight_gpus_with_both_criu_versions_through_each_way() -> Result<()> {
        each_criu(&case!()?, |case, criu| {
            for way in [Way::Directory, Way::Native, Way::Stock] {
                let case = case.part(&format!("{way:?}"))?;
                let words = ["--bytes", "65536", "--children", "3"];
                travels(&case, criu, way, &words, &here_and_there(8))?;
            }
            Ok(())
        })
    }

    #[test]
    fn one_gpu_of_each_model_that_there_is() -> Result<()> {
        let criu = Criu::all()?.pop().ok_or("no CRIU")?;
        for profile in ["gfx900", "gfx906", "gfx908", "gfx942"] {
            let case = case!()?.part(profile)?;
            let machines = here_and_there(1).map(|spec| {
                let profile = profile.to_owned();
                MachineSpec { profile, ..spec }
            });
            travels(&case, &criu, Way::Native, &["--bos", "3"], &machines)?;
        }
        Ok(())
    }
}
