//! The one thread that talks to CRIU, reads the pipes, and decides when the dump is over.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::event::Timespec;
use vramstream::device::Driver;

use super::{
    Intake,
    gate::Gates,
    gpus::{Dumps, SharedRoll},
    image::{OpenImage, Readable, Source},
};
use crate::{
    criu::{CAPTURE_SOCKET, Connection, Listener, Request},
    error::{Error, Result},
    format::FileName,
    limits,
    pack::{Feed, Totals},
    plugins::Plugins,
    poller::Poller,
    progress::Progress,
    signals::Signals,
    transport::pipe,
};

/// What to ask for CRIU's pipes. They hold references to the dumped process's pages, so a large one
/// costs no memory; past 1 MiB it takes a privilege, and past 4 MiB CRIU has trouble.
const CRIU_PIPE_BYTES: usize = 4 << 20;

/// How long a pipe may stay open without a byte after CRIU has gone: whoever holds it then is not
/// writing a dump.
const LINGER: Duration = Duration::from_secs(5);

/// How often the transports are asked whether they are well.
const HEALTH_CHECK: Duration = Duration::from_secs(1);

/// The first image of a dump that says that the process is frozen: cpuinfo.img comes before.
const BEFORE_THE_FREEZE: &str = "cpuinfo.img";

const SIGNALS: u64 = 0;
const LISTENER: u64 = 1;
const CONNECTION: u64 = 2;
const GATES: u64 = 3;
const ALARM: u64 = 4;
const PLUGINS: u64 = 5;
const JOBS: u64 = 6;
/// The event of image `n` is `FIRST_IMAGE + n`.
const FIRST_IMAGE: u64 = 16;

/// See the [module](self).
pub(super) struct Pump<'a> {
    poller: Poller,
    signals: &'a Signals,
    progress: &'a Progress,
    listener: Option<Listener>,
    criu: Criu,
    gates: Gates,
    roll: SharedRoll,
    plugins: Option<(Plugins, Arc<Dumps>)>,
    open: HashMap<u32, OpenImage>,
    /// When a byte, a request or the end of an image last came.
    last_sign_of_life: Instant,
    started: Option<Instant>,
    most_open: usize,
}

enum Criu {
    Awaited,
    Connected(Connection),
    /// Connected, but no request is taken until an image ends: there are no descriptors left.
    Paused(Connection),
    Gone,
}

impl<'a> Pump<'a> {
    /// Makes CRIU's socket, and the gate's.
    pub(super) fn bind(dir: &Path, signals: &'a Signals, progress: &'a Progress) -> Result<Self> {
        let listener = Listener::bind(dir, CAPTURE_SOCKET)?;
        let gates = Gates::bind(dir)?;
        let pump = Pump {
            poller: Poller::new()?,
            signals,
            progress,
            listener: Some(listener),
            criu: Criu::Awaited,
            gates,
            roll: SharedRoll::default(),
            plugins: None,
            open: HashMap::new(),
            last_sign_of_life: Instant::now(),
            started: None,
            most_open: limits::descriptors_for_images(),
        };
        pump.poller.add(pump.signals, SIGNALS)?;
        pump.poller.add(pump.gates.listener(), GATES)?;
        if let Some(listener) = &pump.listener {
            pump.poller.add(listener, LISTENER)?;
        }
        Ok(pump)
    }

    /// A file that somebody else writes.
    pub(super) fn add_external(&mut self, name: FileName, pipe: OwnedFd) -> Result<()> {
        self.add(name, Source::External, pipe)
    }

    /// Takes what plugins hand over: into `feed`, by `driver`.
    pub(super) fn take_jobs(
        &mut self,
        plugins: Plugins,
        feed: Feed,
        driver: &Arc<dyn Driver>,
    ) -> Result<()> {
        self.poller.add(plugins.listener(), PLUGINS)?;
        self.poller.add(plugins.ended(), JOBS)?;
        let dumps = Dumps::new(feed, &self.roll, driver, self.progress);
        self.plugins = Some((plugins, Arc::new(dumps)));
        Ok(())
    }

    /// Tells plugins that wait why they wait in vain. What is left of them is to be waited for when
    /// everything else has ended.
    pub(super) fn fail_jobs(&mut self, reason: &str) -> Option<Plugins> {
        let (plugins, _) = self.plugins.take()?;
        plugins.fail(reason);
        Some(plugins)
    }

    /// Takes no more jobs: the dump is over.
    pub(super) fn close_door(&mut self) {
        self.plugins = None;
    }

    /// When CRIU's dump began.
    pub(super) fn started(&self) -> Option<Instant> {
        self.started
    }

    /// Tells those who wait at the gate.
    pub(super) fn answer_gates(&mut self, outcome: Result<(), &str>) {
        // One may have come at the last moment.
        let _ = self.gates.accept();
        self.gates.answer(outcome);
    }

    /// Pumps until the dump is over: the totals if it is whole, the reason if it is not.
    pub(super) fn run(&mut self, intake: &mut dyn Intake) -> Result<Totals> {
        if let Some(alarm) = intake.alarm() {
            self.poller.add(alarm, ALARM)?;
        }
        let mut last_check = Instant::now();
        loop {
            if let Some(totals) = self.over()? {
                return Ok(totals);
            }
            for n in 0..self.poller.wait(HEALTH_CHECK)? {
                if let Some(event) = self.poller.ready(n) {
                    self.handle(event, intake)?;
                }
            }
            if last_check.elapsed() >= HEALTH_CHECK {
                last_check = Instant::now();
                intake.health()?;
            }
        }
    }

    fn handle(&mut self, event: u64, intake: &mut dyn Intake) -> Result<()> {
        match event {
            SIGNALS => self.signals.check(),
            LISTENER => self.accept(),
            CONNECTION => self.request(),
            GATES => self.gates.accept(),
            ALARM => intake.health(),
            PLUGINS => match &self.plugins {
                Some((plugins, dumps)) => plugins.accept(dumps),
                None => Ok(()),
            },
            JOBS => {
                if let Some((plugins, _)) = &self.plugins {
                    plugins.seen();
                }
                self.last_sign_of_life = Instant::now();
                Ok(())
            }
            image => {
                let file = u32::try_from(image - FIRST_IMAGE).unwrap_or(u32::MAX);
                self.readable(file, intake)
            }
        }
    }

    /// Whether the dump is over, and well.
    fn over(&mut self) -> Result<Option<Totals>> {
        let criu_done = match &self.criu {
            Criu::Gone => true,
            // At the gate CRIU has sent all requests, though they may not all have been read. A gate
            // that somebody opened too early waits.
            Criu::Connected(connection) => {
                self.gates.is_waited_for()
                    && self.roll.lock().inventory_whole()
                    && !readable_now(connection)
            }
            Criu::Awaited | Criu::Paused(_) => false,
        };
        let criu_images = || self.open.values().filter(|image| image.source == Source::Criu);
        if let Criu::Paused(_) = self.criu
            && self.last_sign_of_life.elapsed() > LINGER
        {
            return Err(Error::DumpIncomplete(format!(
                "CRIU holds {} images open at once and the limit on open files does not allow for more: raise ulimit -n",
                self.open.len()
            )));
        }
        if !criu_done {
            return Ok(None);
        }
        if criu_images().next().is_some() {
            if self.last_sign_of_life.elapsed() <= LINGER {
                return Ok(None);
            }
            let mut names: Vec<_> = criu_images().map(|image| image.name.to_string()).collect();
            names.sort_unstable();
            let more = if names.len() > 3 { " and others" } else { "" };
            names.truncate(3);
            return Err(Error::DumpIncomplete(format!(
                "CRIU has ended, and {}{more} did not: something holds the pipe open",
                names.join(", ")
            )));
        }
        if !self.roll.lock().inventory_whole() {
            return Err(Error::DumpIncomplete(
                "CRIU closed the connection before it wrote inventory.img: it failed or was killed, see its log".into(),
            ));
        }
        let busy = self.plugins.as_ref().is_some_and(|(plugins, _)| plugins.are_busy());
        Ok((self.open.is_empty() && !busy).then(|| self.roll.lock().totals()))
    }

    fn accept(&mut self) -> Result<()> {
        let Some(stream) = self.listener.as_ref().map(Listener::accept).transpose()?.flatten()
        else {
            return Ok(());
        };
        // CRIU connects once. A second one finds no socket, and fails.
        let socket = self.listener.take().map(|listener| listener.path().display().to_string());
        let connection = Connection::new(stream, socket.unwrap_or_default());
        self.poller.add(&connection, CONNECTION)?;
        self.criu = Criu::Connected(connection);
        self.last_sign_of_life = Instant::now();
        Ok(())
    }

    fn request(&mut self) -> Result<()> {
        let Criu::Connected(connection) = &mut self.criu else { return Ok(()) };
        match connection.receive()? {
            None => Ok(()),
            Some(Request::Name(name)) => {
                connection.expect_pipe();
                if name.as_str() != BEFORE_THE_FREEZE && self.started.is_none() {
                    self.started = Some(Instant::now());
                    self.progress.line("checkpoint-start");
                }
                Ok(())
            }
            Some(Request::Pipe(name, pipe)) => {
                pipe::grow(&pipe, CRIU_PIPE_BYTES);
                self.last_sign_of_life = Instant::now();
                self.add(name, Source::Criu, pipe)?;
                if self.open.len() >= self.most_open {
                    self.pause()?;
                }
                Ok(())
            }
            Some(Request::Closed) => {
                let connection = std::mem::replace(&mut self.criu, Criu::Gone);
                if let Criu::Connected(connection) = &connection {
                    self.poller.remove(connection)?;
                }
                self.last_sign_of_life = Instant::now();
                Ok(())
            }
        }
    }

    fn pause(&mut self) -> Result<()> {
        if let Criu::Connected(connection) = std::mem::replace(&mut self.criu, Criu::Gone) {
            self.poller.remove(&connection)?;
            self.criu = Criu::Paused(connection);
        }
        Ok(())
    }

    fn resume(&mut self) -> Result<()> {
        if let Criu::Paused(connection) = std::mem::replace(&mut self.criu, Criu::Gone) {
            self.poller.add(&connection, CONNECTION)?;
            self.criu = Criu::Connected(connection);
        }
        Ok(())
    }

    fn add(&mut self, name: FileName, source: Source, pipe: OwnedFd) -> Result<()> {
        let file = self.roll.lock().begin(&name, source)?;
        let image = OpenImage::new(file, name, source, pipe);
        self.poller.add(&image.pipe, FIRST_IMAGE + u64::from(image.file)).map_err(|error| {
            match error {
                // Of all descriptors only a plain file, which is always readable, cannot be watched.
                Error::Io { source, .. } if source.raw_os_error() == Some(nix::libc::EPERM) => {
                    Error::Usage(format!("{} is not a pipe, FIFO or socket", image.name))
                }
                error => error,
            }
        })?;
        self.progress.image_opened(&image.name);
        self.open.insert(image.file, image);
        Ok(())
    }

    fn readable(&mut self, file: u32, intake: &mut dyn Intake) -> Result<()> {
        let Some(image) = self.open.get_mut(&file) else { return Ok(()) };
        let before = image.taken;
        let end = intake.readable(image)? == Readable::End;
        self.progress.raw(image.taken - before);
        // After, not before: taking it may have waited for a slow shard.
        self.last_sign_of_life = Instant::now();
        if end && let Some(image) = self.open.remove(&file) {
            self.poller.remove(&image.pipe)?;
            let mut roll = self.roll.lock();
            roll.end(&image.name, image.file, image.taken)?;
            if let Some(inventory) = &image.inventory {
                roll.inventory(inventory);
            }
            drop(roll);
            if matches!(self.criu, Criu::Paused(_)) {
                self.resume()?;
            }
        }
        Ok(())
    }
}

fn readable_now(connection: &Connection) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
}
