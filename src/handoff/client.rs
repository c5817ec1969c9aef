//! The plugin's end.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::{
        socket::{
            AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket,
            sockopt::SendTimeout,
        },
        stat::Mode,
        time::{TimeVal, TimeValLike},
    },
    unistd::fchdir,
};

use super::{
    Direction, HandoffError, Job, MOST_BOS, MOST_GPUS, SOCKET,
    link::{Buffer, Link, PATIENCE, system},
    wire::{Answer, HeadJob, MOST_DESCRIPTORS, Request},
};
use crate::gpu::{Bo, Contents, Render};

const HANDING_OVER: &str = "GPU contents were handed over to it";
const COPYING: &str = "it copied GPU contents";
const WHO: &str = "the image streamer";

/// A streamer that listens.
#[derive(Debug)]
pub struct Streamer {
    link: Link,
}

/// A job that was handed over. Dropping it tells the streamer to give the job up.
#[derive(Debug)]
pub struct Pending {
    link: Link,
}

impl Streamer {
    /// Connects to the streamer that listens in a directory; `None` if none does.
    ///
    /// A path to the directory may mean something else where the caller is, and `/proc` may not be
    /// there. So it goes into the directory for a moment, and back: no other thread may use relative
    /// paths meanwhile.
    pub fn connect(images_dir: BorrowedFd<'_>) -> Result<Option<Self>, HandoffError> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(system("make a socket"))?;
        // Connecting waits while too many others do.
        let time = TimeVal::seconds(i64::try_from(PATIENCE.as_secs()).unwrap_or(0));
        setsockopt(&socket, SendTimeout, &time).map_err(system("set a time limit"))?;
        match within(images_dir, || connect_here(&socket))? {
            Ok(()) => Ok(Some(Streamer { link: Link::new(socket, WHO)? })),
            // Nobody has made it, or nobody is left who did.
            Err(Errno::ENOENT | Errno::ECONNREFUSED) => Ok(None),
            Err(Errno::EAGAIN) => Err(HandoffError::Silent {
                who: WHO,
                doing: "it was connected to",
                seconds: PATIENCE.as_secs(),
            }),
            Err(errno) => {
                Err(system("connect to vramstream-gpu.sock in the images directory")(errno))
            }
        }
    }

    /// Hands over. Returns when the streamer has every descriptor, before anything is copied; those of
    /// this process are closed.
    pub fn hand_over(self, job: Job) -> Result<Pending, HandoffError> {
        let Streamer { link } = self;
        let mut buffer = Buffer::new();
        let mut tell = |record: &[u8], descriptors: &[BorrowedFd<'_>]| {
            if let Err(error) = link.send(record, descriptors, HANDING_OVER) {
                // It may have said why before it went.
                return Err(last_words(&link, &mut buffer).unwrap_or(error));
            }
            expect(&link, &mut buffer, &Answer::Next, HANDING_OVER)
        };
        tell(&head(&job)?, &[])?;
        for Contents { gpu_id, node, bos } in job.gpus {
            let Render::Open { path, file } = node else {
                return Err(HandoffError::NotOpen { gpu_id });
            };
            tell(&Request::gpu(gpu_id, count(bos.len()), &path), &[file.as_fd()])?;
            drop(file);
            let mut bos = bos.into_iter();
            loop {
                // Closed when the streamer has them.
                let batch: Vec<Bo> = bos.by_ref().take(MOST_DESCRIPTORS).collect();
                if batch.is_empty() {
                    break;
                }
                let sizes: Vec<u64> = batch.iter().map(|bo| bo.size).collect();
                let fds: Vec<_> = batch.iter().map(|bo| bo.dma_buf.as_fd()).collect();
                tell(&Request::bos(&sizes), &fds)?;
            }
        }
        expect(&link, &mut buffer, &Answer::Accepted, HANDING_OVER)?;
        Ok(Pending { link })
    }
}

impl Pending {
    /// Waits until all contents have been copied: for as long as it takes, unless the streamer fails
    /// or dies.
    pub fn wait(self) -> Result<(), HandoffError> {
        self.link.set_patience(Duration::ZERO)?;
        expect(&self.link, &mut Buffer::new(), &Answer::Done, COPYING)
    }
}

impl AsFd for Pending {
    /// Readable when there is an answer: [`wait`](Pending::wait) will not wait then.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The first record, if there is not too much of anything.
fn head(job: &Job) -> Result<Vec<u8>, HandoffError> {
    let bos: usize = job.gpus.iter().map(|gpu| gpu.bos.len()).sum();
    let (gpus, bos) = (count(job.gpus.len()), count(bos));
    let too_many = |what| Err(HandoffError::TooMany { what });
    if gpus > MOST_GPUS {
        return too_many(format!("{gpus} GPUs"));
    }
    if bos > MOST_BOS {
        return too_many(format!("{bos} BOs"));
    }
    let direction: Direction = job.direction;
    let cap_bytes = job.cap_bytes.unwrap_or(0);
    Ok(Request::job(&HeadJob { direction, kfd_id: job.kfd_id, cap_bytes, gpus, bos }))
}

/// What cannot be counted is too many.
fn count(things: usize) -> u32 {
    u32::try_from(things).unwrap_or(u32::MAX)
}

/// Waits for this answer.
fn expect(
    link: &Link,
    buffer: &mut Buffer,
    wanted: &Answer,
    doing: &'static str,
) -> Result<(), HandoffError> {
    let Some(received) = link.receive(buffer, doing)? else {
        return Err(last_words(link, buffer).unwrap_or_else(|| link.gone(doing)));
    };
    match Answer::decode(buffer.record(&received)) {
        Some(answer) if answer == *wanted => Ok(()),
        Some(Answer::Failed(reason)) => Err(HandoffError::Failed(reason)),
        Some(answer) => Err(link.protocol(format!("{answer:?} in the place of {wanted:?}"))),
        None => Err(link.protocol("an answer that is none")),
    }
}

/// Why a streamer that has closed the connection did so, if it has said it. The kernel tells of the
/// end first where something that was sent was not read any more.
fn last_words(link: &Link, buffer: &mut Buffer) -> Option<HandoffError> {
    for _ in 0..3 {
        if !link.is_readable().ok()? {
            return None;
        }
        let Ok(Some(received)) = link.receive(buffer, HANDING_OVER) else { continue };
        if let Some(Answer::Failed(reason)) = Answer::decode(buffer.record(&received)) {
            return Some(HandoffError::Failed(reason));
        }
    }
    None
}

/// Does something with the directory as the current one, and goes back whatever came of it.
fn within<T>(dir: BorrowedFd<'_>, work: impl FnOnce() -> T) -> Result<T, HandoffError> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let back: OwnedFd =
        open(".", flags, Mode::empty()).map_err(system("open the current directory"))?;
    fchdir(dir).map_err(system("enter the images directory"))?;
    let done = work();
    fchdir(&back).map_err(system("go back from the images directory"))?;
    Ok(done)
}

fn connect_here(socket: &OwnedFd) -> nix::Result<()> {
    let address = UnixAddr::new(SOCKET)?;
    loop {
        match connect(socket.as_raw_fd(), &address) {
            Err(Errno::EINTR) => {}
            answer => return answer,
        }
    }
}
