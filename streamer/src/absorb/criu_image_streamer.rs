//! Reads the format of criu-image-streamer: a thread for each shard, one [`Sequence`] for all.
//!
//! A thread reads a record's header, waits for its turn in the order of the image, learns what the
//! payload is and lets the next record have its turn. The payloads themselves are read side by side.
//! A thread that waits holds one header and nothing else, so memory does not depend on how far the
//! shards are apart; and since no thread waits for anything but the record that comes next in the
//! image, a reader of pipes keeps a writer going that waits for room in any of them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use vramstream::stage::{self, Crc32, ZeroChecksums};

use super::{ImageSink, Lane, Shard};
use crate::{
    criu_image_streamer::{LENGTH_BYTES, Marker, MarkerBody, MarkerError, Sequence, Step},
    error::{Error, Result},
    format::{ChunkHeader, Codec, Manifest},
};

/// The most bytes that any sink is asked to take at once. A record may have up to 4 GiB; the original
/// program writes at most 256 KiB.
const PIECE_BYTES: u32 = 1 << 20;

/// Reads the shards of one image.
pub(super) struct Reader<S> {
    sink: Arc<S>,
    turns: Mutex<Turns>,
    /// For each shard, by its place: its thread waits here for its turn.
    wake: Vec<Condvar>,
}

/// Whose turn it is.
#[derive(Debug)]
struct Turns {
    sequence: Sequence,
    /// Records whose turn has not come, and the shards they are in.
    waiting: BTreeMap<u64, usize>,
    /// Shards that may bring another record: not ended, and not waiting.
    reading: usize,
    stopped: bool,
}

impl<S: ImageSink> Reader<S> {
    /// For an image of so many shards, all of which have to be [read](Self::read).
    pub(super) fn new(sink: Arc<S>, shards: usize) -> Self {
        let turns = Turns {
            sequence: Sequence::default(),
            waiting: BTreeMap::new(),
            reading: shards,
            stopped: false,
        };
        let wake = (0..shards).map(|_| Condvar::new()).collect();
        Reader { sink, turns: Mutex::new(turns), wake }
    }

    /// Reads a shard to its end.
    pub(super) fn read(&self, shard: &mut Shard) -> Result<()> {
        let mut lane = self.sink.lane()?;
        let mut zeros = ZeroChecksums::default();
        let mut buf = Vec::new();
        while let Some(marker) = next_marker(shard, &mut buf)? {
            if let Step::Data { file, offset, len } = self.take_turn(shard, &marker)? {
                self.payload(shard, &mut lane, &mut zeros, (file, offset, len))?;
            }
        }
        lane.finish()?;
        let mut turns = self.lock();
        turns.reading -= 1;
        turns.check_missing().map_err(invalid(shard))
    }

    /// Lets go of every thread that waits for its turn: the image is lost.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.wake.iter().for_each(Condvar::notify_all);
    }

    /// All shards were read: is it an image?
    pub(super) fn finish(&self) -> Result<Manifest> {
        let sequence = std::mem::take(&mut self.lock().sequence);
        let shards = u32::try_from(self.wake.len()).unwrap_or(u32::MAX);
        sequence.finish(shards).map_err(|what| Error::Marker {
            shard: "all shards".to_owned(),
            what: what.to_string(),
        })
    }

    /// Waits until the record is the next one of the image, and takes it.
    fn take_turn(&self, shard: &Shard, marker: &Marker) -> Result<Step> {
        let invalid = invalid(shard);
        let mut turns = self.lock();
        if marker.seq > turns.sequence.next() && !turns.sequence.ended() {
            turns = self.wait(turns, shard.number, marker.seq).map_err(&invalid)?;
        }
        if turns.stopped {
            // Nobody reads this: whoever stopped the threads has reported why.
            return Err(invalid(MarkerError::NoImageEof));
        }
        // After the wait: a record of the same number may have come while this one was woken.
        if marker.seq < turns.sequence.next() {
            return Err(invalid(MarkerError::Twice(marker.seq)));
        }
        let step = turns.sequence.record(marker).map_err(&invalid)?;
        if let Step::Begin(file, name) = &step {
            // Under the lock, so that no other shard's data of it overtakes the sink.
            self.sink.file_begin(*file, name)?;
        }
        let (next, waiting) = (turns.sequence.next(), turns.waiting.first_key_value());
        match waiting {
            Some((&waiting, _)) if marker.body == MarkerBody::ImageEof => {
                Err(invalid(MarkerError::Pending { end: marker.seq, waiting }))
            }
            Some((&seq, &shard)) if seq == next => {
                self.wake[shard].notify_all();
                Ok(step)
            }
            _ => Ok(step),
        }
    }

    fn wait<'a>(
        &self,
        mut turns: MutexGuard<'a, Turns>,
        shard: usize,
        seq: u64,
    ) -> Result<MutexGuard<'a, Turns>, MarkerError> {
        if turns.waiting.insert(seq, shard).is_some() {
            return Err(MarkerError::Twice(seq));
        }
        turns.reading -= 1;
        turns.check_missing()?;
        let mut turns = self.wake[shard]
            .wait_while(turns, |turns| turns.sequence.next() < seq && !turns.stopped)
            .unwrap_or_else(PoisonError::into_inner);
        turns.waiting.remove(&seq);
        turns.reading += 1;
        Ok(turns)
    }

    /// Takes a payload, piece by piece, straight into the memory of the lane.
    fn payload(
        &self,
        shard: &mut Shard,
        lane: &mut S::Lane,
        zeros: &mut ZeroChecksums,
        (file, mut offset, mut left): (u32, u64, u32),
    ) -> Result<()> {
        let most =
            lane.piece_bytes().map_or(u32::MAX, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let most = most.clamp(1, PIECE_BYTES);
        while left > 0 {
            let raw_len = left.min(most);
            let payload = lane.payload(raw_len as usize)?;
            if shard.fill(payload)? > 0 {
                return Err(invalid(shard)(MarkerError::Truncated("a payload")));
            }
            // Zeros that the original program stored need not be kept.
            let (codec, stored_len, crc) = if stage::is_zero(payload) {
                (Codec::Zero, 0, zeros.of(raw_len))
            } else {
                (Codec::Raw, raw_len, Crc32::of(payload).value)
            };
            let header = ChunkHeader { file, offset, raw_len, stored_len, codec, crc, pad: 0 };
            lane.chunk(&header, None)?;
            self.lock().sequence.piece(file, offset, header.checksum());
            offset += u64::from(raw_len);
            left -= raw_len;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        // A thread that panicked has reported it, so the image fails whatever is in here.
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turns {
    /// An error if no shard can bring the next record any more.
    fn check_missing(&self) -> Result<(), MarkerError> {
        let next = self.sequence.next();
        if self.reading > 0 || self.sequence.ended() || self.waiting.contains_key(&next) {
            Ok(())
        } else if self.waiting.is_empty() {
            Err(MarkerError::NoImageEof)
        } else {
            Err(MarkerError::Missing(next))
        }
    }
}

/// The header of a shard's next record, or `None` where the shard ends before one.
fn next_marker(shard: &mut Shard, buf: &mut Vec<u8>) -> Result<Option<Marker>> {
    let mut len = [0; LENGTH_BYTES];
    match shard.fill(&mut len)? {
        0 => {}
        LENGTH_BYTES => return Ok(None),
        _ => return Err(invalid(shard)(MarkerError::Truncated("the length of a marker"))),
    }
    buf.resize(Marker::length(len).map_err(invalid(shard))?, 0);
    if shard.fill(buf)? > 0 {
        return Err(invalid(shard)(MarkerError::Truncated("a marker")));
    }
    Marker::decode(buf).map(Some).map_err(invalid(shard))
}

/// Names the shard that is wrong.
fn invalid(shard: &Shard) -> impl Fn(MarkerError) -> Error + '_ {
    |what| Error::Marker { shard: shard.describe().to_owned(), what: what.to_string() }
}
