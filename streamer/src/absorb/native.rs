//! Reads the native format: a thread for each shard, one [`Assembly`] for all.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{RecvTimeoutError, Sender};
use vramstream::stage::{self, Crc32, ZeroChecksums};

use super::{Absorbed, CHECK_INTERVAL, ImageFormat, ImageSink, Lane, Report, Shard, ShardStat};
use crate::{
    error::{Error, Result},
    format::{Assembly, ChunkHeader, Codec, Event, FormatError, ShardDecoder},
};

/// Reads all shards to their end. At the first error it returns at once: a thread that waits for a
/// shard that will never come is left behind, since whoever asked is about to give up.
pub(super) fn absorb<S: ImageSink>(
    shards: Vec<Shard>,
    sink: &Arc<S>,
    check: &mut dyn FnMut() -> Result<()>,
) -> Result<Absorbed> {
    let assembly = Arc::new(Mutex::new(Assembly::default()));
    let count = shards.len();
    let (reports, inbox) = crossbeam_channel::bounded(count + 1);
    for shard in shards {
        let worker = Worker {
            reports: reports.clone(),
            assembly: Arc::clone(&assembly),
            sink: Arc::clone(sink),
            number: None,
            scratch: Vec::new(),
            zeros: ZeroChecksums::default(),
        };
        std::thread::Builder::new()
            .name(format!("shard-{}", shard.number))
            .spawn(move || worker.run(shard))
            .map_err(Error::io(|| "start a thread for a shard"))?;
    }
    drop(reports);
    let mut stats = vec![ShardStat::default(); count];
    let mut done = 0;
    while done < count {
        match inbox.recv_timeout(CHECK_INTERVAL) {
            Ok(Report::Done(number, stat)) => {
                stats[number] = stat;
                done += 1;
            }
            Ok(Report::Failed(error)) => return Err(error),
            Err(RecvTimeoutError::Timeout) => check()?,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Panicked("shard".into())),
        }
    }
    let assembly = std::mem::take(&mut *lock(&assembly));
    Ok(Absorbed { format: ImageFormat::Native, manifest: assembly.finish()?, shards: stats })
}

fn lock(assembly: &Mutex<Assembly>) -> std::sync::MutexGuard<'_, Assembly> {
    // A thread that panicked has reported nothing, so the image fails whatever is in here.
    assembly.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker<S> {
    reports: Sender<Report>,
    assembly: Arc<Mutex<Assembly>>,
    sink: Arc<S>,
    number: Option<u32>,
    /// Raw bytes of a compressed chunk.
    scratch: Vec<u8>,
    zeros: ZeroChecksums,
}

impl<S: ImageSink> Worker<S> {
    fn run(mut self, mut shard: Shard) {
        let report = match self.read(&mut shard) {
            Ok(()) => Report::Done(shard.number, shard.stat()),
            Err(error) => Report::Failed(error),
        };
        // Nobody listens any more if another shard has failed first.
        let _ = self.reports.send(report);
    }

    fn read(&mut self, shard: &mut Shard) -> Result<()> {
        let mut lane = self.sink.lane()?;
        let mut decoder = ShardDecoder::new();
        let mut totals = None;
        let mut buf = Vec::new();
        loop {
            buf.resize(decoder.wants(), 0);
            let missing = shard.fill(&mut buf)?;
            if missing > 0 {
                return Err(Error::shard(shard.describe())(decoder.truncated(missing)));
            }
            match decoder.feed(&buf).map_err(Error::shard(shard.describe()))? {
                Event::More => {}
                Event::Prologue(prologue) => {
                    self.number = Some(prologue.shard);
                    lock(&self.assembly).shard(&prologue)?;
                }
                Event::FileBegin(file, name) => {
                    // Under the lock, so that no other shard's chunk of it overtakes the sink.
                    let mut assembly = lock(&self.assembly);
                    if assembly.file_begin(file, &name)? {
                        self.sink.file_begin(file, &name)?;
                    }
                }
                Event::Chunk(chunk) => {
                    self.chunk(shard, &chunk, &mut lane, decoder.position())?;
                    lock(&self.assembly).chunk(&chunk)?;
                }
                Event::FileEnd(end) => lock(&self.assembly).file_end(&end)?,
                Event::ImageEnd(end) => totals = Some(end),
                Event::End => break,
            }
        }
        lane.finish()?;
        if let (Some(number), Some(end)) = (self.number, totals) {
            lock(&self.assembly).shard_end(number, &end)?;
        }
        // A byte too many is no accident either: two shards on one pipe, or a wrong file.
        if shard.fill(&mut [0])? == 0 {
            let at = decoder.position();
            let what = "data after the end of the shard";
            return Err(Error::shard(shard.describe())(FormatError::Malformed { what, at }));
        }
        Ok(())
    }

    fn chunk(
        &mut self,
        shard: &mut Shard,
        chunk: &ChunkHeader,
        lane: &mut S::Lane,
        end: u64,
    ) -> Result<()> {
        let damaged = |shard: &Shard, assembly: &Mutex<Assembly>| Error::Payload {
            shard: shard.describe().to_owned(),
            file: lock(assembly).name(chunk.file).map(ToString::to_string).unwrap_or_default(),
            offset: chunk.offset,
        };
        if chunk.codec == Codec::Zero {
            if self.zeros.of(chunk.raw_len) != chunk.crc {
                return Err(damaged(shard, &self.assembly));
            }
            return lane.chunk(chunk, None);
        }
        let payload = lane.payload(chunk.stored_len as usize)?;
        let missing = shard.fill(payload)?;
        if missing > 0 {
            let at = end - missing as u64;
            let what = "the payload of a chunk";
            return Err(Error::shard(shard.describe())(FormatError::Truncated { what, at }));
        }
        let raw = match chunk.codec {
            Codec::Lz4 => {
                self.scratch.resize(chunk.raw_len as usize, 0);
                if !stage::decompress_lz4(payload, &mut self.scratch) {
                    return Err(damaged(shard, &self.assembly));
                }
                Some(&self.scratch[..])
            }
            Codec::Raw | Codec::Zero => None,
        };
        if Crc32::of(raw.unwrap_or(payload)).value != chunk.crc {
            return Err(damaged(shard, &self.assembly));
        }
        lane.chunk(chunk, raw)
    }
}
