//! `vramstream selftest`: moves a simulated process between simulated machines, for real.
//!
//! A process on two GPUs, with queues that run and memory that changes while they do, is stopped and
//! dumped; its contents are streamed over TCP (this machine's loopback) with checksums; it is
//! restored on two other GPUs, which have other ids and other render nodes; every byte is compared;
//! and it runs again on both sides. Everything but the GPUs is what a real move uses: the same
//! ioctls, rings, stages, format and transport.

use std::time::{Duration, Instant};

use vramstream::{
    device::sim::{BoPlan, Fill, Machine, Profile},
    gpu,
    ring::Budget,
    stage::Compression,
};

use crate::{
    error::{Error, Result},
    progress::Progress,
    rig::{Source, Target},
    signals::Signals,
    transport::tcp::{TcpDestination, TcpOrigin, Timeouts},
    vram::{self, Moved},
};

/// Connections of the transfer.
const CONNECTIONS: u32 = 2;
/// How long the receiver waits for the first of them.
const SENDER: Duration = Duration::from_secs(30);
/// For the indexes of its shards.
const INDEX_BYTES: usize = 16 << 20;

/// What was seen.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Report {
    /// GPUs on each side.
    pub gpus: usize,
    /// BOs with contents.
    pub bos: usize,
    /// Bytes that are the same on both sides.
    pub bytes: u64,
    /// What went over the network, with everything around the contents.
    pub sent_bytes: u64,
    /// How long the queues of the source were stopped.
    pub stopped_ms: u64,
}

/// Runs the test. An error is a failure of the test, or of this machine.
pub fn selftest(signals: &Signals) -> Result<Report> {
    let budget = Budget::from_env().map_err(|error| Error::Usage(error.to_string()))?;
    let profile = Profile::gfx90a();
    let machine = Machine::new(&profile, 2).vram_bytes(1 << 30);
    let source = Source::start(machine.clone(), &memory(), fill)?;
    let app = source.application();
    // The first BO of each GPU changes as long as the queues run: a copy of a running process would
    // be torn.
    let pid = app.process().pid();
    let scribbles = app
        .queues()
        .iter()
        .filter_map(|queue| Some((queue, app.bos().iter().find(|bo| bo.gpu == queue.gpu)?)))
        .map(|(queue, bo)| source.host().scribble(pid, queue.id, bo.va))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Error::io(|| "let the simulated queues run"))?;

    let stopped = Instant::now();
    let paused = source.pause()?;
    let (state, contents) = source.divide(paused.checkpoint()?)?;
    let bos = contents.iter().map(|contents| contents.bos.len()).sum();
    let (target, places) = Target::start(machine.moved(200, 0x40), &state)?;

    let ring = || budget.ring(2).map_err(|error| Error::Usage(error.to_string()));
    let options = |ring| vram::Options {
        ring,
        id: 1,
        compression: Compression::None,
        index_bytes: INDEX_BYTES,
        gpu: gpu::Options::default(),
    };
    let (here, there) = (options(ring()?), options(ring()?));
    // A sender that fails before it connects is not waited for.
    let times = Timeouts { sender: Some(SENDER), ..Timeouts::default() };
    let mut origin = TcpOrigin::bind("127.0.0.1:0", times)?;
    let destination = TcpDestination::new(&origin.local_addr().to_string(), CONNECTIONS, times)?;
    let silent = Progress::silent();
    let moved = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let check = || Ok(());
            vram::dump(&source.driver(), contents, Box::new(destination), &here, check, &silent)
        });
        let received = vram::restore(
            &target.driver(),
            places,
            &mut origin,
            &there,
            || signals.check(),
            &silent,
        );
        let sent = sender.join().unwrap_or_else(|_| Err(Error::Panicked("sender".into())));
        cause(received, sent)
    });
    let Moved { shards, .. } = moved?;
    target.resume()?;
    let bytes = target.compare(&source)?;
    paused.unpause()?;
    let stopped_ms = u64::try_from(stopped.elapsed().as_millis()).unwrap_or(u64::MAX);
    drop(scribbles);
    check_hosts(&source, &target)?;
    let sent_bytes = shards.iter().map(|shard| shard.bytes).sum();
    Ok(Report { gpus: state.gpus(), bos, bytes, sent_bytes, stopped_ms })
}

/// What the sender says of the move. If both failed, one of them only says what it was told by the
/// other, or that it heard nothing.
fn cause(received: Result<Moved>, sent: Result<Moved>) -> Result<Moved> {
    match (received, sent) {
        (Err(Error::Peer { .. } | Error::Silent { .. }), Err(sent)) => Err(sent),
        (received, sent) => received.and(sent),
    }
}

/// The simulation has nothing to complain about: no call that a driver would resent, nothing left
/// behind, all queues running.
fn check_hosts(source: &Source, target: &Target) -> Result<()> {
    let complaints = source
        .host()
        .complaints()
        .into_iter()
        .chain(target.host().complaints())
        .chain(source.host().left_stopped())
        .chain(target.host().left_stopped());
    match complaints.map(|complaint| complaint.to_string()).reduce(|all, one| all + "; " + &one) {
        Some(all) => Err(Error::Usage(format!("the simulated driver complains: {all}"))),
        None => Ok(()),
    }
}

/// Something of everything: large and small, VRAM and GTT, whole chunks and not.
fn memory() -> Vec<BoPlan> {
    let of = |gpu| {
        let small = (0..200).map(move |n| BoPlan::vram(gpu, (1 + n % 5) << 12));
        [
            BoPlan::vram(gpu, 4 << 20),
            BoPlan::vram(gpu, 96 << 20),
            BoPlan::vram(gpu, (9 << 20) + 4096),
            BoPlan::gtt(gpu, 8 << 20),
            BoPlan::vram(gpu, 32 << 20),
        ]
        .into_iter()
        .chain(small)
    };
    of(0).chain(of(1)).collect()
}

/// Different in each BO; some of it zeros, which are not sent.
fn fill(bo: u64) -> Fill {
    match bo % 5 {
        0 | 2 => Fill::Random(bo),
        1 => Fill::Bf16(bo),
        3 => Fill::HalfZeros(bo),
        _ => Fill::Zeros,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_that_knows_the_cause_tells_it() {
        let told = || Err(Error::Peer { peer: "the other".into(), what: "gave up".into() });
        let heard_nothing = || {
            let (peer, doing) = ("the other".into(), "waiting for a sender to connect".into());
            Err(Error::Silent { peer, seconds: 30, doing })
        };
        let failed = |what: &str| Err(Error::Usage(what.into()));
        let said = |received, sent| cause(received, sent).unwrap_err().to_string();
        assert_eq!(said(told(), failed("the source")), "the source");
        assert_eq!(said(heard_nothing(), failed("the source")), "the source");
        assert_eq!(said(failed("the target"), told()), "the target");
        let moved = || Ok(Moved { gpus: Vec::new(), shards: Vec::new() });
        assert_eq!(said(moved(), failed("the source")), "the source");
        assert_eq!(said(failed("the target"), moved()), "the target");
        assert!(cause(moved(), moved()).is_ok());
    }
}
