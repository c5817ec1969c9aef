//! Keeps an image in memory between its arrival and CRIU's questions.
//!
//! Payloads are kept as they came: compressed ones stay compressed, zeros take nothing. Large ones
//! are read from the shard straight into [`blocks`] that are mapped, filled, and then never written
//! again, so they can be handed to pipes by reference; a block is unmapped when the last piece in it
//! is dropped. Small ones are kept apart, so that an image of a hundred bytes does not hold a block.
//!
//! Everything counts against one limit, which is checked before memory is taken: the error comes
//! early and says what to do, instead of the kernel's out-of-memory killer.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use vramstream::ring::{ByteSize, page_bytes};

use crate::{
    absorb::{ImageSink, Lane},
    error::{Error, Result},
    format::{ChunkHeader, Codec, FileName, Manifest},
};

mod blocks;
use blocks::Blocks;

/// Payloads below this are kept apart from blocks.
const SMALL_BYTES: usize = 64 << 10;

/// A piece of a file, as it came.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Where in the file it starts.
    pub offset: u64,
    /// Bytes of the file it stands for.
    pub raw_len: u32,
    /// What is kept of it.
    pub content: Content,
}

/// What is kept of a piece.
#[derive(Debug, Clone)]
pub enum Content {
    /// Its bytes.
    Raw(Bytes),
    /// An LZ4 block that was checked: it gives the right bytes.
    Lz4(Bytes),
    /// Nothing: all bytes are zero.
    Zero,
}

/// A file of a whole image.
#[derive(Debug, Clone)]
pub struct StoredFile {
    /// Its size.
    pub size: u64,
    /// All of it, in order.
    pub pieces: Vec<Piece>,
}

/// An image in memory, while it comes.
#[derive(Debug)]
pub struct MemoryStore {
    files: Mutex<HashMap<u32, Vec<Piece>>>,
    limit_bytes: u64,
    held_bytes: AtomicU64,
}

impl MemoryStore {
    /// An empty one that will hold at most `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(MemoryStore {
            files: Mutex::default(),
            limit_bytes,
            held_bytes: AtomicU64::new(0),
        })
    }

    /// The files of the image, which `manifest` says is whole, by name.
    pub fn into_files(self: Arc<Self>, manifest: &Manifest) -> HashMap<FileName, StoredFile> {
        let mut files = std::mem::take(&mut *self.files());
        let stored = manifest.files.iter().map(|file| {
            let mut pieces = files.remove(&file.file).unwrap_or_default();
            pieces.sort_unstable_by_key(|piece| piece.offset);
            (file.name.clone(), StoredFile { size: file.checksum.len, pieces })
        });
        stored.collect()
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u32, Vec<Piece>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, bytes: usize) -> Result<()> {
        let held = self.held_bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if held <= self.limit_bytes {
            return Ok(());
        }
        Err(Error::Memory {
            what: format!(
                "the image does not fit into memory: more than {} bytes ({}) came from a source that can be read only once",
                self.limit_bytes,
                ByteSize(self.limit_bytes >> 20 << 20),
            ),
            option: "--memory-limit",
        })
    }

    fn push(&self, header: &ChunkHeader, content: Content) {
        let piece = Piece { offset: header.offset, raw_len: header.raw_len, content };
        self.files().entry(header.file).or_default().push(piece);
    }
}

impl ImageSink for MemoryStore {
    type Lane = StoreLane;

    fn lane(self: &Arc<Self>) -> Result<StoreLane> {
        Ok(StoreLane {
            store: Arc::clone(self),
            blocks: Blocks::new(),
            pending: Vec::new(),
            current: Current::Small(Vec::new()),
        })
    }

    fn file_begin(&self, _file: u32, _name: &FileName) -> Result<()> {
        Ok(())
    }
}

/// One shard's way into the store.
#[derive(Debug)]
pub struct StoreLane {
    store: Arc<MemoryStore>,
    blocks: Blocks,
    /// Chunks in the current block, which become pieces when it is full.
    pending: Vec<(ChunkHeader, Range<usize>)>,
    current: Current,
}

/// Where the payload is that was asked for last.
#[derive(Debug)]
enum Current {
    Small(Vec<u8>),
    Block(Range<usize>),
}

impl Lane for StoreLane {
    fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        if len < SMALL_BYTES {
            self.store.reserve(len + size_of::<Piece>())?;
            self.current = Current::Small(vec![0; len]);
            let Current::Small(small) = &mut self.current else { return Ok(&mut []) };
            return Ok(small);
        }
        // A page may be lost to alignment.
        self.store.reserve(len.next_multiple_of(page_bytes()))?;
        let range = match self.blocks.reserve(len) {
            Some(range) => range,
            None => {
                self.seal();
                self.blocks.next(len)?;
                self.blocks.reserve(len).unwrap_or_default()
            }
        };
        self.current = Current::Block(range.clone());
        Ok(self.blocks.bytes(range))
    }

    fn chunk(&mut self, header: &ChunkHeader, _decompressed: Option<&[u8]>) -> Result<()> {
        if header.codec == Codec::Zero {
            self.store.reserve(size_of::<Piece>())?;
            self.store.push(header, Content::Zero);
            return Ok(());
        }
        match &mut self.current {
            Current::Small(bytes) => {
                let bytes = Bytes::from(std::mem::take(bytes));
                self.store.push(header, content(header.codec, bytes));
            }
            Current::Block(range) => self.pending.push((*header, range.clone())),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.seal();
        Ok(())
    }
}

impl StoreLane {
    /// The block is full: from here on it is only read.
    fn seal(&mut self) {
        let Some(block) = self.blocks.take() else { return };
        let block = Bytes::from_owner(block);
        for (header, range) in self.pending.drain(..) {
            self.store.push(&header, content(header.codec, block.slice(range)));
        }
    }
}

fn content(codec: Codec, bytes: Bytes) -> Content {
    match codec {
        Codec::Raw => Content::Raw(bytes),
        Codec::Lz4 => Content::Lz4(bytes),
        Codec::Zero => Content::Zero,
    }
}
