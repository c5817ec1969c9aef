//! Is the image whole? Collects what all shards say and answers once they have ended.
//!
//! Knows the rules under "When an image exists" in [the specification](super), and nothing of
//! payloads: whoever calls [`Assembly::chunk`] has checked the payload against the header's CRC.

use std::collections::HashMap;

use vramstream::stage::Crc32;

use super::{
    ChunkHeader, FileEnd, FileName, ImageEnd, ImageId, MAX_FILES, Prologue,
    runs::{Overlap, Runs},
};

/// Why shards do not make an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Shards of two dumps.
    #[error(
        "shard {shard} belongs to another image ({found}) than the first one read ({expected})"
    )]
    Foreign {
        /// Number of the shard.
        shard: u32,
        /// The image it is of.
        found: ImageId,
        /// The image the others are of.
        expected: ImageId,
    },
    /// Shards that disagree on how many there are.
    #[error(
        "shard {shard} says that the image has {found} shards, the first one read says {expected}"
    )]
    ShardCount {
        /// Number of the shard.
        shard: u32,
        /// The count it gives.
        found: u32,
        /// The count of the others.
        expected: u32,
    },
    /// A shard came twice.
    #[error("shard {0} was given twice")]
    ShardTwice(u32),
    /// Shards are missing.
    #[error("incomplete: shards {missing:?} of {count} are missing")]
    ShardsMissing {
        /// Their numbers.
        missing: Vec<u32>,
        /// How many there should be.
        count: u32,
    },
    /// No shard at all.
    #[error("incomplete: there is no shard")]
    NoShard,
    /// A shard did not get to its end.
    #[error("incomplete: shard {0} does not end in an ImageEnd")]
    NoEnd(u32),
    /// Shards that disagree on the totals.
    #[error("damaged: the totals at the end of shard {0} are not those of the others")]
    EndsDiffer(u32),
    /// More files than an image may have.
    #[error("refused: more than {MAX_FILES} files")]
    TooManyFiles,
    /// One number, two names.
    #[error("damaged: file {file} is called {first} and {second}")]
    Renamed {
        /// The number.
        file: u32,
        /// The name that came first.
        first: FileName,
        /// The other one.
        second: FileName,
    },
    /// A number without a name.
    #[error("damaged: file {0} has no name")]
    Unnamed(u32),
    /// Two live files of one name.
    #[error("damaged: there are two files called {0}")]
    NameTwice(FileName),
    /// A file's end came twice.
    #[error("damaged: {0} ends twice")]
    EndTwice(FileName),
    /// A chunk where there is one already.
    #[error("damaged: {name} has bytes {from} to {to} twice")]
    Overlap {
        /// The file.
        name: FileName,
        /// First byte of the chunk.
        from: u64,
        /// First byte after it.
        to: u64,
    },
    /// Bytes are missing.
    #[error("incomplete: {name} has {have} bytes of {}", size.map_or("an unknown number".into(), |n| n.to_string()))]
    FileIncomplete {
        /// The file.
        name: FileName,
        /// How many bytes came without a gap.
        have: u64,
        /// How many it should have, if its end came.
        size: Option<u64>,
    },
    /// The bytes are there and are not those that were dumped.
    #[error("damaged: the checksum of {0} does not match")]
    FileChecksum(FileName),
    /// The totals are not those of the files.
    #[error(
        "incomplete: the image has {files} files of {raw_bytes} bytes, its end says {expected_files} of {expected_raw_bytes}"
    )]
    Totals {
        /// Files found.
        files: u32,
        /// Their bytes.
        raw_bytes: u64,
        /// Files announced.
        expected_files: u32,
        /// Bytes announced.
        expected_raw_bytes: u64,
    },
    /// A file is superseded that is not there.
    #[error("damaged: file {0} is superseded and not in the image")]
    SupersededUnknown(u32),
}

/// A file of a complete image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSummary {
    /// Its number.
    pub file: u32,
    /// Its name.
    pub name: FileName,
    /// Its size and CRC-32.
    pub checksum: Crc32,
    /// Payload bytes of its chunks.
    pub stored_bytes: u64,
    /// Number of its chunks.
    pub chunks: u64,
}

/// What is in a complete image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The image.
    pub image: ImageId,
    /// Number of shards.
    pub shards: u32,
    /// The files, by number; the superseded ones are not among them.
    pub files: Vec<FileSummary>,
    /// The totals.
    pub end: ImageEnd,
}

/// Collects what the shards of one image say.
#[derive(Debug, Default)]
pub struct Assembly {
    image: Option<(ImageId, Vec<ShardState>)>,
    end: Option<ImageEnd>,
    files: HashMap<u32, FileState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShardState {
    Missing,
    Reading,
    Ended,
}

#[derive(Debug)]
struct FileState {
    name: FileName,
    end: Option<Crc32>,
    runs: Runs,
    stored_bytes: u64,
    chunks: u64,
}

impl Assembly {
    /// A shard begins.
    pub fn shard(&mut self, prologue: &Prologue) -> Result<(), ImageError> {
        let Prologue { image, shard, shards } = *prologue;
        let (expected, states) =
            self.image.get_or_insert_with(|| (image, vec![ShardState::Missing; shards as usize]));
        if *expected != image {
            return Err(ImageError::Foreign { shard, found: image, expected: *expected });
        }
        let expected = u32::try_from(states.len()).unwrap_or(u32::MAX);
        let state = states.get_mut(shard as usize).filter(|_| expected == shards);
        let Some(state) = state else {
            return Err(ImageError::ShardCount { shard, found: shards, expected });
        };
        if *state != ShardState::Missing {
            return Err(ImageError::ShardTwice(shard));
        }
        *state = ShardState::Reading;
        Ok(())
    }

    /// How many shards the image has, once one was seen.
    pub fn shards(&self) -> Option<u32> {
        self.image.as_ref().and_then(|(_, states)| u32::try_from(states.len()).ok())
    }

    /// A file number gets its name; whether it is a file not heard of before.
    pub fn file_begin(&mut self, file: u32, name: &FileName) -> Result<bool, ImageError> {
        if let Some(known) = self.files.get(&file) {
            if known.name != *name {
                let (first, second) = (known.name.clone(), name.clone());
                return Err(ImageError::Renamed { file, first, second });
            }
            return Ok(false);
        }
        if self.files.len() >= MAX_FILES as usize {
            return Err(ImageError::TooManyFiles);
        }
        self.files.insert(
            file,
            FileState {
                name: name.clone(),
                end: None,
                runs: Runs::default(),
                stored_bytes: 0,
                chunks: 0,
            },
        );
        Ok(true)
    }

    /// The name of a file.
    pub fn name(&self, file: u32) -> Option<&FileName> {
        self.files.get(&file).map(|state| &state.name)
    }

    /// A chunk has come and its payload is what the header says.
    pub fn chunk(&mut self, chunk: &ChunkHeader) -> Result<(), ImageError> {
        let state = self.files.get_mut(&chunk.file).ok_or(ImageError::Unnamed(chunk.file))?;
        state.stored_bytes += u64::from(chunk.stored_len);
        state.chunks += 1;
        state.runs.add(chunk.offset, chunk.checksum()).map_err(|Overlap { from, to }| {
            ImageError::Overlap { name: state.name.clone(), from, to }
        })
    }

    /// A file is whole, or will be when the other shards' chunks of it have come.
    pub fn file_end(&mut self, end: &FileEnd) -> Result<(), ImageError> {
        let state = self.files.get_mut(&end.file).ok_or(ImageError::Unnamed(end.file))?;
        if state.end.replace(end.checksum).is_some() {
            return Err(ImageError::EndTwice(state.name.clone()));
        }
        Ok(())
    }

    /// A shard has ended well.
    pub fn shard_end(&mut self, shard: u32, end: &ImageEnd) -> Result<(), ImageError> {
        if !self.end.get_or_insert_with(|| end.clone()).same_image(end) {
            return Err(ImageError::EndsDiffer(shard));
        }
        if let Some((_, states)) = &mut self.image
            && let Some(state) = states.get_mut(shard as usize)
        {
            *state = ShardState::Ended;
        }
        Ok(())
    }

    /// All shards that there are have been read: is it an image?
    pub fn finish(self) -> Result<Manifest, ImageError> {
        let (image, states) = self.image.ok_or(ImageError::NoShard)?;
        let numbered = || states.iter().zip(0u32..);
        let missing: Vec<u32> =
            numbered().filter(|(s, _)| **s == ShardState::Missing).map(|(_, n)| n).collect();
        let count = u32::try_from(states.len()).unwrap_or(u32::MAX);
        if !missing.is_empty() {
            return Err(ImageError::ShardsMissing { missing, count });
        }
        if let Some((_, shard)) = numbered().find(|(s, _)| **s != ShardState::Ended) {
            return Err(ImageError::NoEnd(shard));
        }
        let end = self.end.ok_or(ImageError::NoEnd(0))?;
        let mut files = self.files;
        for file in &end.superseded {
            files.remove(file).ok_or(ImageError::SupersededUnknown(*file))?;
        }
        let mut names = std::collections::HashSet::new();
        let mut summaries = Vec::with_capacity(files.len());
        for (file, state) in files {
            if !names.insert(state.name.clone()) {
                return Err(ImageError::NameTwice(state.name));
            }
            summaries.push(state.finish(file)?);
        }
        summaries.sort_unstable_by_key(|summary| summary.file);
        let found_files = u32::try_from(summaries.len()).unwrap_or(u32::MAX);
        let sizes = summaries.iter().map(|summary| summary.checksum.len);
        let raw_bytes = sizes.fold(0, u64::saturating_add);
        if (found_files, raw_bytes) != (end.files, end.raw_bytes) {
            return Err(ImageError::Totals {
                files: found_files,
                raw_bytes,
                expected_files: end.files,
                expected_raw_bytes: end.raw_bytes,
            });
        }
        Ok(Manifest { image, shards: count, files: summaries, end })
    }
}

impl FileState {
    fn finish(self, file: u32) -> Result<FileSummary, ImageError> {
        let FileState { name, end, runs, stored_bytes, chunks } = self;
        let size = end.map(|end| end.len);
        let whole = match runs.whole() {
            Ok(whole) => whole,
            Err(have) => return Err(ImageError::FileIncomplete { name, have, size }),
        };
        match end {
            Some(end) if end == whole => {
                Ok(FileSummary { file, name, checksum: whole, stored_bytes, chunks })
            }
            Some(end) if end.len == whole.len => Err(ImageError::FileChecksum(name)),
            _ => Err(ImageError::FileIncomplete { name, have: whole.len, size }),
        }
    }
}
