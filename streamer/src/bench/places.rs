//! Where a scenario's image goes to and comes from.

use std::{
    fs::File,
    io::{self, Read, Seek},
    os::fd::OwnedFd,
    path::Path,
    thread::JoinHandle,
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    pipe::{PipeFlags, pipe_with},
};
use tempfile::TempDir;

use super::scenario::{Scenario, Sink};
use crate::{
    error::{Error, Result},
    transport::{
        Destination, Origin, ShardReader,
        file::{FileDestination, FileIo, FileOrigin},
        null::NullDestination,
        pipe::{PipeDestination, PipeOrigin},
        tcp::{TcpDestination, TcpOrigin, Timeouts},
        throttle::{Rate, ThrottledDestination},
    },
};

/// How much is read at a time of what nobody keeps.
const DISCARD_BYTES: usize = 1 << 20;

/// The other end of a dump alone: it takes everything and keeps nothing.
pub(super) struct FarEnd(Vec<JoinHandle<Result<u64>>>);

impl FarEnd {
    /// There is none.
    pub(super) fn nobody() -> Self {
        FarEnd(Vec::new())
    }

    /// This thread.
    pub(super) fn of(thread: JoinHandle<Result<u64>>) -> Self {
        FarEnd(vec![thread])
    }

    /// Waits until it has taken everything, or given everything: how many bytes.
    pub(super) fn join(self) -> Result<u64> {
        let ended = self
            .0
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::Panicked("far end".into()))));
        ended.sum()
    }
}

/// Where a dump goes whose image nobody reads; files go into a directory in `dir`.
pub(super) fn one_way(
    scenario: &Scenario,
    dir: Option<&Path>,
) -> Result<(Box<dyn Destination>, FarEnd)> {
    let (destination, far): (Box<dyn Destination>, _) = match (&scenario.sink, dir) {
        (Sink::Null | Sink::Files(_), None) | (Sink::Null, _) => {
            (Box::new(NullDestination::new(scenario.shards)), FarEnd::nobody())
        }
        (Sink::Files(_), Some(dir)) => (files(scenario, dir), FarEnd::nobody()),
        (Sink::Pipe | Sink::Tcp, _) => {
            let (destination, origin) = link(scenario)?;
            (destination, discard_all(origin)?)
        }
    };
    Ok((throttled(scenario, destination), far))
}

/// Both ends of a sink that passes everything on: pipes, or connections.
pub(super) fn link(scenario: &Scenario) -> Result<(Box<dyn Destination>, Box<dyn Origin>)> {
    if scenario.sink == Sink::Tcp {
        let times = Timeouts::default();
        let origin = TcpOrigin::bind("127.0.0.1:0", times)?;
        let address = origin.local_addr().to_string();
        let destination = TcpDestination::new(&address, scenario.shards, times)?;
        return Ok((Box::new(destination), Box::new(origin)));
    }
    let (mut read, mut write) = (Vec::new(), Vec::new());
    for shard in 0..scenario.shards {
        let ends = pipe_with(PipeFlags::CLOEXEC).map_err(Error::io(|| "make a pipe"))?;
        read.push((format!("pipe {shard}"), ends.0));
        write.push((format!("pipe {shard}"), ends.1));
    }
    Ok((Box::new(PipeDestination::new(write)), Box::new(PipeOrigin::new(read))))
}

/// Files in a directory.
pub(super) fn files(scenario: &Scenario, dir: &Path) -> Box<dyn Destination> {
    let io = FileIo { direct: scenario.direct, ..FileIo::default() };
    Box::new(FileDestination::new(dir.join("image"), scenario.shards, io))
}

/// Where [`files`] went.
pub(super) fn files_origin(dir: &Path) -> Box<dyn Origin> {
    Box::new(FileOrigin::new(dir.join("image")))
}

/// A directory for images in the one that was given; it goes with everything in it.
pub(super) fn scratch(sink: &Sink) -> Result<Option<TempDir>> {
    let Sink::Files(dir) = sink else { return Ok(None) };
    let made = tempfile::Builder::new().prefix("vramstream-bench-").tempdir_in(dir);
    made.map(Some).map_err(Error::io(|| format!("make a directory in {}", dir.display())))
}

/// The same with the scenario's rate.
pub(super) fn throttled(
    scenario: &Scenario,
    destination: Box<dyn Destination>,
) -> Box<dyn Destination> {
    match scenario.sink_rate {
        None => destination,
        Some(rate) => Box::new(ThrottledDestination::new(destination, Rate::new(rate))),
    }
}

/// An image in memory.
pub(super) struct MemoryImage(Vec<File>);

impl MemoryImage {
    pub(super) fn new(shards: u32) -> Result<Self> {
        let failed = || "make a file in memory";
        let files = (0..shards).map(|_| {
            let fd = memfd_create("vramstream-bench", MemfdFlags::CLOEXEC);
            fd.map(File::from).map_err(Error::io(failed))
        });
        Ok(MemoryImage(files.collect::<Result<_>>()?))
    }

    pub(super) fn destination(&self) -> Result<Box<dyn Destination>> {
        Ok(Box::new(PipeDestination::new(self.descriptors()?)))
    }

    /// Only one at a time: they share their places in the files.
    pub(super) fn origin(&self) -> Result<Box<dyn Origin>> {
        Ok(Box::new(PipeOrigin::new(self.descriptors()?)))
    }

    fn descriptors(&self) -> Result<Vec<(String, OwnedFd)>> {
        let failed = || "read a file in memory";
        let descriptors = self.0.iter().zip(0..).map(|(mut file, shard): (&File, u32)| {
            file.rewind().map_err(Error::io(failed))?;
            let fd = file.try_clone().map_err(Error::io(failed))?;
            Ok((format!("shard {shard} in memory"), fd.into()))
        });
        descriptors.collect()
    }
}

/// Another origin whose shards give no more than so many bytes in a second, all together.
pub(super) struct ThrottledOrigin {
    inner: Box<dyn Origin>,
    rate: Rate,
}

impl ThrottledOrigin {
    /// With the scenario's rate, if it has one.
    pub(super) fn wrap(scenario: &Scenario, inner: Box<dyn Origin>) -> Box<dyn Origin> {
        match scenario.sink_rate {
            None => inner,
            Some(rate) => Box::new(ThrottledOrigin { inner, rate: Rate::new(rate) }),
        }
    }
}

impl Origin for ThrottledOrigin {
    fn open(&mut self) -> Result<Vec<Box<dyn ShardReader>>> {
        let throttled = |inner| Box::new(ThrottledReader { inner, rate: self.rate.clone() }) as _;
        Ok(self.inner.open()?.into_iter().map(throttled).collect())
    }

    fn committed(&mut self, files: u32, raw_bytes: u64) -> Result<()> {
        self.inner.committed(files, raw_bytes)
    }

    fn failed(&mut self, reason: &str) {
        self.inner.failed(reason);
    }

    fn explain(&mut self, error: Error) -> Error {
        self.inner.explain(error)
    }
}

struct ThrottledReader {
    inner: Box<dyn ShardReader>,
    rate: Rate,
}

impl Read for ThrottledReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buf)?;
        self.rate.pass(read as u64);
        Ok(read)
    }
}

impl ShardReader for ThrottledReader {
    fn describe(&self) -> &str {
        self.inner.describe()
    }
}

/// Reads all shards to their ends.
pub(super) fn discard_all(mut origin: Box<dyn Origin>) -> Result<FarEnd> {
    let thread = spawn(move || {
        let readers = origin.open()?;
        let threads: Vec<_> = readers
            .into_iter()
            .map(|reader| spawn(move || discard(reader)))
            .collect::<Result<_>>()?;
        let bytes = FarEnd(threads).join()?;
        origin.committed(0, 0)?;
        Ok(bytes)
    })?;
    Ok(FarEnd::of(thread))
}

fn discard(mut reader: Box<dyn ShardReader>) -> Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; DISCARD_BYTES], 0);
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(read) => bytes += read as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(|| format!("read {}", reader.describe()))(error)),
        }
    }
}

/// A thread that counts as the other end.
pub(super) fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name("bench-end".into()).spawn(work);
    thread.map_err(Error::io(|| "start a thread for the other end"))
}
