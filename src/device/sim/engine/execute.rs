//! One engine: takes jobs and executes their packets.

use std::{
    fmt,
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering},
    time::Instant,
};

use nix::errno::Errno;

use super::{
    Engines, Job,
    packets::{self, Packet, Unknown},
    transfer,
};
use crate::{
    abi::amdgpu::{create, va_flag},
    device::sim::{object::Object, vm::Vm},
};

/// The most bytes that are copied between two looks at the link, and at whether to go on.
const SLICE: u64 = 1 << 20;
/// The same where nothing has to be waited for.
const UNLIMITED_SLICE: u64 = 8 << 20;

/// An engine's thread.
pub(super) struct Engine {
    engines: Arc<Engines>,
    index: usize,
    /// Until when this engine has reserved the link.
    reserved: Instant,
    /// The indirect buffer at work.
    buffer: Vec<u8>,
}

/// Why a job ended early.
enum Stop {
    /// It is nobody's fault.
    Cancelled,
    /// What the caller did wrong.
    Fault(String),
}

/// What a packet does with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// A stretch of an object.
struct Stretch {
    object: Arc<Object>,
    offset: u64,
    len: u64,
}

impl Engine {
    pub(super) fn new(engines: Arc<Engines>, index: usize) -> Self {
        Engine { engines, index, reserved: Instant::now(), buffer: Vec::new() }
    }

    pub(super) fn run(mut self) {
        let engines = Arc::clone(&self.engines);
        while let Some(job) = engines.next(self.index) {
            let ending = match self.execute(&job) {
                Ok(()) => Ok(()),
                Err(stop) => {
                    if let Stop::Fault(what) = stop {
                        job.context.guilty.store(true, Ordering::Release);
                        engines.log.complain(job.pid, format!("{job} on {}: {what}", engines.node));
                    }
                    Err(Errno::ECANCELED)
                }
            };
            engines.finish(self.index, job, ending);
        }
    }

    fn execute(&mut self, job: &Job) -> Result<(), Stop> {
        let engines = Arc::clone(&self.engines);
        if let Some(entry) = engines.faults.hang(engines.gpu, job.pid) {
            engines.hang(job, &entry);
        }
        self.look(job)?;
        let ready = job.submitted + engines.link.latency();
        // What it waited for ended some time since.
        let ready = if job.dependencies.is_empty() { ready } else { ready.max(Instant::now()) };
        self.reserved = self.reserved.max(ready);
        if !engines.link.latency().is_zero() {
            self.sleep(job)?;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        for &(va, len) in &job.buffers {
            read(job, va, len, &mut buffer).map_err(Stop::Fault)?;
            let (words, _) = buffer.as_chunks();
            let mut at = 0;
            while at < words.len() {
                let (packet, after) = packets::next(words, at, engines.dialect)
                    .map_err(|unknown| Stop::Fault(format!("the buffer at {va:#x}, {unknown}")))?;
                self.packet(job, packet)?;
                at = after;
            }
        }
        self.buffer = buffer;
        if let Some(entry) = engines.faults.lost_fence(engines.gpu, job.pid) {
            engines.hang(job, &entry);
            self.look(job)?;
        }
        Ok(())
    }

    fn packet(&mut self, job: &Job, packet: Packet<'_>) -> Result<(), Stop> {
        match packet {
            Packet::Idle | Packet::Trap { .. } => Ok(()),
            Packet::Copy { from, to, len } => self.copy(job, from, to, len),
            Packet::Fill { to, len, value, unit } => self.fill(job, to, len, &value[..unit]),
            Packet::Write { to, words } => {
                let mut at = to;
                for word in words {
                    self.fill(job, at, 4, word)?;
                    at = at.wrapping_add(4);
                }
                Ok(())
            }
            Packet::Poll { .. } | Packet::Add { .. } | Packet::Timestamp { .. } => {
                Err(Stop::Fault(format!("{packet:?} is for user queues only")))
            }
        }
    }

    fn copy(&mut self, job: &Job, from: u64, to: u64, len: u64) -> Result<(), Stop> {
        let slice = self.slice();
        let mut done = 0;
        while done < len {
            let most = (len - done).min(slice);
            let fault = |fault: String| {
                Stop::Fault(format!("copying {len} bytes from {from:#x} to {to:#x}: {fault}"))
            };
            // The lock is held to look both up, not while bytes are copied.
            let (source, target) = {
                let vm = vm(job);
                let source = stretch(job, &vm, from.wrapping_add(done), Access::Read);
                let target = stretch(job, &vm, to.wrapping_add(done), Access::Write);
                (source.map_err(fault)?, target.map_err(fault)?)
            };
            let piece = most.min(source.len).min(target.len);
            self.reserve(piece);
            transfer::copy(&source.object, source.offset, &target.object, target.offset, piece)
                .map_err(|errno| fault(errno.to_string()))?;
            self.engines.traffic.copied(&source.object, &target.object, piece);
            self.wait(job)?;
            done += piece;
        }
        Ok(())
    }

    fn fill(&mut self, job: &Job, to: u64, len: u64, pattern: &[u8]) -> Result<(), Stop> {
        let slice = self.slice();
        let mut done = 0;
        while done < len {
            let fault =
                |fault: String| Stop::Fault(format!("filling {len} bytes at {to:#x}: {fault}"));
            let target = stretch(job, &vm(job), to.wrapping_add(done), Access::Write);
            let target = target.map_err(fault)?;
            let piece = (len - done).min(slice).min(target.len);
            self.reserve(piece);
            transfer::fill(&target.object, target.offset, piece, pattern)
                .map_err(|errno| fault(errno.to_string()))?;
            self.engines.traffic.filled(piece);
            self.wait(job)?;
            done += piece;
        }
        Ok(())
    }

    fn slice(&self) -> u64 {
        if self.engines.link.is_unlimited() { UNLIMITED_SLICE } else { SLICE }
    }

    fn reserve(&mut self, bytes: u64) {
        if !self.engines.link.is_unlimited() {
            self.reserved = self.engines.link.reserve(self.reserved, bytes);
        }
    }

    fn wait(&self, job: &Job) -> Result<(), Stop> {
        if self.engines.link.is_unlimited() { self.look(job) } else { self.sleep(job) }
    }

    /// Sleeps until the stretch of the link that is reserved is over.
    fn sleep(&self, job: &Job) -> Result<(), Stop> {
        loop {
            self.look(job)?;
            let left = self.reserved.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(10 * super::LOOK));
        }
    }

    /// Whether to go on.
    fn look(&self, job: &Job) -> Result<(), Stop> {
        let engines = &self.engines;
        let guilty = job.context.guilty.load(Ordering::Acquire);
        if guilty || engines.is_over(job) || engines.faults.vanished(engines.gpu) {
            return Err(Stop::Cancelled);
        }
        Ok(())
    }
}

fn vm(job: &Job) -> MutexGuard<'_, Vm> {
    job.vm.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is at an address, if the job may do this with it.
fn stretch(job: &Job, vm: &Vm, va: u64, access: Access) -> Result<Stretch, String> {
    let Some((mapped, offset)) = vm.lookup(va) else {
        return Err(format!("nothing is mapped at {va:#x}"));
    };
    // Memory of KFD has no handle: KFD keeps it where it is.
    if mapped.handle != 0 {
        let flag = match access {
            Access::Read => va_flag::READABLE,
            Access::Write => va_flag::WRITEABLE,
        };
        if mapped.flags & u64::from(flag) == 0 {
            return Err(format!("{va:#x} is not mapped for this access ({access:?})"));
        }
        let always = mapped.object.create.domain_flags & create::VM_ALWAYS_VALID != 0;
        if !always && !job.lists(&mapped.object) {
            let handle = mapped.handle;
            return Err(format!(
                "the object with handle {handle} at {va:#x} is not in the list of the submission"
            ));
        }
    }
    Ok(Stretch {
        object: Arc::clone(&mapped.object),
        offset: mapped.offset + offset,
        len: mapped.len - offset,
    })
}

/// Reads an indirect buffer.
pub(super) fn read(job: &Job, va: u64, len: u64, buffer: &mut Vec<u8>) -> Result<(), String> {
    let fault = |why: String| format!("reading the buffer of {len} bytes at {va:#x}: {why}");
    buffer.resize(usize::try_from(len).map_err(|_| fault("too long".into()))?, 0);
    let mut done = 0;
    while done < buffer.len() {
        let at = va.wrapping_add(done as u64);
        let stretch = stretch(job, &vm(job), at, Access::Read).map_err(fault)?;
        let left = buffer.len() - done;
        let piece = usize::try_from(stretch.len).map_or(left, |len| len.min(left));
        let bytes = &mut buffer[done..done + piece];
        let read = stretch.object.copy_to(stretch.offset, bytes);
        read.map_err(|errno| fault(errno.to_string()))?;
        done += piece;
    }
    Ok(())
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the packet at word {}: {}", self.word, self.why)
    }
}
