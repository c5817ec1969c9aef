//! A running program.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read},
    os::{fd::OwnedFd, unix::process::ExitStatusExt},
    process::{Child, Command, ExitStatus},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::inherit;
use crate::deadline::{Deadline, STEP, timed_out};

/// How often the peak memory of the program is looked at. The kernel keeps the peak, so only what
/// grows in the last such moment before the end is missed.
const SAMPLE: Duration = Duration::from_millis(10);

/// A program that was started. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pidfd: OwnedFd,
    started: Instant,
    /// Our ends of the shard pipes, to be taken.
    pub shards: Vec<OwnedFd>,
    /// Our ends of the external files' pipes, to be taken.
    pub external: Vec<OwnedFd>,
    lines: Receiver<(Instant, String)>,
    stderr: Arc<Mutex<Vec<u8>>>,
    stderr_ended: Arc<AtomicBool>,
    peak: Arc<AtomicU64>,
    outcome: Option<Outcome>,
}

/// How a program ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to standard error.
    pub stderr: String,
    /// From start to exit.
    pub wall: Duration,
    /// Of all its threads, in user and kernel mode.
    pub cpu: Duration,
    /// The most memory it had resident, in bytes.
    pub peak_memory: u64,
}

impl Outcome {
    /// Whether it exited with status 0.
    pub fn success(&self) -> bool {
        self.status.success()
    }

    /// An error that shows everything, unless it exited with status 0.
    pub fn expect_success(&self) -> io::Result<()> {
        if self.success() {
            Ok(())
        } else {
            Err(io::Error::other(self.describe("did not succeed")))
        }
    }

    /// An error that shows everything, unless it failed in an orderly way: a status that is not 0
    /// and not that of a panic, no signal, and a message that has one of these words.
    pub fn expect_failure(&self, words: &[&str]) -> io::Result<()> {
        let text = self.stderr.to_lowercase();
        let named =
            words.is_empty() || words.iter().any(|word| text.contains(&word.to_lowercase()));
        let orderly = matches!(self.status.code(), Some(1..=100)) && !text.contains("panicked");
        if !orderly {
            return Err(io::Error::other(self.describe("did not fail in an orderly way")));
        }
        if text.trim().is_empty() || !named {
            return Err(io::Error::other(
                self.describe(&format!("does not name any of {words:?}")),
            ));
        }
        Ok(())
    }

    fn describe(&self, what: &str) -> String {
        let status = match self.status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => self.status.to_string(),
        };
        format!("the program {what}: {status} after {:?}, stderr:\n{}", self.wall, self.stderr)
    }
}

impl Running {
    /// Another program, whose standard error is a pipe or not of interest.
    pub fn of(command: &mut Command) -> io::Result<Self> {
        Self::new(inherit::spawn(command, Vec::new())?, None, Vec::new(), Vec::new())
    }

    pub(super) fn new(
        mut child: Child,
        progress: Option<OwnedFd>,
        shards: Vec<OwnedFd>,
        external: Vec<OwnedFd>,
    ) -> io::Result<Self> {
        let started = Instant::now();
        let (sender, lines) = channel();
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let stderr_ended = Arc::new(AtomicBool::new(false));
        let peak = Arc::new(AtomicU64::new(0));
        if let Some(pipe) = child.stderr.take() {
            let (stderr, ended) = (Arc::clone(&stderr), Arc::clone(&stderr_ended));
            let lines = progress.is_none().then(|| sender.clone());
            thread::spawn(move || {
                keep_stderr(BufReader::new(pipe), &stderr, lines.as_ref());
                ended.store(true, Ordering::Release);
            });
        }
        if let Some(progress) = progress {
            thread::spawn(move || send_lines(BufReader::new(File::from(progress)), &sender));
        }
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("a child without a process id"))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let sampled = Arc::clone(&peak);
        let status = format!("/proc/{}/status", child.id());
        thread::spawn(move || {
            // A process that has ended, waited for or not, has no such line.
            while let Some(bytes) = peak_memory(&status) {
                sampled.fetch_max(bytes, Ordering::Relaxed);
                thread::sleep(SAMPLE);
            }
        });
        let outcome = None;
        let running = Running {
            child,
            pidfd,
            started,
            shards,
            external,
            lines,
            stderr,
            stderr_ended,
            peak,
            outcome,
        };
        Ok(running)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// When it was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The next progress line: `None` once the program has closed its progress descriptor.
    pub fn line(&self) -> io::Result<Option<String>> {
        Ok(self.line_at(STEP)?.map(|(_, line)| line))
    }

    /// The same, with when it came and a time to wait for it.
    pub fn line_at(&self, timeout: Duration) -> io::Result<Option<(Instant, String)>> {
        match self.lines.recv_timeout(timeout) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                let stderr = self.stderr();
                Err(timed_out(&format!("a progress line; stderr so far:\n{stderr}")))
            }
        }
    }

    /// Reads progress until this line, and says when it came.
    pub fn wait_for(&self, wanted: &str) -> io::Result<Instant> {
        self.wait_for_within(wanted, STEP)
    }

    /// The same, with a time to wait for each line.
    pub fn wait_for_within(&self, wanted: &str, timeout: Duration) -> io::Result<Instant> {
        while let Some((at, line)) = self.line_at(timeout)? {
            if line == wanted {
                return Ok(at);
            }
        }
        // The cause is usually on its way.
        thread::sleep(Duration::from_millis(100));
        let stderr = self.stderr();
        Err(io::Error::other(format!("progress ended before {wanted:?}; stderr:\n{stderr}")))
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        let bytes = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its peak memory so far.
    pub fn peak_memory(&self) -> u64 {
        let now = peak_memory(&format!("/proc/{}/status", self.child.id())).unwrap_or(0);
        self.peak.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, signal)?)
    }

    /// Whether it still runs.
    pub fn alive(&mut self) -> io::Result<bool> {
        Ok(self.outcome.is_none() && Deadline::after(Duration::ZERO).readable(&self.pidfd).is_err())
    }

    /// Waits for its end; past the time it is killed, and that is an error.
    pub fn wait_within(&mut self, timeout: Duration) -> io::Result<Outcome> {
        if let Some(outcome) = &self.outcome {
            return Ok(outcome.clone());
        }
        let ended = Deadline::after(timeout).readable(&self.pidfd);
        let wall = self.started.elapsed();
        if ended.is_err() {
            self.child.kill()?;
        }
        let (status, cpu) = {
            // The kernel only gives the sum over all reaped children: nothing else is reaped now.
            let _guard = inherit::lock();
            let before = cpu_of_children()?;
            let status = self.child.wait()?;
            (status, cpu_of_children()?.saturating_sub(before))
        };
        // A descendant may hold standard error open; that is not worth a failure.
        let patience = Deadline::after(Duration::from_secs(2));
        while !self.stderr_ended.load(Ordering::Acquire) && !patience.passed() {
            thread::sleep(Duration::from_millis(1));
        }
        let stderr = self.stderr();
        let peak_memory = self.peak.load(Ordering::Relaxed);
        let outcome = Outcome { status, stderr, wall, cpu, peak_memory };
        if ended.is_err() {
            return Err(timed_out(&outcome.describe("did not end and was killed")));
        }
        self.outcome = Some(outcome.clone());
        Ok(outcome)
    }

    /// Waits for its end, a step's time at most.
    pub fn wait(&mut self) -> io::Result<Outcome> {
        self.wait_within(STEP)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            // It may have ended by itself; either way nothing is left to do about an error.
            let _ = self.child.kill();
            let _guard = inherit::lock();
            let _ = self.child.wait();
        }
    }
}

fn cpu_of_children() -> io::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok(duration(usage.user_time()) + duration(usage.system_time()))
}

fn duration(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
}

fn peak_memory(status: &str) -> Option<u64> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

fn send_lines(reader: impl BufRead, lines: &Sender<(Instant, String)>) {
    for line in reader.lines().map_while(Result::ok) {
        if lines.send((Instant::now(), line)).is_err() {
            return;
        }
    }
}

fn keep_stderr(
    mut reader: impl Read,
    kept: &Mutex<Vec<u8>>,
    lines: Option<&Sender<(Instant, String)>>,
) {
    let mut buffer = [0; 4096];
    let mut line = Vec::new();
    while let Ok(count @ 1..) = reader.read(&mut buffer) {
        let bytes = buffer.get(..count).unwrap_or_default();
        kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        let Some(lines) = lines else { continue };
        for &byte in bytes {
            if byte == b'\n' {
                let text = String::from_utf8_lossy(&line).into_owned();
                line.clear();
                // Nobody listens any more: the text is still kept.
                let _ = lines.send((Instant::now(), text));
            } else {
                line.push(byte);
            }
        }
    }
}
