//! The streamer's end.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    stat::{SFlag, fstat},
};

use super::{
    HandoffError, Job, MOST_BOS, MOST_GPUS,
    link::{Buffer, Link},
    wire::{Answer, Head, HeadJob, Request, VERSION},
};
use crate::{
    device::{DeviceKind, Driver, records::Received},
    gpu::{Bo, Contents, Render},
};

const HANDING_OVER: &str = "it handed over GPU contents";
const COPYING: &str = "its GPU contents were copied";
const WHO: &str = "the CRIU plugin";

/// Descriptors that are needed beside those of BOs, for what is opened meanwhile.
const SPARE_DESCRIPTORS: u64 = 64;

/// A plugin that has connected. Its calls may come from several threads.
#[derive(Debug)]
pub struct Plugin {
    link: Link,
}

impl Plugin {
    /// Of a connection that was accepted.
    pub fn new(socket: OwnedFd) -> Result<Self, HandoffError> {
        Ok(Plugin { link: Link::new(socket, WHO)? })
    }

    /// Receives the job, and looks at the descriptors with the help of `driver`. `None` if the plugin
    /// closes the connection without a word: it has asked for nothing.
    pub fn receive(&self, driver: &dyn Driver) -> Result<Option<Job>, HandoffError> {
        let mut buffer = Buffer::new();
        let Some(head) = self.head(&mut buffer)? else { return Ok(None) };
        make_room(head.bos, head.gpus)?;
        self.next()?;
        let mut gpus: Vec<Contents> = Vec::new();
        let mut bos_left = head.bos;
        for _ in 0..head.gpus {
            let contents = self.gpu(&mut buffer, driver, &mut bos_left, head.bos)?;
            if gpus.iter().any(|gpu| gpu.gpu_id == contents.gpu_id) {
                return Err(self.wrong(format!("GPU {:#06x} comes twice", contents.gpu_id)));
            }
            gpus.push(contents);
        }
        if bos_left > 0 {
            return Err(self.wrong(format!("{bos_left} BOs were announced and did not come")));
        }
        let HeadJob { direction, kfd_id, cap_bytes, .. } = head;
        let cap_bytes = (cap_bytes > 0).then_some(cap_bytes);
        Ok(Some(Job { direction, kfd_id, cap_bytes, gpus }))
    }

    /// Every descriptor is here.
    pub fn accept(&self) -> Result<(), HandoffError> {
        self.answer(&Answer::Accepted)?;
        // From here on it has nothing to say, and may take its time.
        self.link.set_patience(Duration::ZERO)
    }

    /// All contents have been copied.
    pub fn done(&self) -> Result<(), HandoffError> {
        self.answer(&Answer::Done)
    }

    /// The contents will not be copied, and why. The plugin may be gone.
    pub fn fail(&self, reason: &str) {
        let _ = self.answer(&Answer::Failed(reason.to_owned()));
    }

    /// Whether the plugin still waits.
    pub fn check(&self) -> Result<(), HandoffError> {
        if !self.link.is_readable()? {
            return Ok(());
        }
        match self.link.receive(&mut Buffer::new(), COPYING)? {
            None => Err(self.link.gone(COPYING)),
            Some(_) => Err(self.wrong("a record after the last")),
        }
    }

    fn head(&self, buffer: &mut Buffer) -> Result<Option<HeadJob>, HandoffError> {
        let Some(received) = self.link.receive(buffer, HANDING_OVER)? else { return Ok(None) };
        let record = Request::decode(buffer.record(&received));
        let job = match record {
            Some(Request::Job(Head { version, job: None })) => {
                return Err(HandoffError::Version { theirs: version, ours: VERSION });
            }
            Some(Request::Job(Head { job: Some(job), .. })) if received.descriptors.is_empty() => {
                job
            }
            _ => return Err(self.wrong("a first record that is no job")),
        };
        if job.gpus > MOST_GPUS || job.bos > MOST_BOS {
            return Err(self.wrong(format!("{} GPUs with {} BOs", job.gpus, job.bos)));
        }
        Ok(Some(job))
    }

    fn gpu(
        &self,
        buffer: &mut Buffer,
        driver: &dyn Driver,
        bos_left: &mut u32,
        all_bos: u32,
    ) -> Result<Contents, HandoffError> {
        let received = self.following(buffer, all_bos)?;
        let Some(Request::Gpu { gpu_id, bos: count, path }) =
            Request::decode(buffer.record(&received))
        else {
            return Err(self.wrong("something else in the place of a GPU"));
        };
        *bos_left = bos_left
            .checked_sub(count)
            .ok_or_else(|| self.wrong("more BOs than were announced"))?;
        let node = self.render_node(received, driver, gpu_id, path)?;
        self.next()?;
        let mut bos = Vec::new();
        while bos.len() < count as usize {
            let received = self.following(buffer, all_bos)?;
            let Some(Request::Bos(sizes)) = Request::decode(buffer.record(&received)) else {
                return Err(self.wrong("something else in the place of BOs"));
            };
            if sizes.len() != received.descriptors.len() {
                let what =
                    format!("{} BOs, {} descriptors", sizes.len(), received.descriptors.len());
                return Err(self.wrong(what));
            }
            if sizes.len() > count as usize - bos.len() {
                return Err(self.wrong(format!("GPU {gpu_id:#06x} has more BOs than it said")));
            }
            for (size, dma_buf) in sizes.into_iter().zip(received.descriptors) {
                self.check_memory(&dma_buf, size, gpu_id)?;
                bos.push(Bo { size, dma_buf });
            }
            self.next()?;
        }
        Ok(Contents { gpu_id, node, bos })
    }

    fn render_node(
        &self,
        mut received: Received,
        driver: &dyn Driver,
        gpu_id: u32,
        path: PathBuf,
    ) -> Result<Render, HandoffError> {
        let (Some(file), None) = (received.descriptors.pop(), received.descriptors.pop()) else {
            return Err(self.wrong(format!("GPU {gpu_id:#06x} comes without its render node")));
        };
        match driver.identify(file.as_fd()) {
            Ok(Some(DeviceKind::Render { .. })) => Ok(Render::Open { path, file }),
            _ => Err(self.wrong(format!(
                "what came as the render node of GPU {gpu_id:#06x} ({}) is none",
                path.display()
            ))),
        }
    }

    /// A dma-buf looks like a file that has its size, and is of no kind that files can be.
    fn check_memory(&self, dma_buf: &OwnedFd, size: u64, gpu_id: u32) -> Result<(), HandoffError> {
        let fits = fstat(dma_buf).is_ok_and(|stat| {
            let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
            // A simulated one is a file.
            (kind.is_empty() || kind == SFlag::S_IFREG)
                && u64::try_from(stat.st_size).is_ok_and(|bytes| bytes >= size)
        });
        if fits {
            return Ok(());
        }
        Err(self.wrong(format!(
            "a descriptor that came for a BO of {size} bytes of GPU {gpu_id:#06x} is not of such memory"
        )))
    }

    /// A record that must come, with all its descriptors.
    fn following(&self, buffer: &mut Buffer, bos: u32) -> Result<Received, HandoffError> {
        let received = self.link.receive(buffer, HANDING_OVER)?;
        let received = received.ok_or_else(|| self.link.gone(HANDING_OVER))?;
        if received.truncated {
            return Err(no_room(bos));
        }
        Ok(received)
    }

    fn next(&self) -> Result<(), HandoffError> {
        self.answer(&Answer::Next)
    }

    fn answer(&self, answer: &Answer) -> Result<(), HandoffError> {
        self.link.send(&answer.encode(), &[], HANDING_OVER)
    }

    fn wrong(&self, what: impl Into<String>) -> HandoffError {
        self.link.protocol(what)
    }
}

/// Raises the soft limit on open files to the hard one if it must be, and looks whether that does.
fn make_room(bos: u32, gpus: u32) -> Result<(), HandoffError> {
    let needed = needed(bos) + u64::from(gpus);
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if soft >= needed {
        return Ok(());
    }
    if soft < hard {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
    let limit = limit();
    if limit >= needed { Ok(()) } else { Err(HandoffError::Limit { bos, limit, needed }) }
}

/// The limit should have been enough and was not: others have taken descriptors meanwhile.
fn no_room(bos: u32) -> HandoffError {
    let limit = limit();
    HandoffError::Limit { bos, limit, needed: limit.saturating_add(u64::from(bos)) }
}

fn limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft)
}

/// With what is open now.
fn needed(bos: u32) -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    u64::from(bos) + SPARE_DESCRIPTORS + u64::try_from(open).unwrap_or(u64::MAX / 2)
}
