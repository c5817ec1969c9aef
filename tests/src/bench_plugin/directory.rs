//! Contents to files: a CRIU that is played calls the plugin's hooks and does nothing else.
//!
//! Beside it, in the same turn and the same place: writing as many bytes from memory, a file for
//! each GPU, 4 MiB at a time; and the copies alone, into chunks that go nowhere.

use std::{
    convert::Infallible,
    fs::File,
    io::Write as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use memmap2::{Advice, MmapMut};
use nix::sys::resource::{UsageWho, getrusage};
use vramstream::{
    device::Driver,
    gpu::{self, Drain, DumpJob},
    ring::{Budget, Chunk, Ring},
};

use super::{
    options::Options,
    report::{Goal, Ratio, Row, median},
};
use crate::{
    images::random_bytes,
    machine::{GpuMemory, MachineSpec, SimulatedMachine},
    plugin::{App, Criu, Flavour},
    real::Result,
};

/// As dd's blocks.
const BLOCK_BYTES: usize = 4 << 20;
const GB: u64 = 1_000_000_000;

/// Measures it.
pub fn measure(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (gpus, bandwidth) in [(1, GB), (1, 0), (8, 0)] {
        rows.extend(one(options, gpus, bandwidth)?);
    }
    Ok(rows)
}

/// What takes turns.
#[derive(Clone, Copy)]
enum Part {
    Dump,
    Write,
    Copies,
}

/// What a turn took, in seconds.
#[derive(Default)]
struct Turn {
    dump: f64,
    cpu: f64,
    write: f64,
    copies: f64,
}

fn one(options: &Options, gpus: u32, bandwidth: u64) -> Result<Vec<Row>> {
    let bytes = options.size();
    let each = bytes / u64::from(gpus);
    // Two have it: the process, and what the copies alone are measured with.
    let spec = MachineSpec { vram: 2 * each + (64 << 20), bandwidth, ..MachineSpec::gpus(gpus) };
    let machine = SimulatedMachine::start(&spec)?;
    let bos: Vec<_> = (0..gpus).map(|gpu| format!("--bo vram:{gpu}:{each}")).collect();
    let app = App::start(&machine, &bos.join(" "))?;
    machine.fill(app.pid(), "random", 1)?;
    let driver: Arc<dyn Driver> = Arc::new(machine.driver());
    let ring = Budget::default().ring(gpus as usize)?;
    let memory =
        GpuMemory::create(&*driver, &spec.machine(), 1, each).map_err(|e| e.to_string())?;
    memory.fill(&driver, &ring).map_err(|e| e.to_string())?;
    let block = random_bytes(1, BLOCK_BYTES);
    let mut turns = Vec::new();
    for number in 0..=options.runs() {
        let criu = match &options.disk {
            Some(disk) => Criu::new_in(Flavour::Criu42, disk)?,
            None => Criu::new(Flavour::Criu42)?,
        };
        let mut turn = Turn::default();
        let mut order = [Part::Dump, Part::Write, Part::Copies];
        if number % 2 == 1 {
            order.reverse();
        }
        for part in order {
            // Nothing is to be waited for that was written before.
            rustix::fs::sync();
            have_pages(bytes + (ring.chunk_bytes() * ring.chunks()) as u64)?;
            match part {
                Part::Dump => (turn.dump, turn.cpu) = dump(&criu, &machine, &app)?,
                Part::Write => turn.write = write(&criu.images(), &block, gpus, each)?,
                Part::Copies => turn.copies = copies(&driver, &ring, &memory)?,
            }
        }
        eprintln!(
            "  {gpus} GPUs, {number}: dump {:.3} s, writing {:.3} s, copies {:.3} s",
            turn.dump, turn.write, turn.copies
        );
        if number > 0 {
            turns.push(turn);
        }
    }
    memory.free().map_err(|e| e.to_string())?;
    let middle = |what: &dyn Fn(&Turn) -> f64| median(turns.iter().map(what).collect());
    let ratio = |value: Option<f64>, of: &str, goal: Option<f64>| {
        let of = of.to_owned();
        value.map(|value| Ratio { value, of, goal: goal.map(Goal::AtLeast) })
    };
    let limited = bandwidth > 0;
    let name = match limited {
        true => format!("{gpus} GPU at 1 GB/s SDMA"),
        false => format!("{gpus} GPU{}, SDMA without a limit", if gpus > 1 { "s" } else { "" }),
    };
    let dump = middle(&|turn| turn.dump);
    let row = |name: String, seconds: Option<f64>, ratio: Option<Ratio>| Row {
        name,
        seconds,
        bytes,
        ratio,
        ..Row::default()
    };
    let main = if limited {
        // Nothing is faster than the slower of the two.
        let of = "of the slower of SDMA and writing, alone";
        ratio(middle(&|turn| turn.copies.max(turn.write) / turn.dump), of, Some(0.95))
    } else {
        let of = "of 1/(1/copies + 1/writing)";
        ratio(middle(&|turn| (turn.copies + turn.write) / turn.dump), of, Some(0.9))
    };
    let writing = ratio(middle(&|turn| turn.write / turn.dump), "the dump, of this", None);
    Ok(vec![
        Row { cpu: middle(&|turn| turn.cpu), ..row(name, dump, main) },
        row("  as many bytes written from memory".into(), middle(&|turn| turn.write), writing),
        row("  the copies alone".into(), middle(&|turn| turn.copies), None),
    ])
}

/// Takes so much memory and gives it back. In a virtual machine a page is dear that the host has to
/// find first, and page cache is made of such pages by the mood of the host: so whoever writes next
/// finds pages that are there.
fn have_pages(bytes: u64) -> Result<()> {
    let memory = MmapMut::map_anon(usize::try_from(bytes)?)?;
    memory.advise(Advice::PopulateWrite)?;
    Ok(())
}

/// Seconds for a dump, and those of processor time.
fn dump(criu: &Criu, machine: &SimulatedMachine, app: &App) -> Result<(f64, f64)> {
    let before = cpu_of_children()?;
    let since = Instant::now();
    let run = criu.dump(machine, &[app.process()])?;
    let seconds = since.elapsed().as_secs_f64();
    if !run.status.success() {
        return Err(format!("the dump failed: {run:?}").into());
    }
    Ok((seconds, cpu_of_children()? - before))
}

/// Seconds for writing as many files of so many bytes, which are removed again.
fn write(dir: &Path, block: &[u8], files: u32, bytes: u64) -> Result<f64> {
    let paths: Vec<_> = (0..files).map(|n| dir.join(format!("written-{n}"))).collect();
    let since = Instant::now();
    for path in &paths {
        let mut file = File::create(path)?;
        let mut left = bytes;
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
            file.write_all(&block[..part])?;
            left -= part as u64;
        }
    }
    let seconds = since.elapsed().as_secs_f64();
    paths.iter().try_for_each(std::fs::remove_file)?;
    Ok(seconds)
}

/// Seconds for copying everything into chunks.
fn copies(driver: &Arc<dyn Driver>, ring: &Ring, memory: &GpuMemory) -> Result<f64> {
    let contents = memory.contents().map_err(|e| e.to_string())?;
    let jobs = contents.into_iter().map(|contents| DumpJob { contents, drain: Nowhere }).collect();
    let since = Instant::now();
    gpu::dump(driver, ring, jobs, gpu::Options::default(), &mut || Ok(()))?;
    Ok(since.elapsed().as_secs_f64())
}

/// Takes chunks and gives them back.
struct Nowhere;

impl Drain for Nowhere {
    type Error = Infallible;

    fn chunk(&mut self, _: u64, _: Chunk, _: usize) -> std::result::Result<(), Infallible> {
        Ok(())
    }

    fn end(&mut self, _: u64) -> std::result::Result<(), Infallible> {
        Ok(())
    }
}

fn cpu_of_children() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |time: nix::sys::time::TimeVal| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        let more = u64::try_from(time.tv_usec()).unwrap_or(0);
        (Duration::from_secs(seconds) + Duration::from_micros(more)).as_secs_f64()
    };
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}
