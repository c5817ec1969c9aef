//! One run of a program.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{self, Read},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::options::Sink;
use crate::{
    fake_criu::{CaptureClient, Pages, ServeClient},
    shards::{Worker, discard, replay, store},
    streamer::{Launch, Operation, Outcome, Running},
};

/// How long any step of a run may take.
const PATIENCE: Duration = Duration::from_secs(900);

/// Raw bytes by wall time, from the first byte fed to the program's end.
pub const SPEED: &str = "GB/s";
/// CPU time of the streamer's processes by raw bytes.
pub const CPU: &str = "CPU-s/GB";
/// Peak memory of the streamer.
pub const PEAK: &str = "peak MiB";
/// From the start to `socket-init`.
pub const READY: &str = "ready s";
/// Raw bytes by wall time, from the request for the image to its last byte.
pub const HAND_OFF: &str = "hand-off GB/s";

/// What a run measured, by metric.
#[derive(Clone, Debug, Default)]
pub struct Sample(pub BTreeMap<&'static str, f64>);

impl Sample {
    fn with(mut self, metric: &'static str, value: f64) -> Self {
        self.0.insert(metric, value);
        self
    }

    fn with_costs(self, bytes: u64, outcomes: &[Outcome]) -> Self {
        let cpu: Duration = outcomes.iter().map(|outcome| outcome.cpu).sum();
        let peak = outcomes.iter().map(|outcome| outcome.peak_memory).max().unwrap_or(0);
        self.with(CPU, cpu.as_secs_f64() / gigabytes(bytes)).with(PEAK, mebibytes(peak))
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (metric, value) in &self.0 {
            write!(out, "{separator}{value:.3} {metric}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Where the shards of a capture go.
#[derive(Clone, Debug)]
pub enum To {
    /// So many pipes with consumers.
    Pipes(usize, Sink),
    /// One pipe, stored in this file.
    Stored(PathBuf),
    /// Where the program's own options say.
    Elsewhere,
}

/// Dumps `bytes` of `pages` through a capture.
pub fn capture(launch: Launch, to: &To, pages: &Pages, bytes: u64) -> io::Result<Sample> {
    let (mut running, begin) = dump(launch, to, pages, bytes)?;
    let outcome = finish(&mut running)?;
    let wall = (running.started() + outcome.wall).saturating_duration_since(begin);
    Ok(Sample::default().with(SPEED, speed(bytes, wall)).with_costs(bytes, &[outcome]))
}

/// Dumps through a capture into a receiver on the same machine, which has `listens` to say where.
pub fn transfer(
    receiver: Launch,
    sender: impl FnOnce(&str) -> Launch,
    pages: &Pages,
    bytes: u64,
) -> io::Result<Sample> {
    let mut receiver = receiver.no_shards().start(Operation::Receive)?;
    let address = loop {
        let Some(line) = receiver.line()? else {
            let said = receiver.wait()?.stderr;
            return Err(io::Error::other(format!("the receiver does not listen: {}", said.trim())));
        };
        if let Some(address) = line.strip_prefix("listening ") {
            break address.to_owned();
        }
    };
    let (mut sender, begin) = dump(sender(&address), &To::Elsewhere, pages, bytes)?;
    let sent = finish(&mut sender)?;
    let received = finish(&mut receiver)?;
    let ends = [sender.started() + sent.wall, receiver.started() + received.wall];
    let end = ends.into_iter().max().unwrap_or(begin);
    let wall = end.saturating_duration_since(begin);
    Ok(Sample::default().with(SPEED, speed(bytes, wall)).with_costs(bytes, &[sent, received]))
}

/// Serves from where `launch` says, with the shards from these files if there are any, and reads
/// the pages once. A program that does not end by itself afterwards is an error.
pub fn serve(launch: Launch, shards: &[PathBuf], bytes: u64) -> io::Result<Sample> {
    let dir = launch.dir().to_owned();
    let launch = if shards.is_empty() { launch.no_shards() } else { launch.shards(shards.len()) };
    let files = shards.iter().map(File::open).collect::<io::Result<Vec<_>>>()?;
    let mut running = launch.start(Operation::Serve)?;
    let ends = std::mem::take(&mut running.shards);
    let feeders: Vec<_> =
        files.into_iter().zip(ends).map(|(file, shard)| replay(file, shard)).collect();
    let ready = running.wait_for_within("socket-init", PATIENCE)?;
    let ready = ready.saturating_duration_since(running.started());
    for feeder in feeders {
        feeder.join_within(PATIENCE)?;
    }
    let criu = ServeClient::connect_within(&dir, PATIENCE)?;
    criu.read("cpuinfo.img")?;
    let begin = Instant::now();
    let mut reader =
        criu.open("pages-1.img")?.ok_or_else(|| io::Error::other("pages-1.img is not served"))?;
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        match reader.read(&mut buffer)? {
            0 => break,
            count => total += count as u64,
        }
    }
    let hand_off = begin.elapsed();
    if total != bytes {
        return Err(io::Error::other(format!("{total} bytes served, not {bytes}")));
    }
    criu.read("inventory.img")?;
    let before_end = running.peak_memory();
    drop(criu);
    let mut outcome = finish(&mut running)?;
    outcome.peak_memory = outcome.peak_memory.max(before_end);
    let sample = Sample::default().with(READY, ready.as_secs_f64());
    // Files are only opened by then: there is no speed to speak of.
    let sample = if shards.is_empty() { sample } else { sample.with(SPEED, speed(bytes, ready)) };
    Ok(sample.with(HAND_OFF, speed(bytes, hand_off)).with_costs(bytes, &[outcome]))
}

/// Starts a capture and feeds it. The result also says when the first byte was fed.
fn dump(launch: Launch, to: &To, pages: &Pages, bytes: u64) -> io::Result<(Running, Instant)> {
    let dir = launch.dir().to_owned();
    let launch = match to {
        To::Pipes(count, _) => launch.shards(*count),
        To::Stored(_) => launch.shards(1),
        To::Elsewhere => launch.no_shards(),
    };
    let mut running = launch.start(Operation::Capture)?;
    let mut consumers = Vec::new();
    for shard in std::mem::take(&mut running.shards) {
        consumers.push(match to {
            To::Pipes(_, Sink::Null) => discard(shard),
            To::Pipes(_, Sink::Read) | To::Elsewhere => read_away(shard),
            To::Stored(path) => store(shard, File::create(path)?),
        });
    }
    let fed = feed(&dir, pages, bytes);
    // What the program says is the cause of what was seen here.
    let begin = fed.map_err(|error| {
        let ended = running.wait_within(Duration::from_secs(2));
        let said = ended.map_or_else(|late| late.to_string(), |outcome| outcome.stderr);
        io::Error::new(error.kind(), format!("{error}: {}", said.trim()))
    })?;
    for consumer in consumers {
        consumer.join_within(PATIENCE)?;
    }
    Ok((running, begin))
}

/// What a dump is here: memory, and two small images around it. Says when it began.
fn feed(dir: &Path, pages: &Pages, bytes: u64) -> io::Result<Instant> {
    let criu = CaptureClient::connect_within(dir, Duration::from_secs(20))?;
    let begin = Instant::now();
    criu.send("cpuinfo.img", &[1; 100])?;
    criu.open("pages-1.img")?.send_pages(pages, bytes)?;
    criu.finish()?;
    Ok(begin)
}

fn read_away(shard: OwnedFd) -> Worker<u64> {
    Worker::start(move || {
        let mut file = File::from(shard);
        let mut buffer = vec![0; 1 << 20];
        let mut total = 0;
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(total),
                count => total += count as u64,
            }
        }
    })
}

fn finish(running: &mut Running) -> io::Result<Outcome> {
    let outcome = running.wait_within(PATIENCE)?;
    outcome.expect_success()?;
    // A program that swallows its errors must not look fast.
    if outcome.stderr.contains("Error") {
        return Err(io::Error::other(outcome.stderr));
    }
    Ok(outcome)
}

/// Bytes of disk that a directory's file system has free.
pub fn free_bytes(dir: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(dir)?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// An empty directory in `parent`, of this name.
pub fn fresh_dir(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let dir = parent.join(name);
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

fn speed(bytes: u64, time: Duration) -> f64 {
    gigabytes(bytes) / time.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a measurement, not an account")]
fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "a measurement, not an account")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
