//! A training of PyTorch, moved in its middle from one host to the other.

use vramstream_tests::real::training::{Framework, Program, Training, first_difference};

use super::*;

/// How many steps a training has, and after how many of them it is moved.
const STEPS: u32 = 300;
const BEFORE: usize = 100;

/// The file of losses is what a training without an interruption writes, bit for bit, and so are the
/// parameters at the end.
#[test]
fn the_loss_curve_of_pytorch_continues_exactly() -> Result<()> {
    let mut reference: Option<String> = None;
    if skipped() {
        return Ok(());
    }
    let program = Program::of(Framework::Torch)?;
    with_each_criu(|criu| {
        let case = Case::new()?;
        let link = Link::new(10_000)?;
        let mut training = Training::start(&program, STEPS, "cpu", &case.scratch)?;
        training.reaches(BEFORE)?;
        let (capture, mut receive) = two_hosts(&link, &case)?;
        let mut capture = capture.start()?;
        capture.ready(SHORT)?;
        let gate = gate(&case)?;
        let options = ["--action-script", gate.as_str()];
        criu.dump_pid(training.pid(), &case.source, &options)?.end(LONG)??;
        capture.succeeds(LONG)?;
        training.gone()?;
        let at = training.losses()?;
        let steps = training.steps()?;
        assert!((BEFORE..STEPS as usize).contains(&steps), "it was moved after {steps} steps");
        receive.ready(LONG)?;
        let pid = criu.restore_pid(&case.destination, LONG)?;
        assert_eq!(pid, training.pid());
        training.set_restored();
        receive.succeeds(SHORT)?;
        let losses = training.ends()?;
        assert!(losses.starts_with(&at), "what was written before has changed");
        let reference = match &reference {
            Some(losses) => losses,
            None => {
                let dir = case.scratch.dir("uninterrupted")?;
                reference.insert(Training::start(&program, STEPS, "cpu", &dir)?.ends()?)
            }
        };
        match first_difference(&losses, reference) {
            None => Ok(()),
            Some(difference) => Err(difference.into()),
        }
    })
}
