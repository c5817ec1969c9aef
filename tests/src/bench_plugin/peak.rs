//! The most memory that CRIU has, against a dump of the same process without memory on GPUs.

use super::{
    dump::{How, Lab},
    options::Options,
    report::{Goal, Ratio, Row, float},
};
use crate::{
    machine::{MachineSpec, SimulatedMachine},
    real::Result,
};

/// `KFD_MAX_BUFFER_SIZE`.
const BUFFER: (&str, u32) = ("64M", 64);
/// MiB that the plugin may need beside its buffers.
const OWN: u32 = 16;

/// Measures it.
pub fn measure(options: &Options) -> Result<Vec<Row>> {
    let sizes: [u64; 2] = if options.quick { [16 << 20, 128 << 20] } else { [256 << 20, 4 << 30] };
    let spec = MachineSpec { vram: sizes[1] + (64 << 20), ..MachineSpec::gpus(1) };
    let ways = [
        ("handed over", How::HandedOver { join: "hook" }, OWN),
        (
            "to a directory, KFD_MAX_BUFFER_SIZE=64M",
            How::Directory { buffer: BUFFER.0 },
            BUFFER.1 + OWN,
        ),
    ];
    let mut rows = Vec::new();
    let mut without = [0; 2];
    for bytes in [0].into_iter().chain(sizes) {
        // One BO: whoever takes a BO at a time would be seen.
        let memory = match bytes {
            0 => "--only-kfd".to_owned(),
            bytes => format!("--bo=vram:0:{bytes}"),
        };
        let lab = Lab::new(SimulatedMachine::start(&spec)?, options.disk.as_deref())?;
        let process = lab.process("app", &[memory])?;
        for ((way, how, most), without) in ways.iter().zip(&mut without) {
            let cost = lab.dump(&process, *how)?;
            eprintln!("  {way}, {} MiB: {} KiB", bytes >> 20, cost.peak >> 10);
            let ratio = if bytes == 0 {
                *without = cost.peak;
                None
            } else {
                let grown = float(cost.peak.saturating_sub(*without)) / f64::from(1 << 20);
                let goal = Some(Goal::AtMost(f64::from(*most)));
                Some(Ratio { value: grown, of: "MiB more".into(), goal })
            };
            rows.push(Row {
                name: format!("{way}, {} MiB of VRAM", bytes >> 20),
                seconds: Some(cost.seconds),
                bytes,
                cpu: Some(cost.cpu),
                peak: Some(cost.peak),
                ratio,
            });
        }
    }
    Ok(rows)
}
