//! What all runs of a scenario share: the application that is dumped, the ring, and for restores an
//! image of it.

use std::{collections::HashSet, path::Path, time::Duration};

use tempfile::TempDir;
use vramstream::{
    device::sim::Fill,
    gpu::{self, Contents},
    ring::Ring,
};

use super::{
    measure::{Meter, Sample},
    places::{self, FarEnd, MemoryImage, ThrottledOrigin},
    replay,
    scenario::{Direction, Scenario, Sink},
};
use crate::{
    error::{Error, Result},
    progress::Progress,
    rig::{Source, State, Target},
    signals::Signals,
    transport::{Destination, Origin, null::NullDestination},
    vram::{self, Moved},
};

/// How often a wait looks up whether there is still a reason to wait.
pub(super) const LOOK_UP: Duration = Duration::from_millis(50);
/// For the indexes of the shards.
const INDEX_BYTES: usize = 64 << 20;
/// What is in memory before something is restored into it: nothing that a scenario has.
const BEFORE: Fill = Fill::Offsets;

/// See the [module](self).
pub(super) struct Lab<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) ring: Ring,
    source: Source,
    signals: &'a Signals,
    image: Option<Image>,
}

enum Image {
    Memory(MemoryImage),
    Files(TempDir),
}

impl<'a> Lab<'a> {
    pub(super) fn start(scenario: &'a Scenario, signals: &'a Signals) -> Result<Self> {
        scenario.check_memory()?;
        let ring = scenario.make_ring()?;
        // First, so that a directory that cannot be used is found out at once.
        let scratch = places::scratch(&scenario.sink)?;
        let fill = |bo| scenario.contents.fill(bo);
        let source = Source::start(scenario.machine(), &scenario.plan(), fill)?;
        let mut lab = Lab { scenario, ring, source, signals, image: None };
        let reads = match scenario.direction {
            Direction::Dump => false,
            Direction::Restore => true,
            // To see what reading it costs.
            Direction::Both => matches!(scenario.sink, Sink::Files(_)),
        };
        if reads {
            lab.image = Some(lab.capture(scratch)?);
        }
        Ok(lab)
    }

    fn capture(&self, scratch: Option<TempDir>) -> Result<Image> {
        let image = match scratch {
            Some(dir) => Image::Files(dir),
            None => Image::Memory(MemoryImage::new(self.scenario.shards)?),
        };
        let destination = match &image {
            Image::Memory(memory) => memory.destination()?,
            Image::Files(dir) => places::files(self.scenario, dir.path()),
        };
        self.stopped(|_, contents| self.move_out(contents, destination))?;
        Ok(image)
    }

    /// The image's shards, as they are stored.
    pub(super) fn stored(&self) -> Result<Option<Box<dyn Origin>>> {
        match &self.image {
            Some(Image::Memory(memory)) => Ok(Some(memory.origin()?)),
            Some(Image::Files(dir)) => Ok(Some(places::files_origin(dir.path()))),
            None => Ok(None),
        }
    }

    /// The image by the scenario's way, with the other end of that.
    pub(super) fn origin(&self) -> Result<(Box<dyn Origin>, FarEnd)> {
        let mut stored = self.stored()?.ok_or(Error::Empty)?;
        let scenario = self.scenario;
        if !matches!(scenario.sink, Sink::Pipe | Sink::Tcp) {
            return Ok((ThrottledOrigin::wrap(scenario, stored), FarEnd::nobody()));
        }
        let (destination, origin) = places::link(scenario)?;
        let destination = places::throttled(scenario, destination);
        let feed = places::spawn(move || replay::replay(stored.as_mut(), destination))?;
        Ok((origin, FarEnd::of(feed)))
    }

    /// Stops the application for as long as something is done with its contents.
    pub(super) fn stopped<T>(
        &self,
        work: impl FnOnce(&State, Vec<Contents>) -> Result<T>,
    ) -> Result<T> {
        let paused = self.source.pause()?;
        let (state, contents) = self.source.divide(paused.checkpoint()?)?;
        let done = work(&state, contents)?;
        paused.unpause()?;
        Ok(done)
    }

    /// The same for what a dump alone is of: the scenario's memory, without what the simulated
    /// runtime has besides.
    pub(super) fn dumped<T>(&self, work: impl FnOnce(Vec<Contents>) -> Result<T>) -> Result<T> {
        let paused = self.source.pause()?;
        let mut checkpoint = paused.checkpoint()?;
        if self.scenario.direction == Direction::Dump {
            let planned = self.source.application().bos().iter().map(|bo| bo.va);
            let planned: HashSet<u64> = planned.collect();
            checkpoint.bos.retain(|bo| planned.contains(&bo.bucket.addr));
        }
        let done = work(self.source.divide(checkpoint)?.1)?;
        paused.unpause()?;
        Ok(done)
    }

    /// A run that does not count.
    pub(super) fn warm_up(&self) -> Result<()> {
        let destination = Box::new(NullDestination::new(self.scenario.shards));
        self.dumped(|contents| self.move_out(contents, destination)).map(|_| ())
    }

    /// Another machine with the application on it, but not its contents.
    pub(super) fn target(&self, state: &State) -> Result<(Target, Vec<Contents>)> {
        let machine = self.scenario.machine().moved(200, 0x40);
        let (target, contents) = Target::start(machine, state)?;
        // Memory that was never written costs more to write, which real VRAM does not; and what was
        // there before must not look like what is to come.
        target.fill(BEFORE)?;
        Ok((target, contents))
    }

    /// One run.
    pub(super) fn run(&self) -> Result<Sample> {
        match self.scenario.direction {
            Direction::Dump => self.dump(),
            Direction::Restore => self.restore(),
            Direction::Both => self.both(),
        }
    }

    fn dump(&self) -> Result<Sample> {
        let scratch = places::scratch(&self.scenario.sink)?;
        let (destination, far) =
            places::one_way(self.scenario, scratch.as_ref().map(TempDir::path))?;
        self.dumped(|contents| {
            let meter = Meter::start()?;
            let moved = self.move_out(contents, destination)?;
            far.join()?;
            finish(meter, moved)
        })
    }

    fn restore(&self) -> Result<Sample> {
        let (target, places) = self.stopped(|state, _| self.target(state))?;
        let (mut origin, far) = self.origin()?;
        let meter = Meter::start()?;
        let moved = self.move_in(&target, places, origin.as_mut())?;
        far.join()?;
        let sample = finish(meter, moved)?;
        self.verify(&target)?;
        Ok(sample)
    }

    fn both(&self) -> Result<Sample> {
        self.stopped(|state, contents| {
            let (target, places) = self.target(state)?;
            let scratch = places::scratch(&self.scenario.sink)?;
            let (meter, moved) = match &scratch {
                Some(dir) => self.through_files(dir.path(), contents, &target, places)?,
                None => self.through_link(contents, &target, places)?,
            };
            let sample = finish(meter, moved)?;
            self.verify(&target)?;
            Ok(sample)
        })
    }

    fn through_files(
        &self,
        dir: &Path,
        contents: Vec<Contents>,
        target: &Target,
        places: Vec<Contents>,
    ) -> Result<(Meter, Moved)> {
        let scenario = self.scenario;
        let destination = places::throttled(scenario, places::files(scenario, dir));
        let meter = Meter::start()?;
        let mut moved = self.move_out(contents, destination)?;
        let mut origin = ThrottledOrigin::wrap(scenario, places::files_origin(dir));
        moved.gpus.extend(self.move_in(target, places, origin.as_mut())?.gpus);
        Ok((meter, moved))
    }

    fn through_link(
        &self,
        contents: Vec<Contents>,
        target: &Target,
        places: Vec<Contents>,
    ) -> Result<(Meter, Moved)> {
        let (destination, mut origin) = places::link(self.scenario)?;
        let destination = places::throttled(self.scenario, destination);
        // The two sides are two hosts, each with a ring.
        let there = self.scenario.make_ring()?;
        let meter = Meter::start()?;
        let moved = std::thread::scope(|scope| {
            let sender = scope.spawn(|| self.move_out(contents, destination));
            let received = self.move_in_by(there, target, places, origin.as_mut());
            let sent = sender.join().unwrap_or_else(|_| Err(Error::Panicked("sender".into())));
            // If both failed, the one who knows the devices of the source says more.
            received.and_then(|received| {
                let mut sent = sent?;
                sent.gpus.extend(received.gpus);
                Ok(sent)
            })
        });
        Ok((meter, moved?))
    }

    fn verify(&self, target: &Target) -> Result<()> {
        target.resume()?;
        if self.scenario.verify {
            target.compare(&self.source)?;
        }
        Ok(())
    }

    fn move_out(
        &self,
        contents: Vec<Contents>,
        destination: Box<dyn Destination>,
    ) -> Result<Moved> {
        let silent = Progress::silent();
        let options = self.options(self.ring.clone());
        vram::dump(&self.source.driver(), contents, destination, &options, self.check(), &silent)
    }

    fn move_in(
        &self,
        target: &Target,
        places: Vec<Contents>,
        origin: &mut dyn Origin,
    ) -> Result<Moved> {
        self.move_in_by(self.ring.clone(), target, places, origin)
    }

    fn move_in_by(
        &self,
        ring: Ring,
        target: &Target,
        places: Vec<Contents>,
        origin: &mut dyn Origin,
    ) -> Result<Moved> {
        let silent = Progress::silent();
        let options = self.options(ring);
        vram::restore(&target.driver(), places, origin, &options, self.check(), &silent)
    }

    fn options(&self, ring: Ring) -> vram::Options {
        vram::Options {
            ring,
            id: 1,
            compression: self.scenario.compression,
            index_bytes: INDEX_BYTES,
            gpu: gpu::Options::default(),
        }
    }

    /// Whether to go on.
    pub(super) fn check(&self) -> impl Fn() -> Result<()> + Clone + Send + Sync + 'static {
        let signals = self.signals.clone();
        move || signals.check()
    }

    /// Whose calls copy the contents of the application.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }
}

fn finish(meter: Meter, moved: Moved) -> Result<Sample> {
    let bytes = moved.gpus.iter().map(|gpu| gpu.bytes).sum::<u64>();
    let mut sample = meter.end(bytes)?;
    sample.stored_bytes = moved.shards.iter().map(|shard| shard.bytes).sum();
    sample.gpus = moved.gpus.into_iter().map(Into::into).collect();
    Ok(sample)
}
