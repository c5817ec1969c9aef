//! Reads the indexes and asks whether they make an image.

use std::{collections::HashSet, fs::File, os::unix::fs::FileExt};

use super::{Entry, SeekableImage, Shard};
use crate::{
    error::{Error, Result},
    format::{
        Assembly, FormatError, PROLOGUE_BYTES, Prologue,
        index::{self, INDEX_PREFIX_BYTES, Index, TRAILER_BYTES, Trailer},
    },
};

impl SeekableImage {
    /// Opens an image from all its shards, in any order, each with a name for messages. Reads the
    /// ends of the files, and no payload.
    pub fn open(shards: Vec<(String, File)>) -> Result<Self> {
        let mut assembly = Assembly::default();
        let mut entries = Vec::new();
        let mut numbered = Vec::with_capacity(shards.len());
        for (name, file) in shards {
            let shard = Shard { name, file };
            let prologue = shard.read_index(&mut assembly, &mut entries)?;
            numbered.push((prologue.shard, shard));
        }
        numbered.sort_unstable_by_key(|(number, _)| *number);
        // In the order of the files, so that every chunk continues the one before.
        entries.sort_unstable_by_key(|entry| (entry.file, entry.offset));
        for entry in &entries {
            assembly.chunk(&entry.located().record.header)?;
        }
        // From here on all shards are there once, so a shard's place is its number.
        let manifest = assembly.finish()?;
        entries.retain(|entry| manifest.end.superseded.binary_search(&entry.file).is_err());
        entries.shrink_to_fit();
        let mut files = std::collections::HashMap::with_capacity(manifest.files.len());
        let mut start = 0;
        for (place, summary) in manifest.files.iter().enumerate() {
            let of_file = |entry: &Entry| entry.file == summary.file;
            let rest = entries.get(start..).unwrap_or_default();
            let end = start + rest.partition_point(of_file);
            files.insert(summary.name.clone(), (place, start..end));
            start = end;
        }
        let shards = numbered.into_iter().map(|(_, shard)| shard).collect();
        Ok(SeekableImage { shards, manifest, entries, files })
    }
}

impl Shard {
    fn read_index(&self, assembly: &mut Assembly, entries: &mut Vec<Entry>) -> Result<Prologue> {
        let metadata =
            self.file.metadata().map_err(Error::io(|| format!("look at {}", self.name)))?;
        if !metadata.is_file() {
            let name = &self.name;
            return Err(Error::Usage(format!("{name} is not a file, so it can only be read once")));
        }
        let len = metadata.len();
        let prologue = Prologue::decode(&self.read_array(0, len)?).map_err(|e| self.refuse(e))?;
        assembly.shard(&prologue)?;
        let trailer = self.read_array(len.saturating_sub(TRAILER_BYTES as u64), len)?;
        let trailer = Trailer::decode(&trailer, len).map_err(|e| self.refuse(e))?;
        let prefix = self.read_array(trailer.index_at, len)?;
        let (body_len, crc) = index::index_len(&prefix, &trailer).map_err(|e| self.refuse(e))?;
        // Bounded: `index_len` has checked it against the limit and against the file.
        let mut body = vec![0; usize::try_from(body_len).unwrap_or(usize::MAX)];
        let body_at = trailer.index_at + INDEX_PREFIX_BYTES as u64;
        self.file.read_exact_at(&mut body, body_at).map_err(self.io(body_at))?;
        let index = Index::decode(&body, crc, trailer.index_at).map_err(|e| self.refuse(e))?;
        drop(body);
        self.take_index(&prologue, &index, trailer.index_at, assembly, entries)?;
        Ok(prologue)
    }

    fn take_index(
        &self,
        prologue: &Prologue,
        index: &Index,
        at: u64,
        assembly: &mut Assembly,
        entries: &mut Vec<Entry>,
    ) -> Result<()> {
        let malformed = |what| self.refuse(FormatError::Malformed { what, at });
        let mut named = HashSet::new();
        for file in &index.files {
            if !named.insert(file.file) {
                return Err(malformed("an index with a file twice"));
            }
            assembly.file_begin(file.file, &file.name)?;
            if let Some(end) = &file.end {
                assembly.file_end(end)?;
            }
        }
        for record in index.chunks() {
            let record = record.map_err(|e| self.refuse(e))?;
            let entry = Entry::new(prologue.shard, &record);
            entries.push(entry.ok_or_else(|| malformed("an index with an impossible header"))?);
        }
        assembly.shard_end(prologue.shard, &index.image_end)?;
        Ok(())
    }

    /// `N` bytes at a place, which a shorter file does not have.
    fn read_array<const N: usize>(&self, at: u64, len: u64) -> Result<[u8; N]> {
        if len < (PROLOGUE_BYTES + INDEX_PREFIX_BYTES + TRAILER_BYTES) as u64 {
            let what = "the image: its end is missing";
            return Err(self.refuse(FormatError::Truncated { what, at: len }));
        }
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).map_err(self.io(at))?;
        Ok(bytes)
    }
}
