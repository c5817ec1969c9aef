//! An application on real libhsakmt, dumped and restored by real CRIU, with ioctls on real device files.

use vramstream_tests::machine::MachineSpec;

use crate::support::{
    App, Case, Criu, Machine, Result, Snapshot, app::Facts, case, criu::Options, each_criu,
    way::Way,
};

/// Small buffers: what is emulated is slow.
const SMALL: [&str; 2] = ["--bytes", "32768"];
const TINY: [&str; 2] = ["--bytes", "8192"];

/// After a restore, or a dump that has let it go on: it does, and has what it had.
fn is_itself(app: &App, machine: &Machine, had: &Facts) -> Result<()> {
    app.goes_on()?;
    let has = app.facts(machine)?;
    assert_eq!(has.descriptors, had.descriptors);
    assert_eq!(has.mappings, had.mappings);
    assert_eq!(has.driver, had.driver);
    app.queues_run(machine)?;
    assert_eq!(mistakes(machine)?, [""; 0]);
    Ok(())
}

/// What anybody did wrong; that it has its devices open is right.
fn mistakes(machine: &Machine) -> Result<Vec<String>> {
    let mut complaints = machine.complaints()?;
    complaints.retain(|complaint| !complaint.ends_with("is still open"));
    Ok(complaints)
}

/// A process and the host that it is on.
struct Journey<'a> {
    case: &'a Case,
    machine: Machine,
    app: App,
    had: Facts,
    leg: u32,
}

impl<'a> Journey<'a> {
    fn begin(case: &'a Case, from: &MachineSpec, options: &[&str]) -> Result<Self> {
        let machine = Machine::start(from)?;
        let app = App::start(case, options);
        assert_eq!(mistakes(&machine)?, [""; 0]);
        let app = app?;
        let had = app.facts(&machine)?;
        assert!(had.mappings.len() > 4, "hardly anything is mapped: {had:#?}");
        Ok(Self { case, machine, app, had, leg: 0 })
    }

    /// To another host, or to the same.
    fn go(mut self, criu: &Criu, way: Way, to: &MachineSpec) -> Result<Self> {
        self.leg += 1;
        let case = self.case.part(&format!("leg{}", self.leg))?;
        let image = way.dump(&case, criu, self.app.pid(), &Options::default())?;
        self.app.gone()?;
        if to != self.machine.spec() {
            assert_eq!(self.machine.stop()?, [""; 0]);
            self.machine = Machine::start(to)?;
        }
        image.restore(&case, criu, &Options::default())?;
        self.app.set_restored();
        is_itself(&self.app, &self.machine, &self.had)?;
        Ok(self)
    }

    fn end(self) -> Result<()> {
        self.app.end()?;
        assert_eq!(self.machine.stop()?, [""; 0]);
        Ok(())
    }
}

/// From one host to another, whose GPUs have other ids, render nodes and another order.
fn moves(case: &Case, criu: &Criu, way: Way, gpus: u32, options: &[&str]) -> Result<()> {
    let from = MachineSpec::gpus(gpus);
    let to = from.clone().elsewhere();
    Journey::begin(case, &from, options)?.go(criu, way, &to)?.end()
}

#[test]
fn it_comes_back_on_the_same_host() -> Result<()> {
    each_criu(&case!()?, |case, criu| {
        let host = MachineSpec::gpus(1);
        Journey::begin(case, &host, &SMALL)?.go(criu, Way::Directory, &host)?.end()
    })
}

#[test]
fn it_moves_to_another_host() -> Result<()> {
    let criu = Criu::all()?.pop().ok_or("no CRIU")?;
    moves(&case!()?, &criu, Way::Directory, 2, &SMALL)
}

#[test]
fn its_vram_goes_from_gpu_to_gpu_through_the_streamer() -> Result<()> {
    let criu = Criu::all()?.pop().ok_or("no CRIU")?;
    moves(&case!()?, &criu, Way::File, 2, &SMALL)
}

#[test]
fn it_goes_on_after_a_dump_that_leaves_it_running() -> Result<()> {
    each_criu(&case!()?, |case, criu| {
        let files = Snapshot::of(case, &case.dir("app")?)?;
        let leave = files.options(&Options::default().with(&["--leave-running"]));
        let mut journey = Journey::begin(case, &MachineSpec::gpus(1), &SMALL)?;
        let image = Way::Directory.dump(case, criu, journey.app.pid(), &leave)?;
        is_itself(&journey.app, &journey.machine, &journey.had)?;
        // What was dumped is whole, whatever the process did since.
        journey.app.clear()?;
        files.bring_back()?;
        image.restore(case, criu, &Options::default())?;
        journey.app.set_restored();
        is_itself(&journey.app, &journey.machine, &journey.had)?;
        journey.end()
    })
}

#[test]
fn its_children_without_a_gpu_go_with_it() -> Result<()> {
    let criu = Criu::all()?.pop().ok_or("no CRIU")?;
    let options = [&SMALL[..], &["--children", "3"]].concat();
    moves(&case!()?, &criu, Way::Directory, 1, &options)
}

mod long {
    use super::*;

    fn with_each_criu(way: Way, gpus: u32, options: &[&str], case: Case) -> Result<()> {
        each_criu(&case, |case, criu| moves(case, criu, way, gpus, options))
    }

    #[test]
    fn it_moves_with_one_gpu() -> Result<()> {
        with_each_criu(Way::Directory, 1, &["--buffers", "3"], case!()?)
    }

    #[test]
    fn it_moves_with_two_gpus() -> Result<()> {
        with_each_criu(Way::Directory, 2, &["--buffers", "2"], case!()?)
    }

    #[test]
    fn it_moves_with_eight_gpus() -> Result<()> {
        with_each_criu(Way::Directory, 8, &TINY, case!()?)
    }

    #[test]
    fn its_vram_goes_through_the_streamer_with_one_gpu() -> Result<()> {
        with_each_criu(Way::File, 1, &SMALL, case!()?)
    }

    #[test]
    fn its_vram_goes_through_the_streamer_with_eight_gpus() -> Result<()> {
        with_each_criu(Way::File, 8, &TINY, case!()?)
    }

    #[test]
    fn it_moves_in_the_format_of_criu_image_streamer() -> Result<()> {
        with_each_criu(Way::Stock, 2, &SMALL, case!()?)
    }

    #[test]
    fn it_moves_over_tcp() -> Result<()> {
        with_each_criu(Way::Tcp, 2, &SMALL, case!()?)
    }

    #[test]
    fn it_moves_again_and_again() -> Result<()> {
        each_criu(&case!()?, |case, criu| {
            let one = MachineSpec::gpus(2);
            let two = one.clone().elsewhere();
            let three = MachineSpec { first_minor: 150, first_bus: 0x21, ..one.clone() };
            let journey = Journey::begin(case, &one, &SMALL)?;
            let journey = journey.go(criu, Way::Directory, &two)?;
            let journey = journey.go(criu, Way::File, &three)?;
            journey.go(criu, Way::Directory, &one)?.end()
        })
    }
}
