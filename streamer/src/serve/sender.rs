//! Gives files to pipes: small ones at once, larger ones each from a thread of its own.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Pieces, PipeOut, Step};
use crate::{
    error::{Error, Result},
    fault::Fault,
    format::FileName,
    progress::Progress,
    signals::Signals,
};

/// The most images that can be open and unread at once: one thread each.
const MAX_SENDERS: usize = 4096;
/// A sender calls nothing that needs much stack.
const STACK_BYTES: usize = 256 << 10;
/// How often the end looks whether senders are still moving.
const POLL: Duration = Duration::from_millis(5);

/// The threads that give files.
pub(super) struct Senders {
    fault: Arc<Fault>,
    progress: Progress,
    /// Bytes that all pipes together have taken.
    moved: Arc<AtomicU64>,
    running: Arc<AtomicUsize>,
    /// Those of them that must get to the end.
    external: Arc<AtomicUsize>,
}

/// Counts a thread for as long as it lives, panics included.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Senders {
    pub(super) fn new(fault: &Arc<Fault>, progress: &Progress) -> Self {
        Senders {
            fault: Arc::clone(fault),
            progress: progress.clone(),
            moved: Arc::default(),
            running: Arc::default(),
            external: Arc::default(),
        }
    }

    /// Gives a file to a client, which may close the pipe whenever it likes.
    pub(super) fn send(
        &self,
        name: FileName,
        mut pieces: Box<dyn Pieces>,
        pipe: OwnedFd,
    ) -> Result<()> {
        let size = pieces.size();
        let mut pipe = PipeOut::new(pipe, name.to_string(), size, Arc::clone(&self.moved));
        self.progress.image_opened(&name);
        if size <= pipe.capacity() / 2 && pipe.is_empty() {
            // An empty pipe takes it without waiting for the reader. Half, since a page in a pipe is
            // not always full.
            while !pipe.is_closed() && pieces.give(&mut pipe)? == Step::More {}
            self.progress.raw(pipe.written());
            return Ok(());
        }
        self.spawn(&name, &self.running, move |progress| {
            let mut before = 0;
            while !pipe.is_closed() && pieces.give(&mut pipe)? == Step::More {
                progress.raw(pipe.written() - before);
                before = pipe.written();
            }
            progress.raw(pipe.written() - before);
            Ok(())
        })
    }

    /// Gives a file to a pipe of the caller's; the reader must take all of it.
    pub(super) fn send_to_the_end(
        &self,
        name: FileName,
        mut pieces: Box<dyn Pieces>,
        pipe: OwnedFd,
    ) -> Result<()> {
        let mut pipe = PipeOut::new(pipe, name.to_string(), pieces.size(), Arc::clone(&self.moved));
        self.spawn(&name.clone(), &self.external, move |_| {
            while pieces.give(&mut pipe)? == Step::More && !pipe.is_closed() {}
            if pipe.is_closed() {
                let error = std::io::Error::from_raw_os_error(nix::libc::EPIPE);
                return Err(Error::io(|| format!("give {name} to its --ext-file-fds descriptor"))(
                    error,
                ));
            }
            Ok(())
        })
    }

    fn spawn(
        &self,
        name: &FileName,
        counter: &Arc<AtomicUsize>,
        send: impl FnOnce(&Progress) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        if counter.fetch_add(1, Ordering::AcqRel) >= MAX_SENDERS {
            counter.fetch_sub(1, Ordering::AcqRel);
            return Err(Error::Usage(format!(
                "CRIU has more than {MAX_SENDERS} images open and does not read them, {name} among them"
            )));
        }
        let counted = Counted(Arc::clone(counter));
        let (fault, progress) = (Arc::clone(&self.fault), self.progress.clone());
        std::thread::Builder::new()
            .name("serve".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let counted = counted;
                if let Err(error) = send(&progress) {
                    fault.raise(error);
                }
                drop(counted);
            })
            .map(drop)
            .map_err(Error::io(|| format!("start a thread to give {name}")))
    }

    /// All clients have gone. External files are waited for; images that a client left open only
    /// as long as somebody still reads them.
    pub(super) fn finish(&self, signals: &Signals, fault: &Fault, linger: Duration) -> Result<()> {
        let mut last = (self.moved.load(Ordering::Relaxed), Instant::now());
        loop {
            fault.check()?;
            signals.check()?;
            let moved = self.moved.load(Ordering::Relaxed);
            if moved != last.0 {
                last = (moved, Instant::now());
            }
            let images = self.running.load(Ordering::Acquire) > 0 && last.1.elapsed() < linger;
            if !images && self.external.load(Ordering::Acquire) == 0 {
                return fault.check();
            }
            std::thread::sleep(POLL);
        }
    }
}
