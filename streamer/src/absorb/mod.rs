//! Reads an image, whole and once: from all its shards at the same time, in either format,
//! checking everything, and handing the files to a sink piece by piece.
//!
//! [`absorb`] returns the [`Absorbed`] image only if it exists in the sense of
//! [the format](crate::format); whatever the sink has kept by then is the image. On an error the
//! sink has to forget what it has.
//!
//! This module knows nothing of CRIU, of where the shards come from, or of what the sink does.

use std::{
    io::{self, Read},
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{RecvTimeoutError, Sender};

use crate::{
    error::{Error, Result},
    format::{ChunkHeader, FileName, ImageError, Manifest},
    transport::ShardReader,
};

mod criu_image_streamer;
mod detect;
pub(crate) mod native;

use detect::Detection;

/// Takes the files of an image.
pub trait ImageSink: Send + Sync + 'static {
    /// What each reading thread owns.
    type Lane: Lane;

    /// A lane for a thread that starts reading.
    fn lane(self: &Arc<Self>) -> Result<Self::Lane>;

    /// A file appears, once for each number. The same name may appear again under another number:
    /// the manifest then says which of them counts.
    fn file_begin(&self, file: u32, name: &FileName) -> Result<()>;
}

/// Takes chunks on one thread.
///
/// Most lanes take chunks whole, as they are in the shards. One with little memory takes
/// [pieces](Self::piece_bytes); one that hands its memory on (the chunk of a ring, say) lends it in
/// [`payload`](Self::payload) and sends it away in [`chunk`](Self::chunk), without a copy.
pub trait Lane: Send {
    /// The most bytes that it takes at a time, if it cannot take every chunk whole.
    ///
    /// What is larger then comes in pieces, and each piece looks like a raw chunk of its own: its
    /// memory is asked for, filled and handed over before the next is asked for. Compressed chunks
    /// are decompressed first, so that none comes with a `decompressed`; zero chunks come as they
    /// are. The pieces of a raw chunk come before its checksum could be verified: a mismatch is
    /// found after the last of them and fails the image.
    fn piece_bytes(&self) -> Option<usize> {
        None
    }

    /// Memory for the payload of the next chunk: exactly `len` bytes. The chunk may turn out to be
    /// zero and then does not use it: a lane whose memory others wait for takes it back then. What
    /// fills it is on its way already, and waits for no other lane.
    fn payload(&mut self, len: usize) -> Result<&mut [u8]>;

    /// Takes a chunk whose checksum was verified, or a piece of one. Its payload is in the memory
    /// that [`payload`](Self::payload) gave last; `decompressed` has the raw bytes where the payload
    /// is compressed. A zero chunk comes without either.
    fn chunk(&mut self, header: &ChunkHeader, decompressed: Option<&[u8]>) -> Result<()>;

    /// The shard has ended: hands everything over that is still in the lane.
    fn finish(self) -> Result<()>;
}

/// Which format an image had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// This project's own.
    Native,
    /// That of criu-image-streamer 1.0.
    CriuImageStreamer,
}

/// An image that was read whole.
#[derive(Debug)]
pub struct Absorbed {
    /// Its format.
    pub format: ImageFormat,
    /// What is in it.
    pub manifest: Manifest,
    /// What came from each shard.
    pub shards: Vec<ShardStat>,
}

/// What came from, or went to, one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardStat {
    /// Bytes of the shard.
    pub bytes: u64,
    /// From its first byte to its last.
    pub duration_ms: u64,
}

/// Reads an image from its shards into a sink, to the end of every shard. `progress` is told how
/// many bytes of which shard (by its place in `shards`) have come, from any thread; `check` is asked
/// several times a second whether to go on.
///
/// At the first error it returns at once: a thread that waits for a shard that will never come is
/// left behind, since whoever asked is about to give up.
pub fn absorb<S: ImageSink>(
    shards: Vec<Box<dyn ShardReader>>,
    sink: &Arc<S>,
    progress: &Progress,
    check: &mut dyn FnMut() -> Result<()>,
) -> Result<Absorbed> {
    let count = shards.len();
    if count == 0 {
        return Err(ImageError::NoShard.into());
    }
    let readers = Arc::new(Readers {
        detection: Detection::new(count),
        native: native::Reader::new(Arc::clone(sink)),
        markers: criu_image_streamer::Reader::new(Arc::clone(sink), count),
    });
    let (reports, inbox) = crossbeam_channel::bounded(count);
    for (number, reader) in shards.into_iter().enumerate() {
        let shard = Shard::new(reader, number, progress);
        let worker = Worker { readers: Arc::clone(&readers), reports: Some(reports.clone()) };
        std::thread::Builder::new()
            .name(format!("shard-{number}"))
            .spawn(move || worker.run(shard))
            .map_err(Error::io(|| "start a thread for a shard"))?;
    }
    let mut stats = vec![ShardStat::default(); count];
    let mut done = 0;
    while done < count {
        match inbox.recv_timeout(CHECK_INTERVAL) {
            Ok(Ok((number, stat))) => {
                stats[number] = stat;
                done += 1;
            }
            Ok(Err(error)) => return Err(error),
            Err(RecvTimeoutError::Timeout) => check()?,
            Err(RecvTimeoutError::Disconnected) => return Err(Error::Panicked("shard".into())),
        }
    }
    let format = readers.detection.decided().ok_or(Error::Empty)?;
    let manifest = match format {
        ImageFormat::Native => readers.native.finish()?,
        ImageFormat::CriuImageStreamer => readers.markers.finish()?,
    };
    Ok(Absorbed { format, manifest, shards: stats })
}

/// What the threads that read the shards of an image share.
struct Readers<S> {
    detection: Detection,
    native: native::Reader<S>,
    markers: criu_image_streamer::Reader<S>,
}

/// A thread that reads a shard, and reports once, whatever becomes of it.
struct Worker<S: ImageSink> {
    readers: Arc<Readers<S>>,
    reports: Option<Sender<Result<(usize, ShardStat)>>>,
}

impl<S: ImageSink> Worker<S> {
    fn run(mut self, mut shard: Shard) {
        let read = self.readers.detection.format(&mut shard).and_then(|format| match format {
            ImageFormat::Native => self.readers.native.read(&mut shard),
            ImageFormat::CriuImageStreamer => self.readers.markers.read(&mut shard),
        });
        self.report(read.map(|()| (shard.number, shard.stat())));
    }

    fn report(&mut self, report: Result<(usize, ShardStat)>) {
        let Some(reports) = self.reports.take() else { return };
        let failed = report.is_err();
        // Nobody listens any more if another shard has failed first.
        let _ = reports.send(report);
        if failed {
            self.readers.markers.stop();
        }
    }
}

impl<S: ImageSink> Drop for Worker<S> {
    /// Does something only if the thread panicked.
    fn drop(&mut self) {
        self.report(Err(Error::Panicked("shard".into())));
    }
}

/// How often [`absorb`] asks whether to go on.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Told how many bytes of which shard, by its place, have just come.
pub type Progress = Arc<dyn Fn(usize, u64) + Send + Sync>;

/// A shard being read: counts its bytes, and can be looked at before it is read.
pub(crate) struct Shard {
    reader: Box<dyn ShardReader>,
    number: usize,
    peeked: [u8; 8],
    peeked_len: usize,
    peeked_taken: usize,
    bytes: u64,
    started: Option<Instant>,
    progress: Progress,
}

impl Shard {
    fn new(reader: Box<dyn ShardReader>, number: usize, progress: &Progress) -> Self {
        Shard {
            reader,
            number,
            peeked: [0; 8],
            peeked_len: 0,
            peeked_taken: 0,
            bytes: 0,
            started: None,
            progress: Arc::clone(progress),
        }
    }

    pub(crate) fn describe(&self) -> &str {
        self.reader.describe()
    }

    /// The first bytes, at most 8, without taking them. Waits for them.
    fn peek(&mut self) -> Result<&[u8]> {
        while self.peeked_len < self.peeked.len() {
            match self.reader.read(&mut self.peeked[self.peeked_len..]) {
                Ok(0) => break,
                Ok(n) => self.peeked_len += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(|| format!("read {}", self.describe()))(error)),
            }
            self.started.get_or_insert_with(Instant::now);
        }
        Ok(&self.peeked[..self.peeked_len])
    }

    /// Fills `buf`; how many bytes are missing if the shard ends first.
    pub(crate) fn fill(&mut self, buf: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.read(&mut buf[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(|| format!("read {}", self.describe()))(error)),
            }
        }
        Ok(buf.len() - done)
    }

    /// What came from this shard.
    pub(crate) fn stat(&self) -> ShardStat {
        let duration = self.started.map(|at| at.elapsed()).unwrap_or_default();
        ShardStat {
            bytes: self.bytes,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl Read for Shard {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let peeked = &self.peeked[self.peeked_taken..self.peeked_len];
        let n = if peeked.is_empty() {
            self.reader.read(buf)?
        } else {
            let n = peeked.len().min(buf.len());
            buf[..n].copy_from_slice(&peeked[..n]);
            self.peeked_taken += n;
            n
        };
        self.started.get_or_insert_with(Instant::now);
        self.bytes += n as u64;
        (self.progress)(self.number, n as u64);
        Ok(n)
    }
}
