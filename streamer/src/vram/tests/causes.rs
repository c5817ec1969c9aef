//! Whoever fails, the cause is what is told, to the caller and to the other end.

use nix::errno::Errno;
use vramstream::{
    device::sim::Fault,
    gpu::{Drain, Restore, RestoreJob, Write},
};

use super::{place::Place, *};
use crate::{
    absorb::{ImageSink, Lane},
    format::{ChunkHeader, Codec},
    pack::{self, Packer, StageThreads},
};

/// What the other end was told.
#[derive(Debug, Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn add(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// An origin whose shards are pipes, and that knows more of an error than its readers.
struct Pipes(PipeOrigin, Told);

impl Origin for Pipes {
    fn open(&mut self) -> Result<Vec<Box<dyn ShardReader>>> {
        self.0.open()
    }

    fn committed(&mut self, files: u32, _: u64) -> Result<()> {
        self.1.add(&format!("committed {files}"));
        Ok(())
    }

    fn failed(&mut self, reason: &str) {
        self.1.add(reason);
    }

    fn explain(&mut self, error: Error) -> Error {
        Error::Peer { peer: "explained".into(), what: error.report().to_string() }
    }
}

/// Pipes whose writers stay open: nothing comes, and nothing ends.
fn silent_pipes(shards: usize) -> (Pipes, Vec<std::io::PipeWriter>, Told) {
    let (mut readers, mut writers) = (Vec::new(), Vec::new());
    for number in 0..shards {
        let (read, write) = std::io::pipe().unwrap();
        readers.push((format!("pipe {number}"), read.into()));
        writers.push(write);
    }
    let told = Told::default();
    (Pipes(PipeOrigin::new(readers), told.clone()), writers, told)
}

#[test]
fn a_gpu_that_fails_while_nothing_comes_ends_the_restore_and_is_the_cause() {
    let place = Place::new();
    let plan = place.host.plan(Fault::call("GEM_CREATE").answers(Errno::EIO));
    let (mut origin, _open, told) = silent_pipes(2);
    let options = options(ring_of("16M", 1));
    let (driver, silent) = (place.driver(), Progress::silent());
    let error = restore(&driver, place.places(), &mut origin, &options, || Ok(()), &silent);
    let error = error.unwrap_err().report().to_string();
    assert!(error.contains("explained") && error.contains("GEM_CREATE failed"), "{error}");
    assert_eq!(told.all(), [error]);
    assert_eq!(plan.hits(), 1);
    assert_eq!(place.host.open_dma_bufs(), [0; 0]);
}

#[test]
fn a_user_who_stops_a_restore_while_nothing_comes() {
    let place = Place::new();
    let (mut origin, _open, told) = silent_pipes(1);
    let options = options(ring_of("16M", 1));
    let (driver, silent) = (place.driver(), Progress::silent());
    let check = || Err(Error::Interrupted("SIGTERM"));
    let error = restore(&driver, place.places(), &mut origin, &options, check, &silent);
    assert!(error.unwrap_err().to_string().contains("SIGTERM"));
    assert!(told.all()[0].contains("SIGTERM"));
    assert_eq!((place.host.complaints(), place.host.open_dma_bufs()), (vec![], vec![]));
}

/// The workers of one GPU that has failed, and the sink of a restore to it.
fn failing(place: &Place, ring: &Ring) -> (Restore<Error>, Arc<VramSink>) {
    let jobs = place.places().into_iter().map(|contents| RestoreJob { contents });
    let gpu = options(ring.clone()).gpu;
    let (restore, senders) = Restore::start(&place.driver(), ring, jobs.collect(), gpu).unwrap();
    senders[0].send(Write::Zeros { offset: u64::MAX, len: 1 }).unwrap();
    let file = PagesFile { id: 7, gpu_id: place.gpu_id };
    let gpus = senders.into_iter().map(|sender| (file, 12 << 10, sender));
    let sink = VramSink::new(ring, restore.watch(), gpus);
    while !restore.watch().is_failing() {
        std::thread::yield_now();
    }
    (restore, sink)
}

#[test]
fn a_lane_that_waits_for_a_chunk_is_let_go_when_a_gpu_has_failed() {
    let place = Place::new();
    let ring = ring_of("8K", 1);
    let (restore, sink) = failing(&place, &ring);
    let _all: Vec<_> = std::iter::from_fn(|| ring.try_take()).collect();
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut lane = sink.lane().unwrap();
        let _ = done.send(matches!(lane.payload(1), Err(Error::GivenUp)));
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(true));
    assert!(matches!(restore.give_up(), gpu::GpuError::Contents { .. }));
}

#[test]
fn a_lane_keeps_no_chunk_that_it_does_not_use() {
    let place = Place::new();
    let ring = ring_of("8K", 1);
    let jobs = Vec::new();
    let (restore, _) =
        Restore::<Error>::start(&place.driver(), &ring, jobs, options(ring.clone()).gpu).unwrap();
    let (sender, _writes) = crossbeam_channel::bounded(1);
    let file = PagesFile { id: 7, gpu_id: 1 };
    let sink = VramSink::new(&ring, restore.watch(), [(file, 0, sender)]);
    sink.file_begin(0, &file.name().unwrap()).unwrap();
    let mut lane = sink.lane().unwrap();
    lane.payload(8).unwrap();
    let header = ChunkHeader {
        file: 0,
        offset: 0,
        raw_len: 8,
        stored_len: 0,
        codec: Codec::Zero,
        crc: 0,
        pad: 0,
    };
    lane.chunk(&header, None).unwrap();
    assert_all_back(&ring);
}

/// A destination that knows more than its shards, which take nothing.
struct Unhealthy(Told, bool);

struct Refuses(bool);

impl ShardWriter for Refuses {
    fn describe(&self) -> &str {
        "a shard that refuses"
    }

    fn write(&mut self, _: &[u8]) -> Result<()> {
        if self.0 {
            return Err(Error::Usage("the shard is full".into()));
        }
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    fn write_chunk(&mut self, head: &[u8], _: Payload) -> Result<()> {
        self.write(head)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Destination for Unhealthy {
    fn shards(&self) -> u32 {
        1
    }

    fn open(&mut self, _: ImageId) -> Result<Vec<Box<dyn ShardWriter>>> {
        Ok(vec![Box::new(Refuses(self.1))])
    }

    fn health(&mut self) -> Result<()> {
        if self.1 { Ok(()) } else { Err(Error::Usage("the receiver is gone".into())) }
    }

    fn commit(&mut self, _: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.0.add("committed");
        Ok(())
    }

    fn abort(&mut self, reason: &str) {
        self.0.add(reason);
    }

    fn explain(&mut self, error: Error) -> Error {
        Error::Peer { peer: "explained".into(), what: error.report().to_string() }
    }
}

#[test]
fn a_destination_that_fails_is_the_cause_and_is_told() {
    for (shard_fails, cause) in [(true, "the shard is full"), (false, "the receiver is gone")] {
        let source = source(2);
        let paused = source.pause().unwrap();
        let (_, contents) = source.divide(paused.checkpoint().unwrap()).unwrap();
        let told = Told::default();
        let destination = Box::new(Unhealthy(told.clone(), shard_fails));
        let options = options(ring_of("64K", 2));
        let error = dump_to(&source, contents, destination, &options).unwrap_err();
        let error = error.report().to_string();
        assert!(error.contains("explained") && error.contains(cause), "{error}");
        assert_eq!(told.all(), [error]);
        assert_eq!(source.host().complaints(), []);
        assert_all_back(&options.ring);
    }
}

#[test]
fn a_gpu_that_gives_fewer_bytes_than_were_promised() {
    let (destination, kept) = memory(1, None);
    let ring = ring_of("8K", 1);
    let pack = pack::Options {
        compression: Compression::None,
        memory: pack::Memory::Ring { ring, index_bytes: 1 << 20 },
        stages: StageThreads::Checksum,
    };
    let mut packer = Packer::start(destination, pack, || Ok(()), &Progress::silent()).unwrap();
    let file = PagesFile { id: 7, gpu_id: 1 };
    let mut drain = VramFeed::begin(packer.feed(), 0, file, 4096).unwrap();
    let error = drain.end(0).unwrap_err().to_string();
    assert!(error.contains("4096 were promised"), "{error}");
    packer.abort(&error);
    assert!(!kept.committed.load(Ordering::Acquire));
}
