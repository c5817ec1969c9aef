//! Shards in memory, a sink that keeps the files, and reading with a limit on the time it may take.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, Read},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use vramstream_streamer::{
    Error, Result,
    absorb::{Absorbed, ImageSink, Lane, absorb},
    format::{ChunkHeader, Codec, FileName},
    transport::ShardReader,
};

/// The files of an image.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// How long reading a small image may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn name(name: &str) -> FileName {
    FileName::new(name).unwrap()
}

/// A shard in memory that gives at most `step` bytes at a time.
pub(crate) struct Bytes {
    name: String,
    bytes: io::Cursor<Vec<u8>>,
    step: usize,
}

impl Bytes {
    pub(crate) fn new(name: &str, bytes: Vec<u8>) -> Self {
        Bytes { name: name.to_owned(), bytes: io::Cursor::new(bytes), step: usize::MAX }
    }
}

impl Read for Bytes {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(self.step);
        self.bytes.read(&mut buf[..len])
    }
}

impl ShardReader for Bytes {
    fn describe(&self) -> &str {
        &self.name
    }
}

pub(crate) fn readers(shards: &[Vec<u8>], step: usize) -> Vec<Box<dyn ShardReader>> {
    let reader = |(number, bytes): (usize, &Vec<u8>)| {
        let (name, bytes) = (format!("shard {number}"), io::Cursor::new(bytes.clone()));
        Box::new(Bytes { name, bytes, step }) as Box<dyn ShardReader>
    };
    shards.iter().enumerate().map(reader).collect()
}

/// Keeps what it is given.
#[derive(Default)]
pub(crate) struct Keep(Mutex<HashMap<u32, (FileName, Vec<u8>)>>);

pub(crate) struct KeepLane {
    sink: Arc<Keep>,
    payload: Vec<u8>,
}

impl ImageSink for Keep {
    type Lane = KeepLane;

    fn lane(self: &Arc<Self>) -> Result<KeepLane> {
        Ok(KeepLane { sink: Arc::clone(self), payload: Vec::new() })
    }

    fn file_begin(&self, file: u32, name: &FileName) -> Result<()> {
        let before = self.0.lock().unwrap().insert(file, (name.clone(), Vec::new()));
        assert!(before.is_none(), "file {file} begins twice");
        Ok(())
    }
}

impl Lane for KeepLane {
    fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        self.payload.resize(len, 0xa5);
        Ok(&mut self.payload)
    }

    fn chunk(&mut self, header: &ChunkHeader, decompressed: Option<&[u8]>) -> Result<()> {
        let mut files = self.sink.0.lock().unwrap();
        let (_, bytes) = files.get_mut(&header.file).expect("a file that has begun");
        let (from, to) = (header.offset as usize, header.end() as usize);
        if bytes.len() < to {
            bytes.resize(to, 0);
        }
        match header.codec {
            Codec::Zero => bytes[from..to].fill(0),
            Codec::Raw => bytes[from..to].copy_from_slice(&self.payload),
            Codec::Lz4 => bytes[from..to].copy_from_slice(decompressed.unwrap()),
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        Ok(())
    }
}

/// Reads an image; panics if that takes too long.
pub(crate) fn read(shards: Vec<Box<dyn ShardReader>>) -> Result<(Absorbed, Files)> {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || {
        let sink = Arc::new(Keep::default());
        let absorbed = absorb(shards, &sink, &(Arc::new(|_, _| {}) as _), &mut || Ok(()));
        let _ = done.send(absorbed.map(|absorbed| {
            let kept = std::mem::take(&mut *sink.0.lock().unwrap());
            let files = absorbed.manifest.files.iter().map(|file| {
                let (name, bytes) = &kept[&file.file];
                assert_eq!(*name, file.name);
                assert_eq!(file.checksum, vramstream::stage::Crc32::of(bytes), "{name}");
                (name.to_string(), bytes.clone())
            });
            let files = files.collect();
            (absorbed, files)
        }));
    });
    outcome.recv_timeout(PATIENCE).expect("reading does not end")
}

pub(crate) fn read_bytes(shards: &[Vec<u8>]) -> Result<(Absorbed, Files)> {
    read(readers(shards, usize::MAX))
}

/// The error of reading these shards, as a person would see it.
pub(crate) fn refused(shards: &[Vec<u8>]) -> String {
    match read_bytes(shards) {
        Ok((absorbed, _)) => panic!("this was read: {absorbed:?}"),
        Err(error) => report(&error),
    }
}

pub(crate) fn report(error: &Error) -> String {
    error.report().to_string()
}

/// Bytes that do not compress and have no zero run.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2) | 1;
    let step = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()[3] | 1
    };
    (0..len).map(step).collect()
}
