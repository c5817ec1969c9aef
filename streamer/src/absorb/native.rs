//! Reads the native format: a thread for each shard, one [`Assembly`] for all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vramstream::stage::{self, Crc32, ZeroChecksums};

use super::{ImageSink, Lane, Shard};
use crate::{
    error::{Error, Result},
    format::{Assembly, ChunkHeader, Codec, Event, FormatError, Manifest, ShardDecoder},
};

/// Reads the shards of one image.
pub(super) struct Reader<S> {
    sink: Arc<S>,
    assembly: Mutex<Assembly>,
}

impl<S: ImageSink> Reader<S> {
    /// For an image whose shards all have to be [read](Self::read).
    pub(super) fn new(sink: Arc<S>) -> Self {
        Reader { sink, assembly: Mutex::default() }
    }

    /// Reads a shard to its end.
    pub(super) fn read(&self, shard: &mut Shard) -> Result<()> {
        let worker = Worker {
            image: self,
            number: None,
            scratch: Vec::new(),
            zeros: ZeroChecksums::default(),
        };
        worker.read(shard)
    }

    /// All shards were read: is it an image?
    pub(super) fn finish(&self) -> Result<Manifest> {
        let assembly = std::mem::take(&mut *self.assembly());
        Ok(assembly.finish()?)
    }

    fn assembly(&self) -> MutexGuard<'_, Assembly> {
        // A thread that panicked has reported it, so the image fails whatever is in here.
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Worker<'a, S> {
    image: &'a Reader<S>,
    number: Option<u32>,
    /// Raw bytes of a compressed chunk.
    scratch: Vec<u8>,
    zeros: ZeroChecksums,
}

impl<S: ImageSink> Worker<'_, S> {
    fn read(mut self, shard: &mut Shard) -> Result<()> {
        let mut lane = self.image.sink.lane()?;
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
                    self.image.assembly().shard(&prologue)?;
                }
                Event::FileBegin(file, name) => {
                    // Under the lock, so that no other shard's chunk of it overtakes the sink.
                    let mut assembly = self.image.assembly();
                    if assembly.file_begin(file, &name)? {
                        self.image.sink.file_begin(file, &name)?;
                    }
                }
                Event::Chunk(chunk) => {
                    self.chunk(shard, &chunk, &mut lane, decoder.position())?;
                    self.image.assembly().chunk(&chunk)?;
                }
                Event::FileEnd(end) => self.image.assembly().file_end(&end)?,
                Event::ImageEnd(end) => totals = Some(end),
                Event::End => break,
            }
        }
        lane.finish()?;
        if let (Some(number), Some(end)) = (self.number, totals) {
            self.image.assembly().shard_end(number, &end)?;
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
        let damaged = |shard: &Shard, image: &Reader<S>| Error::Payload {
            shard: shard.describe().to_owned(),
            file: image.assembly().name(chunk.file).map(ToString::to_string).unwrap_or_default(),
            offset: chunk.offset,
        };
        if chunk.codec == Codec::Zero {
            if self.zeros.of(chunk.raw_len) != chunk.crc {
                return Err(damaged(shard, self.image));
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
                    return Err(damaged(shard, self.image));
                }
                Some(&self.scratch[..])
            }
            Codec::Raw | Codec::Zero => None,
        };
        if Crc32::of(raw.unwrap_or(payload)).value != chunk.crc {
            return Err(damaged(shard, self.image));
        }
        lane.chunk(chunk, raw)
    }
}
