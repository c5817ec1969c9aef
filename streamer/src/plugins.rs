//! Plugins that hand over GPU contents, and wait: a thread for each, from its connection to its
//! answer.
//!
//! What is done with a job is the business of a [`Mover`]. When a job has failed, its plugin is not
//! told at once: the one who decides about all of the command learns of it, and tells every plugin
//! the first cause, with [`Plugins::fail`].

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use vramstream::{
    device::Driver,
    handoff::{HandoffError, Job, Plugin, SOCKET},
};

use crate::{
    criu::Listener,
    error::{Error, Result},
};

/// The most plugins at once: a thread each. CRIU restores all processes at the same time.
const MOST_PLUGINS: usize = 1024;
/// How long a plugin whose job has failed waits for the first cause, if nobody tells it.
const UNTOLD: Duration = Duration::from_secs(5);
/// How long jobs may take to end after a failure.
const SETTLING: Duration = Duration::from_secs(4);

/// What is done with jobs.
pub(crate) trait Mover: Send + Sync + 'static {
    /// Accepts the job and moves the contents. Looks several times a second whether the plugin still
    /// waits.
    fn run(&self, job: Job, plugin: &Plugin) -> Result<()>;

    /// A job has failed: the one who decides is to be told.
    fn failed(&self, error: Error);
}

/// See the [module](self). Dropping it removes the socket; jobs go on.
pub(crate) struct Plugins {
    listener: Listener,
    shared: Arc<Shared>,
}

struct Shared {
    driver: Arc<dyn Driver>,
    state: Mutex<State>,
    changed: Condvar,
    /// Is written to when a job has ended.
    ended: EventFd,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Threads that have not ended.
    running: usize,
    /// Those that wait for an answer.
    waiting: HashMap<u64, Arc<Plugin>>,
    /// Why nobody gets another answer than this.
    failed: Option<String>,
}

impl Plugins {
    /// Listens in the images directory.
    pub(crate) fn bind(images_dir: &Path, driver: &Arc<dyn Driver>) -> Result<Self> {
        let ended = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(Error::io(|| "make an event descriptor"))?;
        let shared = Shared {
            driver: Arc::clone(driver),
            state: Mutex::default(),
            changed: Condvar::new(),
            ended,
        };
        let listener = Listener::bind_records(images_dir, SOCKET)?;
        Ok(Plugins { listener, shared: Arc::new(shared) })
    }

    /// Readable when a plugin comes.
    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Readable when a job has ended, until [`seen`](Self::seen).
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.shared.ended.as_fd()
    }

    /// Somebody has looked.
    pub(crate) fn seen(&self) {
        let _ = self.shared.ended.read();
    }

    /// Whether there are jobs that have not ended.
    pub(crate) fn are_busy(&self) -> bool {
        self.shared.state().running > 0
    }

    /// Takes those that have come.
    pub(crate) fn accept<M: Mover>(&self, mover: &Arc<M>) -> Result<()> {
        while let Some(stream) = self.listener.accept()? {
            // The protocol's own limits on time hold for it.
            stream.set_nonblocking(false).map_err(Error::io(|| "use a connection"))?;
            self.start(stream.into(), mover)?;
        }
        Ok(())
    }

    fn start<M: Mover>(&self, socket: OwnedFd, mover: &Arc<M>) -> Result<()> {
        let plugin = match Plugin::new(socket) {
            Ok(plugin) => Arc::new(plugin),
            // It is not spoken to.
            Err(HandoffError::Stranger { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut state = self.shared.state();
        if state.running >= MOST_PLUGINS {
            let reason =
                format!("more than {MOST_PLUGINS} processes hand over GPU contents at once");
            plugin.fail(&reason);
            return Err(Error::Usage(reason));
        }
        let number = state.next;
        state.next += 1;
        state.running += 1;
        state.waiting.insert(number, Arc::clone(&plugin));
        drop(state);
        let running =
            Running { shared: Arc::clone(&self.shared), mover: Arc::clone(mover), number };
        std::thread::Builder::new()
            .name("plugin".into())
            .spawn(move || running.run(&plugin))
            .map(drop)
            .map_err(Error::io(|| "start a thread for a plugin"))
    }

    /// Tells every plugin that waits that it does so in vain, and those that still come.
    pub(crate) fn fail(&self, reason: &str) {
        let mut state = self.shared.state();
        state.failed = Some(reason.to_owned());
        state.waiting.drain().for_each(|(_, plugin)| plugin.fail(reason));
        self.shared.changed.notify_all();
    }

    /// Waits, not for ever, until no job is at work any more. To be called after
    /// [`fail`](Self::fail).
    pub(crate) fn settle(self) {
        let deadline = Instant::now() + SETTLING;
        let mut state = self.shared.state();
        while state.running > 0
            && let Some(left) = deadline.checked_duration_since(Instant::now())
        {
            state = self.shared.wait(state, left);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // What is behind it is never half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, timeout: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A plugin's thread, for as long as it lives.
struct Running<M: Mover> {
    shared: Arc<Shared>,
    mover: Arc<M>,
    number: u64,
}

impl<M: Mover> Running<M> {
    fn run(self, plugin: &Plugin) {
        if let Err(error) = self.job(plugin) {
            let reason = error.report().to_string();
            self.mover.failed(error);
            self.tell(&reason);
        }
    }

    fn job(&self, plugin: &Plugin) -> Result<()> {
        let Some(job) = plugin.receive(&*self.shared.driver)? else { return Ok(()) };
        self.mover.run(job, plugin)?;
        // Only one answer is given.
        let answered = self.shared.state().waiting.remove(&self.number);
        match answered {
            Some(plugin) => Ok(plugin.done()?),
            None => Err(Error::GivenUp),
        }
    }

    /// Waits until the plugin has been told why, and tells it if nobody does.
    fn tell(&self, reason: &str) {
        let deadline = Instant::now() + UNTOLD;
        let mut state = self.shared.state();
        while state.waiting.contains_key(&self.number) && state.failed.is_none() {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { break };
            state = self.shared.wait(state, left);
        }
        if let Some(plugin) = state.waiting.remove(&self.number) {
            plugin.fail(state.failed.as_deref().unwrap_or(reason));
        }
    }
}

impl<M: Mover> Drop for Running<M> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.mover.failed(Error::Panicked("plugin".into()));
        }
        let mut state = self.shared.state();
        state.waiting.remove(&self.number);
        state.running -= 1;
        drop(state);
        self.shared.changed.notify_all();
        let _ = self.shared.ended.write(1);
    }
}
