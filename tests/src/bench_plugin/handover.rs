//! The plugin's end in this process, the streamer in another: until the streamer has every
//! descriptor.

use std::{fs::File, os::fd::AsFd, time::Instant};

use vramstream::{
    device::RenderNode,
    gpu::{Contents, Render},
    handoff::{Direction, Job, Streamer},
};

use super::{
    dump::capture,
    options::Options,
    report::{Goal, Ratio, Row, median},
};
use crate::{
    machine::{GpuMemory, MachineSpec, SimulatedMachine},
    real::Result,
};

const BOS: u64 = 10_000;
const BO_BYTES: u64 = 4096;
/// Milliseconds.
const GOAL: f64 = 100.0;

/// Measures it.
pub fn measure(options: &Options) -> Result<Vec<Row>> {
    let spec = MachineSpec { vram: 256 << 20, ..MachineSpec::gpus(1) };
    let machine = SimulatedMachine::start(&spec)?;
    let driver = machine.driver();
    let memory =
        GpuMemory::create(&driver, &spec.machine(), BOS, BO_BYTES).map_err(|e| e.to_string())?;
    let (mut handed_over, mut copied) = (Vec::new(), Vec::new());
    // One more that does not count: the first of a day is slow.
    for turn in 0..=options.runs() {
        let dir = tempfile::tempdir()?;
        let streamer = capture(&machine, dir.path())?;
        let mut gpus = Vec::new();
        for contents in memory.contents().map_err(|e| e.to_string())? {
            let (Render::At(path) | Render::Open { path, .. }) = contents.node;
            let file = RenderNode::open(&driver, &path)?.into_file()?;
            gpus.push(Contents { node: Render::Open { path, file }, ..contents });
        }
        let job = Job { direction: Direction::Dump, kfd_id: 7, cap_bytes: None, gpus };
        let images = File::open(dir.path())?;
        let since = Instant::now();
        let connected = Streamer::connect(images.as_fd())?.ok_or("the streamer has no socket")?;
        let pending = connected.hand_over(job)?;
        let accepted = since.elapsed().as_secs_f64();
        pending.wait()?;
        let all = since.elapsed().as_secs_f64();
        eprintln!(
            "  {turn}: handed over in {:.1} ms, copied after {:.1} ms",
            accepted * 1e3,
            all * 1e3
        );
        if turn > 0 {
            handed_over.push(accepted);
            copied.push(all);
        }
        // It has had no CRIU.
        drop(streamer);
    }
    memory.free().map_err(|e| e.to_string())?;
    let seconds = median(handed_over);
    let ratio = seconds.map(|seconds| Ratio {
        value: seconds * 1e3,
        of: "ms".into(),
        goal: Some(Goal::AtMost(GOAL)),
    });
    Ok(vec![
        Row { name: format!("{BOS} BOs, all descriptors there"), seconds, ratio, ..Row::default() },
        Row {
            name: "the same until their 4 KiB each are copied".into(),
            seconds: median(copied),
            bytes: BOS * BO_BYTES,
            ..Row::default()
        },
    ])
}
