//! Frameworks whose parameters lie in VRAM, mapped through the render nodes.

use std::{fs, process::Command, time::Duration};

use crate::support::{Result, case};

/// The programs, and what they share.
const PROGRAMS: &str = "/vm/frameworks";
const SHORT: Duration = Duration::from_secs(120);

/// What Python believes of libhsakmt's structures is what the C header says.
#[test]
fn python_has_the_structures_of_the_header() -> Result<()> {
    let case = case!()?;
    let program = case.dir("build")?.join("layout");
    let mut compiler = Command::new("gcc");
    compiler.args(["-Wall", "-Werror", "-I/usr/include/hsakmt", "-o"]).arg(&program);
    case.ok("gcc", compiler.arg(format!("{PROGRAMS}/layout.c")), SHORT)?;
    let header = case.ok("header", &mut Command::new(program), SHORT)?.stdout;
    let mut python = Command::new("python3");
    let python = case.ok("python", python.arg(format!("{PROGRAMS}/vram.py")), SHORT)?.stdout;
    assert!(header.lines().count() > 50, "{header}");
    assert_eq!(python, header);
    Ok(())
}

mod long {
    use vramstream_tests::{
        machine::MachineSpec,
        real::{
            streamer::Start,
            training::{Framework, Program, Training, first_difference},
        },
    };

    use super::{super::support::Machine, *};
    use crate::support::{Criu, criu::Options};

    /// How many steps a training has, and after how many of them it is moved.
    const STEPS: u32 = 60;
    const BEFORE: usize = 20;
    /// For what is slow because the machine is.
    const LONG: Duration = Duration::from_secs(300);

    /// What it writes is what a training without an interruption writes, bit for bit; and so are the
    /// parameters at the end, which are read from VRAM.
    fn the_loss_curve_continues_on_other_gpus(framework: Framework) -> Result<()> {
        let case = case!()?.part(framework.name())?;
        let program = Program {
            python: format!("/opt/frameworks/{}/python3", framework.name()).into(),
            script: format!("{PROGRAMS}/{}", framework.script()).into(),
        };
        let criu = Criu::all()?.pop().ok_or("no CRIU")?;
        let source = Machine::start(&MachineSpec::gpus(2))?;
        let start = |name| Training::start(&program, STEPS, "vram", &case.dir(name)?);
        let reference = start("uninterrupted")?.ends()?;
        let mut training = start("moved")?;
        training.reaches(BEFORE)?;
        let (here, there) = (case.dir("here")?, case.dir("there")?);
        let image = format!("file:{}", case.dir("image")?.join("image").display());
        let mut capture = Start::new(&here, &["capture", "--to", &image]).start()?;
        capture.ready(LONG)?;
        let options = Options { stream: true, ..Options::default() };
        criu.dump(&case, "dump", training.pid(), &here, &options)?;
        capture.succeeds(LONG)?;
        training.gone()?;
        let at = training.steps()?;
        assert!((BEFORE..STEPS as usize).contains(&at), "it was moved after {at} steps");
        assert_eq!(source.stop()?, [""; 0]);

        let spec = MachineSpec::gpus(2).elsewhere();
        let destination = Machine::start(&spec)?;
        let mut serve = Start::new(&there, &["serve", "--from", &image]).start()?;
        serve.ready(LONG)?;
        let (pid, _) = criu.restore(&case, "restore", &there, &options)?;
        training.set_restored();
        serve.succeeds(LONG)?;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
        fs::write(case.log("maps")?, &maps)?;
        for minor in (spec.first_minor..).take(spec.gpus as usize) {
            let node = format!("/dev/dri/renderD{minor}");
            assert!(maps.contains(&node), "nothing is mapped through {node}");
        }
        let losses = training.ends()?;
        fs::write(case.log("losses")?, &losses)?;
        if let Some(difference) = first_difference(&losses, &reference) {
            return Err(difference.into());
        }
        assert_eq!(destination.stop()?, [""; 0]);
        Ok(())
    }

    #[test]
    fn the_loss_curve_of_pytorch_continues_on_other_gpus() -> Result<()> {
        the_loss_curve_continues_on_other_gpus(Framework::Torch)
    }

    #[test]
    fn the_loss_curve_of_tensorflow_continues_on_other_gpus() -> Result<()> {
        the_loss_curve_continues_on_other_gpus(Framework::TensorFlow)
    }
}
