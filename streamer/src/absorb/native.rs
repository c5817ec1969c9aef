//! Reads the native format: a thread for each shard, one [`Assembly`] for all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vramstream::stage::{self, Crc32, ZeroChecksums};

use super::{ImageSink, Lane, Shard};
use crate::{
    error::{Error, Result},
    format::{Assembly, ChunkHeader, Codec, Event, FormatError, Manifest, ShardDecoder},
};

mod pieces;

use pieces::Scratch;

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
            scratch: Scratch::default(),
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
    /// For compressed chunks.
    scratch: Scratch,
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

    /// Takes a chunk: its frame's header was read, and `end` is where its payload ends.
    fn chunk(
        &mut self,
        shard: &mut Shard,
        chunk: &ChunkHeader,
        lane: &mut S::Lane,
        end: u64,
    ) -> Result<()> {
        let good = match (chunk.codec, lane.piece_bytes()) {
            (Codec::Zero, _) => {
                let good = self.zeros.of(chunk.raw_len) == chunk.crc;
                if good {
                    lane.chunk(chunk, None)?;
                }
                good
            }
            (Codec::Raw | Codec::Lz4, None) => self.whole(shard, chunk, lane, end)?,
            (Codec::Raw, Some(piece)) => pieces::raw(shard, chunk, lane, end, piece)?,
            (Codec::Lz4, Some(piece)) => {
                pieces::lz4(shard, chunk, lane, end, piece, &mut self.scratch)?
            }
        };
        if good {
            return Ok(());
        }
        let image = self.image.assembly();
        Err(Error::Payload {
            shard: shard.describe().to_owned(),
            file: image.name(chunk.file).map(ToString::to_string).unwrap_or_default(),
            offset: chunk.offset,
        })
    }

    /// Takes a chunk as it is; whether it is what was dumped.
    fn whole(
        &mut self,
        shard: &mut Shard,
        chunk: &ChunkHeader,
        lane: &mut S::Lane,
        end: u64,
    ) -> Result<bool> {
        let payload = lane.payload(chunk.stored_len as usize)?;
        fill(shard, payload, end)?;
        let raw = match chunk.codec {
            Codec::Lz4 => {
                let raw = self.scratch.raw(chunk.raw_len as usize);
                if !stage::decompress_lz4(payload, raw) {
                    return Ok(false);
                }
                Some(&*raw)
            }
            Codec::Raw | Codec::Zero => None,
        };
        if Crc32::of(raw.unwrap_or(payload)).value != chunk.crc {
            return Ok(false);
        }
        lane.chunk(chunk, raw)?;
        Ok(true)
    }
}

/// Reads a payload, or a part of one, that ends at `end`.
fn fill(shard: &mut Shard, payload: &mut [u8], end: u64) -> Result<()> {
    let missing = shard.fill(payload)?;
    if missing == 0 {
        return Ok(());
    }
    let (what, at) = ("the payload of a chunk", end - missing as u64);
    Err(Error::shard(shard.describe())(FormatError::Truncated { what, at }))
}
