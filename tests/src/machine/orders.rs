//! The control channel of a simulated machine: what a line asks for, and the lines of the answer.
//!
//! | line | answer |
//! |---|---|
//! | `bos PID` | a line for each BO: GPU id, handle, address, size, flags, CRC-32 (`-` where it has no contents) |
//! | `places PID` | a line for each BO: address, number of its render node, place in the mmap space of that, ids of the GPUs on which it is mapped |
//! | `fill PID ADDRESS KIND SEED` | nothing; kinds: random, bf16, zeros, half, offsets |
//! | `queues PID` | a line for each queue: number, GPU id, state, how often it was stopped |
//! | `events PID` | a line for each event: number, kind, whether it is set |
//! | `paused PID` | true or false |
//! | `left-stopped` | a line for each process that somebody has stopped and not started again |
//! | `complaints` | a line for each thing that somebody did wrong, or left behind |
//! | `forget` | the same lines, of mistakes alone, and then they are forgotten |
//! | `calls` | a line for each request that was called: name, times |
//! | `resumed PID MILLISECONDS` | true if the work that RESUME began is done, or false |
//! | `hide PID GPU` | nothing; the process (0: any) does not see the GPU, if it has not opened `/dev/kfd` yet |
//! | `connections` | how many open files there are |
//! | `plan FAULT` | the number of the fault |
//! | `hits NUMBER`, `release NUMBER` | how often it struck |
//!
//! A fault is a call by its name, or `engine-hangs`, `fence-never-signals`, `vram-full`,
//! `vanished`, and words: `nth=N`, `times=N`, `always`, `pid=PID`, `gpu=PLACE`, `errno=NUMBER`,
//! `takes=MILLISECONDS`, `blocks`.

use std::{str::FromStr, time::Duration};

use nix::errno::Errno;
use vramstream::{
    abi::kfd::flags,
    device::sim::{Daemon, Fault, Fill, Planned, SimHost},
};

/// What orders are given to.
#[derive(Debug)]
pub struct Orders<'a> {
    daemon: &'a Daemon,
    planned: Vec<Planned>,
}

type Answer = Result<Vec<String>, String>;

impl<'a> Orders<'a> {
    /// To a machine.
    pub fn to(daemon: &'a Daemon) -> Self {
        Orders { daemon, planned: Vec::new() }
    }

    fn host(&self) -> &SimHost {
        self.daemon.host()
    }

    /// Does what a line says.
    pub fn obey(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let host = self.host();
        let lines = |complaints: Vec<vramstream::device::sim::Complaint>| {
            Ok(complaints.iter().map(ToString::to_string).collect())
        };
        match words.as_slice() {
            ["bos", pid] => bos(host, number(pid)?),
            ["places", pid] => Ok(host.bos(number(pid)?).iter().map(place).collect()),
            ["fill", pid, address, kind, seed] => {
                let fill = fill(kind, number(seed)?)?;
                host.fill_bo(number(pid)?, number(address)?, fill).map_err(|e| e.to_string())?;
                Ok(Vec::new())
            }
            ["queues", pid] => {
                let queues = host.queues(number(pid)?);
                let line = |q: &vramstream::device::sim::QueueInfo| {
                    format!("{} {} {:?} {}", q.id, q.gpu_id, q.state, q.evictions)
                };
                Ok(queues.iter().map(line).collect())
            }
            ["events", pid] => {
                let events = host.events(number(pid)?);
                Ok(events.iter().map(|e| format!("{} {} {}", e.id, e.kind, e.signaled)).collect())
            }
            ["paused", pid] => one(host.is_paused(number(pid)?)),
            ["left-stopped"] => lines(host.left_stopped()),
            ["complaints"] => lines(host.check()),
            ["forget"] => lines(host.take_complaints()),
            ["calls"] => {
                let calls = host.all_calls();
                Ok(calls.iter().map(|(name, times)| format!("{name} {times}")).collect())
            }
            ["resumed", pid, patience] => {
                one(host.wait_resumed(number(pid)?, Duration::from_millis(number(patience)?)))
            }
            ["hide", pid, gpu] => {
                host.hide_gpu_from(number(pid)?, number(gpu)?);
                Ok(Vec::new())
            }
            ["connections"] => one(self.daemon.connections()),
            ["plan", call, how @ ..] => {
                let planned = host.plan(fault(call, how)?);
                self.planned.push(planned);
                one(self.planned.len() - 1)
            }
            ["hits", which] => one(self.planned(which)?.hits()),
            ["release", which] => {
                self.planned(which)?.release();
                one(self.planned(which)?.hits())
            }
            _ => Err(format!("what is {line:?}?")),
        }
    }

    fn planned(&self, which: &str) -> Result<&Planned, String> {
        self.planned.get(number::<usize>(which)?).ok_or_else(|| format!("no fault {which}"))
    }
}

fn one(answer: impl ToString) -> Answer {
    Ok(vec![answer.to_string()])
}

fn number<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word:?} is no number here"))
}

fn bos(host: &SimHost, pid: u32) -> Answer {
    let line = |bo: &vramstream::device::sim::BoInfo| {
        let crc = if bo.flags & (flags::VRAM | flags::GTT) != 0 {
            let crc = host.checksum_bo(pid, bo.va).map_err(|errno| errno.to_string())?;
            format!("{crc:08x}")
        } else {
            "-".into()
        };
        Ok(format!("{} {} {} {} {} {crc}", bo.gpu_id, bo.handle, bo.va, bo.size, bo.flags))
    };
    host.bos(pid).iter().map(line).collect()
}

fn place(bo: &vramstream::device::sim::BoInfo) -> String {
    let mapped = bo.mapped.iter().map(|gpu_id| format!(" {gpu_id}"));
    format!("{} {} {}{}", bo.va, bo.minor, bo.offset, mapped.collect::<String>())
}

fn fill(kind: &str, seed: u64) -> Result<Fill, String> {
    Ok(match kind {
        "random" => Fill::Random(seed),
        "bf16" => Fill::Bf16(seed),
        "zeros" => Fill::Zeros,
        "half" => Fill::HalfZeros(seed),
        "offsets" => Fill::Offsets,
        _ => return Err(format!("there is no fill {kind:?}")),
    })
}

fn fault(call: &str, how: &[&str]) -> Result<Fault, String> {
    let gpu = how.iter().find_map(|word| word.strip_prefix("gpu="));
    let place = || gpu.map_or(Ok(0), number::<usize>);
    let mut fault = match call {
        "engine-hangs" => Fault::engine_hangs(place()?),
        "fence-never-signals" => Fault::fence_never_signals(place()?),
        "vram-full" => Fault::vram_full(place()?),
        "vanished" => Fault::vanished(place()?),
        name => Fault::call(name),
    };
    for word in how {
        fault = match word.split_once('=').unwrap_or((word, "")) {
            ("nth", n) => fault.nth(number(n)?),
            ("times", n) => fault.times(number(n)?),
            ("always", _) => fault.always(),
            ("pid", pid) => fault.on(number(pid)?),
            ("gpu", gpu) => fault.on_gpu(number(gpu)?),
            ("errno", errno) => fault.answers(Errno::from_raw(number(errno)?)),
            ("takes", time) => fault.takes(Duration::from_millis(number(time)?)),
            ("blocks", _) => fault.blocks(),
            _ => return Err(format!("what is {word:?} of a fault?")),
        };
    }
    Ok(fault)
}
