//! Opens an image from shards that can be read at any place, by their indexes alone, and reads one
//! chunk at a time.
//!
//! [`SeekableImage::open`] promises what [the format](crate::format) calls an image, as far as it
//! can be told without the payloads: all shards are there once and end well, every file is covered
//! without gap or overlap, and the checksums of its chunks combine to that of the file. What the
//! payloads are is checked when they are read: [`SeekableImage::read_chunk`] returns bytes whose
//! checksum is the index's, or an error. So whoever has read all chunks has verified the image.
//!
//! It must not know where the shards come from, who wants the bytes, or in which order.

use std::{collections::HashMap, fs::File, ops::Range};

use crate::{
    error::Error,
    format::{FileName, FileSummary, FormatError, Manifest, index::ChunkRecord},
};

mod open;
mod read;
mod table;
#[cfg(test)]
mod tests;

pub use read::{ChunkBytes, Scratch};
use table::Entry;

/// An image whose files can be read in any order. Reading needs no lock: threads share it.
#[derive(Debug)]
pub struct SeekableImage {
    /// By their number.
    shards: Vec<Shard>,
    manifest: Manifest,
    /// Of the files that count; by file, then by offset.
    entries: Vec<Entry>,
    /// For each file of the manifest, its place there and its entries.
    files: HashMap<FileName, (usize, Range<usize>)>,
}

#[derive(Debug)]
struct Shard {
    /// For messages.
    name: String,
    file: File,
}

impl Shard {
    fn io<E: Into<std::io::Error>>(&self, at: u64) -> impl FnOnce(E) -> Error {
        Error::io(move || format!("read {} at byte {at}", self.name))
    }

    fn refuse(&self, error: FormatError) -> Error {
        Error::shard(&self.name)(error)
    }
}

/// A chunk of a file, and the number of the shard it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// Number of the shard.
    pub shard: u32,
    /// Where it is there, and what it is.
    pub record: ChunkRecord,
}

/// One file of an image.
#[derive(Debug, Clone, Copy)]
pub struct SeekableFile<'a> {
    /// Its name, size and checksum.
    pub summary: &'a FileSummary,
    entries: &'a [Entry],
}

impl SeekableFile<'_> {
    /// Its chunks in the order of the file: the first starts at byte 0, each of the others where
    /// the one before ends.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = Located> + '_ {
        self.entries.iter().map(Entry::located)
    }

    /// The chunk that has this byte of the file; `None` at and past its end.
    pub fn chunk_at(&self, offset: u64) -> Option<Located> {
        let after = self.entries.partition_point(|entry| entry.offset <= offset);
        let chunk = self.entries.get(after.checked_sub(1)?)?.located();
        (offset < chunk.record.header.end()).then_some(chunk)
    }
}

impl SeekableImage {
    /// What is in the image.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// A file by its name.
    pub fn file(&self, name: &str) -> Option<SeekableFile<'_>> {
        let (place, entries) = self.files.get(name)?;
        let summary = self.manifest.files.get(*place)?;
        Some(SeekableFile { summary, entries: self.entries.get(entries.clone())? })
    }

    /// How much memory it takes to know where everything is, about.
    pub fn memory_bytes(&self) -> usize {
        let names: usize = self.manifest.files.iter().map(|file| file.name.as_str().len()).sum();
        let per_file = size_of::<FileSummary>() + size_of::<(FileName, (usize, Range<usize>))>();
        self.entries.capacity() * size_of::<Entry>()
            + self.manifest.files.capacity() * per_file
            + names
    }
}
