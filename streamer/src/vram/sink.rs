//! From an image to the GPU workers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crossbeam_channel::Sender;
use vramstream::{
    gpu::{Watch, Write},
    ring::{Chunk, Ring},
};

use super::{PagesFile, SIZE_BYTES, SIZE_LEN};
use crate::{
    absorb::{ImageSink, Lane},
    error::{Error, Result},
    format::{ChunkHeader, Codec, FileName, ImageError},
};

/// Takes an image whose files are GPU contents, and nothing else.
#[derive(Debug)]
pub struct VramSink {
    ring: Ring,
    watch: Watch,
    gpus: Vec<Gpu>,
    /// Which GPU each of the image's files is of.
    files: Mutex<HashMap<u32, usize>>,
}

#[derive(Debug)]
struct Gpu {
    file: PagesFile,
    bytes: u64,
    /// Gone when there is no more to come.
    writes: Mutex<Option<Sender<Write>>>,
    size: Mutex<Size>,
}

/// What has come of a file's size.
#[derive(Debug, Default)]
struct Size {
    bytes: [u8; SIZE_LEN],
    /// A bit for each byte that has come.
    seen: u8,
}

impl VramSink {
    /// For these files: what GPU each is of, how many bytes of contents that GPU has, and the way to
    /// its worker. `watch` tells whether the workers are failing.
    pub fn new(
        ring: &Ring,
        watch: Watch,
        gpus: impl IntoIterator<Item = (PagesFile, u64, Sender<Write>)>,
    ) -> Arc<Self> {
        let gpus = gpus.into_iter().map(|(file, bytes, writes)| Gpu {
            file,
            bytes,
            writes: Mutex::new(Some(writes)),
            size: Mutex::default(),
        });
        let files = Mutex::default();
        Arc::new(VramSink { ring: ring.clone(), watch, gpus: gpus.collect(), files })
    }

    /// The image was read to its end: tells the workers that this was all.
    pub fn close(&self) -> Result<()> {
        self.go_on()?;
        // Before any worker hears of the end: it would say that bytes are missing, and not why.
        let incomplete = self.gpus.iter().find(|gpu| lock(&gpu.size).seen != u8::MAX);
        if let Some(Gpu { file, .. }) = incomplete {
            return Err(Error::Misfit(format!("{file} is not in the image, or empty")));
        }
        self.gpus.iter().for_each(|gpu| drop(lock(&gpu.writes).take()));
        Ok(())
    }

    fn gpu_of(&self, file: u32) -> Result<usize> {
        // The format names a file before its first chunk.
        let unknown = || Error::Image(ImageError::Unnamed(file));
        lock(&self.files).get(&file).copied().ok_or_else(unknown)
    }

    fn go_on(&self) -> Result<()> {
        if self.watch.is_failing() { Err(Error::GivenUp) } else { Ok(()) }
    }

    fn take(&self) -> Result<Chunk> {
        self.watch.take(&self.ring).ok_or(Error::GivenUp)
    }
}

impl ImageSink for VramSink {
    type Lane = VramLane;

    fn lane(self: &Arc<Self>) -> Result<VramLane> {
        Ok(VramLane { sink: Arc::clone(self), chunk: None, senders: HashMap::new() })
    }

    fn file_begin(&self, file: u32, name: &FileName) -> Result<()> {
        let gpu = PagesFile::parse(name.as_str())
            .and_then(|pages| self.gpus.iter().position(|gpu| gpu.file == pages));
        let Some(gpu) = gpu else {
            return Err(Error::Misfit(format!(
                "{name} is in the image, and is not the contents of a GPU that is to be restored"
            )));
        };
        // Which of two counts is known only in the end, and by then both are in the GPU.
        let mut files = lock(&self.files);
        if files.values().any(|&known| known == gpu) {
            return Err(Error::Misfit(format!("{name} is in the image twice")));
        }
        files.insert(file, gpu);
        Ok(())
    }
}

/// What a reading thread has.
#[derive(Debug)]
pub struct VramLane {
    sink: Arc<VramSink>,
    /// The chunk that the payload was read into.
    chunk: Option<Chunk>,
    /// Its own ways to the workers: no lock for each chunk.
    senders: HashMap<usize, Sender<Write>>,
}

impl Lane for VramLane {
    fn piece_bytes(&self) -> Option<usize> {
        Some(self.sink.ring.chunk_bytes())
    }

    fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        let chunk = match self.chunk.take() {
            Some(chunk) => chunk,
            None => self.sink.take()?,
        };
        Ok(&mut self.chunk.insert(chunk)[..len])
    }

    fn chunk(&mut self, header: &ChunkHeader, _decompressed: Option<&[u8]>) -> Result<()> {
        let gpu = self.sink.gpu_of(header.file)?;
        let len = header.raw_len as usize;
        // Not kept while this lane waits for its shard: others may need it to go on.
        let chunk = self.chunk.take();
        if header.codec == Codec::Zero {
            drop(chunk);
            return self.zeros(gpu, header.offset, u64::from(header.raw_len));
        }
        let Some(chunk) = chunk else { return Ok(()) };
        let head = self.head(gpu, header.offset, &chunk[..len])?;
        if head == len {
            return Ok(());
        }
        let offset = header.offset + head as u64 - SIZE_BYTES;
        self.send(gpu, Write::Bytes { offset, chunk, range: head..len })
    }

    fn finish(self) -> Result<()> {
        Ok(())
    }
}

impl VramLane {
    fn zeros(&mut self, gpu: usize, offset: u64, len: u64) -> Result<()> {
        let zeros = [0; SIZE_LEN];
        let of_size = SIZE_BYTES.saturating_sub(offset).min(len);
        let of_size = usize::try_from(of_size).unwrap_or(usize::MAX);
        let head = self.head(gpu, offset, &zeros[..of_size])? as u64;
        if head == len {
            return Ok(());
        }
        self.send(gpu, Write::Zeros { offset: offset + head - SIZE_BYTES, len: len - head })
    }

    /// Takes what belongs to the size in front of the contents: how many of the bytes.
    fn head(&self, gpu: usize, offset: u64, bytes: &[u8]) -> Result<usize> {
        if offset >= SIZE_BYTES {
            return Ok(0);
        }
        let gpu = &self.sink.gpus[gpu];
        let mut size = lock(&gpu.size);
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let len = bytes.len().min(size.bytes.len() - at);
        size.bytes[at..at + len].copy_from_slice(&bytes[..len]);
        (at..at + len).for_each(|byte| size.seen |= 1 << byte);
        let (announced, file) = (u64::from_le_bytes(size.bytes), gpu.file);
        if size.seen == u8::MAX && announced != gpu.bytes {
            return Err(Error::Misfit(format!(
                "{file} announces {announced} bytes of contents, and the GPU has BOs of {}",
                gpu.bytes
            )));
        }
        Ok(len)
    }

    fn send(&mut self, gpu: usize, write: Write) -> Result<()> {
        if !self.senders.contains_key(&gpu) {
            let sender = lock(&self.sink.gpus[gpu].writes).clone().ok_or(Error::GivenUp)?;
            self.senders.insert(gpu, sender);
        }
        let sender = self.senders.get(&gpu).ok_or(Error::GivenUp)?;
        self.sink.watch.send(sender, write).ok_or(Error::GivenUp)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these is never half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
