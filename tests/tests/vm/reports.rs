//! Rows of the collection of public reports that need a real driver's answers: see
//! `tests/tests/plugin/reports.rs` for the rest of them.

use vramstream_tests::{machine::MachineSpec, real::workload::Kind};

use crate::{
    plain::{there_and_back, without_errors},
    support::{App, Machine, Result, case, criu::Options, each_criu, way::Way},
};

/// criu#1895: where an image holds no GPU state, the driver is not asked for anything.
#[test]
fn processes_without_gpu_state_are_restored_without_an_ioctl() -> Result<()> {
    each_criu(&case!()?, |case, criu| {
        let machine = Machine::start(&MachineSpec::gpus(1))?;
        there_and_back(case, criu, Kind::Tree(2), &Options::default())?;
        assert!(machine.calls()?.is_empty(), "{:?}", machine.calls()?);
        assert_eq!(machine.stop()?, [""; 0]);
        Ok(())
    })
}

/// criu pull 2340: nothing is said of children that the driver does not know.
#[test]
fn children_without_a_gpu_are_no_error() -> Result<()> {
    each_criu(&case!()?, |case, criu| {
        let machine = Machine::start(&MachineSpec::gpus(1))?;
        let mut app = App::start(case, &["--bytes", "8192", "--children", "3"])?;
        let quiet = Options { log: false, ..Options::default() };
        let image = Way::Directory.dump(case, criu, app.pid(), &quiet)?;
        app.gone()?;
        image.restore(case, criu, &quiet)?;
        app.set_restored();
        app.goes_on()?;
        for name in ["dump.stderr", "restore.stderr"] {
            without_errors(&std::fs::read_to_string(case.log(name)?)?)?;
        }
        app.end()?;
        assert_eq!(machine.stop()?, [""; 0]);
        Ok(())
    })
}
