//! Images read by a sink with little memory: chunks of any size come in pieces of a page, in the
//! chunks of a small ring that are handed to another thread, and what is damaged is noticed all the
//! same.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use vramstream::{
    ring::{Chunk, Ring, page_bytes},
    stage::{Compression, Crc32},
};
use vramstream_streamer::{
    Error, Result,
    absorb::{ImageSink, Lane, absorb},
    format::{ChunkHeader, Codec, FileName, MAX_CHUNK_BYTES},
    transport::ShardReader,
};

use crate::{
    markers,
    native_image::NativeImage,
    support::{Files, noise, read, readers, refused, report},
};

const PATIENCE: Duration = Duration::from_secs(10);

/// What goes from the threads that read to the one that keeps.
enum Piece {
    Bytes { file: u32, offset: u64, chunk: Chunk, len: usize },
    Zeros { file: u32, offset: u64, len: usize },
}

/// A sink with a ring of two pages.
struct Worker {
    ring: Ring,
    pieces: mpsc::Sender<Piece>,
    names: Mutex<HashMap<u32, FileName>>,
}

/// What the thread that keeps has: files, and how many pieces made them.
type Kept = (HashMap<u32, Vec<u8>>, usize);

fn worker() -> (Arc<Worker>, JoinHandle<Kept>) {
    let (pieces, inbox) = mpsc::channel();
    let keep = std::thread::spawn(move || {
        let (mut files, mut count) = (HashMap::<u32, Vec<u8>>::new(), 0);
        for piece in inbox {
            count += 1;
            let (file, offset, len, chunk) = match piece {
                Piece::Bytes { file, offset, chunk, len } => (file, offset, len, Some(chunk)),
                Piece::Zeros { file, offset, len } => (file, offset, len, None),
            };
            let file = files.entry(file).or_default();
            let from = offset as usize;
            file.resize(file.len().max(from + len), 0);
            if let Some(chunk) = chunk {
                file[from..from + len].copy_from_slice(&chunk[..len]);
            }
        }
        (files, count)
    });
    let ring = Ring::new(page_bytes(), 2).unwrap();
    (Arc::new(Worker { ring, pieces, names: Mutex::default() }), keep)
}

impl ImageSink for Worker {
    type Lane = WorkerLane;

    fn lane(self: &Arc<Self>) -> Result<WorkerLane> {
        let (ring, pieces) = (self.ring.clone(), self.pieces.clone());
        Ok(WorkerLane { ring, pieces, lent: None })
    }

    fn file_begin(&self, file: u32, name: &FileName) -> Result<()> {
        self.names.lock().unwrap().insert(file, name.clone());
        Ok(())
    }
}

struct WorkerLane {
    ring: Ring,
    pieces: mpsc::Sender<Piece>,
    lent: Option<Chunk>,
}

impl Lane for WorkerLane {
    fn piece_bytes(&self) -> Option<usize> {
        Some(self.ring.chunk_bytes())
    }

    fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        // None of two is kept while it waits, so two readers cannot wait for each other.
        self.lent = None;
        let chunk = self.ring.take(PATIENCE).expect("a chunk comes back");
        Ok(&mut self.lent.insert(chunk)[..len])
    }

    fn chunk(&mut self, header: &ChunkHeader, decompressed: Option<&[u8]>) -> Result<()> {
        assert!(decompressed.is_none());
        let (file, offset, len) = (header.file, header.offset, header.raw_len as usize);
        let piece = match header.codec {
            Codec::Zero => {
                // A payload that turned out to be zero: others may wait for its memory.
                self.lent = None;
                Piece::Zeros { file, offset, len }
            }
            Codec::Raw => {
                let chunk = self.lent.take().expect("a payload was asked for");
                assert_eq!(header.stored_len, header.raw_len);
                assert_eq!(header.checksum(), Crc32::of(&chunk[..len]));
                Piece::Bytes { file, offset, chunk, len }
            }
            Codec::Lz4 => panic!("a lane that takes pieces got a compressed chunk"),
        };
        self.pieces.send(piece).unwrap();
        Ok(())
    }

    fn finish(self) -> Result<()> {
        Ok(())
    }
}

/// Reads an image in pieces: the files, and how many pieces were handed over in any case.
fn read_in_pieces(shards: Vec<Box<dyn ShardReader>>) -> (Result<Files>, usize) {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || {
        let (worker, keep) = worker();
        let absorbed = absorb(shards, &worker, &(Arc::new(|_, _| {}) as _), &mut || Ok(()));
        let names = worker.names.lock().unwrap().clone();
        drop(worker);
        let (mut kept, count) = keep.join().unwrap();
        let files = absorbed.map(|absorbed| {
            let files = absorbed.manifest.files.iter().map(|file| {
                assert_eq!(names[&file.file], file.name);
                (file.name.to_string(), kept.remove(&file.file).unwrap_or_default())
            });
            files.collect()
        });
        let _ = done.send((files, count));
    });
    outcome.recv_timeout(PATIENCE).expect("reading does not end")
}

/// Two shards with a raw and a compressed chunk as large as can be, some that are no multiple of a
/// page, some smaller than one, and zeros.
fn large() -> (Vec<Vec<u8>>, Files) {
    let most = MAX_CHUNK_BYTES as usize;
    let raw = noise(most, 1);
    let text: Vec<u8> = b"all work and no play ".iter().copied().cycle().take(most).collect();
    let tail = noise(3 * page_bytes() + 5, 2);
    let mut image = NativeImage::new(9, 2, &["gpu.img", "text.img", "empty.img"]);
    image.chunk(0, 0, 0, &raw, Compression::None, Some(4096));
    image.chunk(0, 1, 0, &text, Compression::Lz4, None);
    image.zeros(1, 0, most as u64, 3 * MAX_CHUNK_BYTES);
    image.chunk(1, 0, 4 * most as u64, &tail, Compression::None, None);
    image.chunk(1, 1, most as u64, &text[..100], Compression::Lz4, None);
    let gpu = [&raw[..], &vec![0; 3 * most], &tail].concat();
    let text = [&text[..], &text[..100]].concat();
    image.end(0, 0, Crc32::of(&gpu));
    image.end(1, 1, Crc32::of(&text));
    image.end(1, 2, Crc32::default());
    let raw_bytes = (gpu.len() + text.len()) as u64;
    let files = [("gpu.img", gpu), ("text.img", text), ("empty.img", Vec::new())];
    let files = files.map(|(name, bytes)| (name.to_owned(), bytes));
    (image.finish(3, raw_bytes, &[]), files.into())
}

#[test]
fn chunks_of_any_size_go_through_two_pages() {
    let (shards, files) = large();
    assert!(shards[0].len() < (MAX_CHUNK_BYTES as usize) * 5 / 4, "the text was not compressed");
    let (got, pieces) = read_in_pieces(readers(&shards, 10_007));
    assert!(got.unwrap() == files);
    let pages = 2 * MAX_CHUNK_BYTES as usize / page_bytes();
    assert_eq!(pieces, pages + 4 + 1 + 1, "pieces of a page, the zeros as they are");
}

#[test]
fn records_of_the_other_format_come_in_pieces_as_well() {
    let (shards, files) = markers::sample();
    assert!(read_in_pieces(readers(&shards, 1000)).0.unwrap() == files);
}

/// One shard with one raw chunk of ten pages and a bit, behind a small one.
fn small() -> (Vec<u8>, usize, usize) {
    let bytes = noise(10 * page_bytes() + 10, 3);
    let mut image = NativeImage::new(9, 1, &["gpu.img"]);
    image.chunk(0, 0, 0, b"head", Compression::None, None);
    image.chunk(0, 0, 4, &bytes, Compression::None, None);
    let whole = [b"head", &bytes[..]].concat();
    image.end(0, 0, Crc32::of(&whole));
    let shard = image.finish(1, whole.len() as u64, &[]).remove(0);
    let at = shard.windows(64).position(|window| window == &bytes[..64]).unwrap();
    (shard, at, bytes.len())
}

#[test]
fn damage_in_any_piece_is_found_at_the_end_of_its_chunk() {
    let (shard, at, len) = small();
    let pieces_before_the_last = 1 + 10;
    for byte in [0, 1, page_bytes() - 1, page_bytes(), 5 * page_bytes(), len - 11, len - 1] {
        let mut damaged = shard.clone();
        damaged[at + byte] ^= 0x10;
        let (got, pieces) = read_in_pieces(readers(&[damaged.clone()], usize::MAX));
        let error = got.unwrap_err();
        let Error::Payload { file, offset, .. } = &error else { panic!("{error:?}") };
        assert_eq!((file.as_str(), *offset), ("gpu.img", 4), "byte {byte}");
        assert_eq!(report(&error), refused(&[damaged]), "as if it were read whole");
        assert_eq!(pieces, pieces_before_the_last, "byte {byte}");
    }
}

#[test]
fn a_damaged_compressed_chunk_is_not_begun() {
    let text = b"all work and no play ".repeat(page_bytes());
    for len in [100, text.len()] {
        let mut image = NativeImage::new(9, 1, &["text.img"]);
        image.chunk(0, 0, 0, &text[..len], Compression::Lz4, None);
        image.end(0, 0, Crc32::of(&text[..len]));
        let shard = image.finish(1, len as u64, &[]).remove(0);
        let at = shard.windows(8).position(|window| window == b"all work").unwrap();
        let mut damaged = shard.clone();
        damaged[at] ^= 0x10;
        assert!(read_in_pieces(readers(&[shard], usize::MAX)).0.is_ok());
        let (got, pieces) = read_in_pieces(readers(&[damaged], usize::MAX));
        assert!(matches!(got, Err(Error::Payload { .. })), "{got:?}");
        assert_eq!(pieces, 0);
    }
}

#[test]
fn a_shard_that_ends_in_a_piece_is_refused_as_if_it_were_read_whole() {
    let (shard, at, len) = small();
    for keep in [0, 1, page_bytes() - 1, page_bytes(), page_bytes() + 1, len - 11, len - 1] {
        let cut = [shard[..at + keep].to_vec()];
        let error = read_in_pieces(readers(&cut, 1000)).0.unwrap_err();
        let whole = read(readers(&cut, 1000)).unwrap_err();
        assert_eq!(report(&error), report(&whole), "{keep} bytes of the payload");
        assert!(report(&error).contains("the payload of a chunk"), "{}", report(&error));
    }
}
