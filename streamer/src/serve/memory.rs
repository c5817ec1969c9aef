//! Serves an image that is in memory.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use vramstream::stage;

use super::{ImageFiles, Pieces, PipeOut, Step, Took};
use crate::{
    error::{Error, Result},
    format::FileName,
    store::{Content, Piece, StoredFile},
};

/// The files of an image in memory.
pub struct MemoryFiles {
    files: Arc<HashMap<FileName, Entry>>,
    /// Larger files leave memory while they are read.
    reread_bytes: u64,
}

struct Entry {
    size: u64,
    /// The pieces, unless somebody is reading or has read them.
    pieces: Mutex<Option<Arc<[Piece]>>>,
}

impl MemoryFiles {
    /// Files of up to `reread_bytes` can be read again and again; larger ones once.
    pub fn new(files: HashMap<FileName, StoredFile>, reread_bytes: u64) -> Self {
        let entry = |file: StoredFile| Entry {
            size: file.size,
            pieces: Mutex::new(Some(file.pieces.into())),
        };
        let files = files.into_iter().map(|(name, file)| (name, entry(file))).collect();
        MemoryFiles { files: Arc::new(files), reread_bytes }
    }
}

impl ImageFiles for MemoryFiles {
    fn open(&self, name: &FileName) -> Result<Option<Box<dyn Pieces>>> {
        let Some(entry) = self.files.get(name) else { return Ok(None) };
        let mut pieces = entry.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if entry.size <= self.reread_bytes {
            let Some(pieces) = pieces.clone() else { return Ok(None) };
            return Ok(Some(Box::new(Shared {
                size: entry.size,
                pieces,
                next: 0,
                raw: Vec::new(),
            })));
        }
        let Some(pieces) = pieces.take() else {
            return Err(Error::Memory {
                what: format!(
                    "{name} ({} bytes) was asked for twice, and left memory when it was read the first time",
                    entry.size
                ),
                option: "--reread",
            });
        };
        Ok(Some(Box::new(Leaving {
            files: Arc::clone(&self.files),
            name: name.clone(),
            size: entry.size,
            left: pieces.iter().cloned().collect(),
            given: VecDeque::new(),
            given_bytes: 0,
            whole: true,
            raw: Vec::new(),
        })))
    }
}

/// A file that stays.
struct Shared {
    size: u64,
    pieces: Arc<[Piece]>,
    next: usize,
    raw: Vec<u8>,
}

impl Pieces for Shared {
    fn size(&self) -> u64 {
        self.size
    }

    fn give(&mut self, pipe: &mut PipeOut) -> Result<Step> {
        let Some(piece) = self.pieces.get(self.next) else { return Ok(Step::End) };
        self.next += 1;
        give(piece, pipe, &mut self.raw)?;
        Ok(if self.next == self.pieces.len() { Step::End } else { Step::More })
    }

    fn take(&mut self, out: &mut [u8]) -> Result<Took> {
        let Some(piece) = self.pieces.get(self.next) else { return Ok(Took::End) };
        let took = take(piece, out)?;
        if !matches!(took, Took::Larger(_)) {
            self.next += 1;
        }
        Ok(took)
    }

    fn read_all(&mut self, out: &mut Vec<u8>) -> Result<()> {
        self.pieces.iter().try_for_each(|piece| append(piece, out))
    }
}

/// A file that leaves memory as it is read. What the pipe may still hold is kept, so that a client
/// that opens it and closes it unread has taken nothing away.
struct Leaving {
    files: Arc<HashMap<FileName, Entry>>,
    name: FileName,
    size: u64,
    left: VecDeque<Piece>,
    given: VecDeque<Piece>,
    given_bytes: u64,
    whole: bool,
    raw: Vec<u8>,
}

impl Pieces for Leaving {
    fn size(&self) -> u64 {
        self.size
    }

    fn give(&mut self, pipe: &mut PipeOut) -> Result<Step> {
        let Some(piece) = self.left.pop_front() else { return Ok(Step::End) };
        let given = give(&piece, pipe, &mut self.raw);
        self.given_bytes += u64::from(piece.raw_len);
        self.given.push_back(piece);
        given?;
        // Whatever is further back than the pipe is long has been read.
        let keep = pipe.capacity();
        while let Some(oldest) = self.given.front()
            && !pipe.is_closed()
            && self.given_bytes - u64::from(oldest.raw_len) >= keep
        {
            self.given_bytes -= u64::from(oldest.raw_len);
            self.given.pop_front();
            self.whole = false;
        }
        Ok(if self.left.is_empty() { Step::End } else { Step::More })
    }

    fn take(&mut self, out: &mut [u8]) -> Result<Took> {
        let Some(piece) = self.left.front() else { return Ok(Took::End) };
        let took = take(piece, out)?;
        if !matches!(took, Took::Larger(_)) {
            self.left.pop_front();
            // It has left, so the file cannot be read again.
            self.whole = false;
        }
        Ok(took)
    }

    fn read_all(&mut self, out: &mut Vec<u8>) -> Result<()> {
        self.left.iter().try_for_each(|piece| append(piece, out))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if !self.whole {
            return;
        }
        if let Some(entry) = self.files.get(&self.name) {
            let pieces = self.given.drain(..).chain(self.left.drain(..)).collect();
            *entry.pieces.lock().unwrap_or_else(PoisonError::into_inner) = Some(pieces);
        }
    }
}

fn give(piece: &Piece, pipe: &mut PipeOut, raw: &mut Vec<u8>) -> Result<()> {
    match &piece.content {
        Content::Raw(bytes) => pipe.refer(bytes),
        Content::Zero => pipe.zeros(piece.raw_len.into()),
        Content::Lz4(stored) => {
            decompress(stored, piece.raw_len, raw)?;
            pipe.copy(raw)
        }
    }
}

fn take(piece: &Piece, out: &mut [u8]) -> Result<Took> {
    let len = piece.raw_len as usize;
    let (stored, is_raw) = match &piece.content {
        Content::Zero => return Ok(Took::Zeros(piece.raw_len.into())),
        Content::Raw(bytes) => (bytes, true),
        Content::Lz4(stored) => (stored, false),
    };
    let Some(out) = out.get_mut(..len) else { return Ok(Took::Larger(len)) };
    match is_raw {
        true => out.copy_from_slice(stored),
        false if stage::decompress_lz4(stored, out) => {}
        false => return Err(changed()),
    }
    Ok(Took::Bytes(len))
}

fn append(piece: &Piece, out: &mut Vec<u8>) -> Result<()> {
    match &piece.content {
        Content::Raw(bytes) => out.extend_from_slice(bytes),
        Content::Zero => out.resize(out.len() + piece.raw_len as usize, 0),
        Content::Lz4(stored) => {
            let mut raw = Vec::new();
            decompress(stored, piece.raw_len, &mut raw)?;
            out.extend_from_slice(&raw);
        }
    }
    Ok(())
}

fn decompress(stored: &[u8], raw_len: u32, raw: &mut Vec<u8>) -> Result<()> {
    raw.resize(raw_len as usize, 0);
    if stage::decompress_lz4(stored, raw) {
        return Ok(());
    }
    Err(changed())
}

/// It was decompressed once, to check it.
fn changed() -> Error {
    Error::Faulty("a chunk in memory has changed since it was checked")
}

/// Files of which one is another.
pub(super) struct Replaced {
    others: Arc<dyn ImageFiles>,
    name: FileName,
    content: Bytes,
}

impl Replaced {
    pub(super) fn new(others: Arc<dyn ImageFiles>, name: FileName, content: Bytes) -> Self {
        Replaced { others, name, content }
    }
}

impl ImageFiles for Replaced {
    fn open(&self, name: &FileName) -> Result<Option<Box<dyn Pieces>>> {
        if *name != self.name {
            return self.others.open(name);
        }
        let size = self.content.len() as u64;
        let raw_len = u32::try_from(size).unwrap_or(u32::MAX);
        let piece = Piece { offset: 0, raw_len, content: Content::Raw(self.content.clone()) };
        Ok(Some(Box::new(Shared { size, pieces: [piece].into(), next: 0, raw: Vec::new() })))
    }
}
