//! A process's own memory and that of its GPUs at the same time, against each alone.

use super::{
    dump::{Cost, How, Lab},
    options::Options,
    report::{Goal, Ratio, Row, median},
};
use crate::{
    machine::{MachineSpec, SimulatedMachine},
    real::Result,
};

const GPUS: u64 = 2;
/// BOs of each GPU.
const BOS: u64 = 4;
/// Against the longer of the two parts alone.
const GOAL: f64 = 1.15;

/// CRIU goes on while the streamer copies.
const AT_EXIT: How = How::HandedOver { join: "exit" };
/// CRIU waits until the streamer has copied (4.2 has no later hook whose failure counts).
const IN_HOOK: How = How::HandedOver { join: "hook" };

/// Measures it.
pub fn measure(options: &Options) -> Result<Vec<Row>> {
    let size = options.size();
    let spec = MachineSpec {
        // Two processes have it.
        vram: 2 * size + (64 << 20),
        bandwidth: options.bandwidth,
        ..MachineSpec::gpus(2)
    };
    let lab = Lab::new(SimulatedMachine::start(&spec)?, options.disk.as_deref())?;
    let bo = size / BOS;
    let bos: Vec<String> =
        (0..GPUS * BOS).map(|n| format!("--bo=vram:{}:{bo}", n % GPUS)).collect();
    let memory = [format!("--memory={size}")];
    eprintln!("  filling memory");
    let processes = [
        ("process memory alone", lab.process("memory", &memory)?, AT_EXIT, size),
        ("GPU memory alone", lab.process("gpus", &bos)?, AT_EXIT, GPUS * size),
    ];
    let both = lab.process("both", &[&bos[..], &memory].concat())?;
    let [memory, gpus] = &processes;
    let variants = [
        (memory.0, &memory.1, memory.2, memory.3),
        (gpus.0, &gpus.1, gpus.2, gpus.3),
        ("both, VRAMSTREAM_JOIN=exit", &both, AT_EXIT, (GPUS + 1) * size),
        ("both, VRAMSTREAM_JOIN=hook: one after the other", &both, IN_HOOK, (GPUS + 1) * size),
    ];
    let mut costs: [Vec<Cost>; 4] = Default::default();
    // One more that does not count.
    for turn in 0..=options.runs() {
        let mut order: Vec<usize> = (0..variants.len()).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for place in order {
            let (name, process, how, _) = variants[place];
            let cost = lab.dump(process, how)?;
            eprintln!("  {turn}: {name}: {:.3} s, {:.2} s of CPU", cost.seconds, cost.cpu);
            if turn > 0 {
                costs[place].push(cost);
            }
        }
    }
    let rows = variants.iter().zip(&costs).enumerate().map(|(place, (variant, own))| {
        let (name, _, _, bytes) = *variant;
        let ratio = || {
            let parts = costs[0].iter().zip(&costs[1]);
            let longer = parts.map(|(one, other)| one.seconds.max(other.seconds));
            let ratios = own.iter().zip(longer).map(|(own, longer)| own.seconds / longer);
            let goal = (place == 2).then_some(Goal::AtMost(GOAL));
            let of = "of the longer part alone".into();
            median(ratios.collect()).map(|value| Ratio { value, of, goal })
        };
        Row {
            name: name.into(),
            seconds: median(own.iter().map(|cost| cost.seconds).collect()),
            bytes,
            cpu: median(own.iter().map(|cost| cost.cpu).collect()),
            peak: own.iter().map(|cost| cost.peak).max(),
            ratio: if place >= 2 { ratio() } else { None },
        }
    });
    Ok(rows.collect())
}
