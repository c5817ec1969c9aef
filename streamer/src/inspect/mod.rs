//! What is in an image: for programs as JSON, for people as a table.
//!
//! An [`Inspection`] is made from a stream, which is read to its end and verified on the way, or
//! from the index of an image in files, where no payload is read. Both say the same of an image.
//! Only what counts is counted: a file that another one of its name replaces is not.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use serde::Serialize;

use crate::{
    absorb::{Absorbed, ImageFormat, ImageSink, Lane, Progress, ShardStat, absorb},
    error::Result,
    format::{self, ChunkHeader, Codec, FileName, Manifest},
    seekable::SeekableImage,
    transport::ShardReader,
    verify::Scratch,
};

mod table;

/// What is in an image.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// `native` or `criu-image-streamer`.
    pub format: &'static str,
    /// The version of the format; criu-image-streamer's has none.
    pub version: Option<u32>,
    /// The image's id in hexadecimal digits, where the format has one.
    pub image: Option<String>,
    /// The program and version that wrote it.
    pub writer: String,
    /// When the capture began, where the format says it.
    pub created_unix_ms: Option<u64>,
    /// Whether every payload was read and is right, or only the indexes were.
    pub payloads_verified: bool,
    /// Bytes of each shard, in the order in which they were given.
    pub shards: Vec<u64>,
    /// Files that others of the same name replace; nothing else here counts them.
    pub superseded: usize,
    /// All files together.
    pub total: Totals,
    /// How the chunks are stored.
    pub codecs: Codecs,
    /// The files, in the order in which they were written.
    pub files: Vec<InspectedFile>,
}

/// Sums over chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Totals {
    /// How many.
    pub chunks: u64,
    /// Bytes of files that they stand for.
    pub raw_bytes: u64,
    /// Bytes of their payloads.
    pub stored_bytes: u64,
}

/// Sums for each way to store a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Codecs {
    /// As it is.
    pub raw: Totals,
    /// All zero: not stored, except by criu-image-streamer.
    pub zero: Totals,
    /// Compressed with LZ4.
    pub lz4: Totals,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InspectedFile {
    /// Its name.
    pub name: String,
    /// Its CRC-32, in 8 hexadecimal digits.
    pub crc32: String,
    /// Its chunks.
    #[serde(flatten)]
    pub totals: Totals,
}

impl Inspection {
    /// Reads an image from a stream, whole and once.
    pub fn of_stream(shards: Vec<Box<dyn ShardReader>>, progress: &Progress) -> Result<Self> {
        let tally = Arc::new(Tally::default());
        let Absorbed { format, manifest, shards } =
            absorb(shards, &tally, progress, &mut || Ok(()))?;
        let by_file = std::mem::take(&mut *tally.lock());
        let codecs = manifest.files.iter().filter_map(|file| by_file.get(&file.file));
        let codecs = codecs.copied().fold(Codecs::default(), Codecs::and);
        let mut inspection = Inspection::new(format, &manifest, codecs, &shards);
        inspection.payloads_verified = true;
        Ok(inspection)
    }

    /// From the index of an image in files, which have these sizes.
    pub fn of_index(image: &SeekableImage, shards: &[ShardStat]) -> Self {
        let mut codecs = Codecs::default();
        let manifest = image.manifest();
        for file in manifest.files.iter().filter_map(|file| image.file(file.name.as_str())) {
            file.chunks().for_each(|chunk| codecs.count(&chunk.record.header));
        }
        Inspection::new(ImageFormat::Native, manifest, codecs, shards)
    }

    /// From what is known of the files, of their chunks by codec, and of the shards.
    pub fn new(
        format: ImageFormat,
        manifest: &Manifest,
        mut codecs: Codecs,
        shards: &[ShardStat],
    ) -> Self {
        let native = format == ImageFormat::Native;
        if !native {
            codecs.zero.stored_bytes = codecs.zero.raw_bytes;
        }
        let files = manifest.files.iter().map(|file| InspectedFile {
            name: file.name.to_string(),
            crc32: format!("{:08x}", file.checksum.value),
            totals: Totals {
                chunks: file.chunks,
                raw_bytes: file.checksum.len,
                stored_bytes: file.stored_bytes,
            },
        });
        let files: Vec<_> = files.collect();
        let total = files.iter().map(|file| file.totals).fold(Totals::default(), Totals::and);
        Inspection {
            format: if native { "native" } else { "criu-image-streamer" },
            version: native.then_some(format::VERSION),
            image: native.then(|| manifest.image.to_string()),
            writer: manifest.end.writer.clone(),
            created_unix_ms: native.then_some(manifest.end.created_unix_ms),
            payloads_verified: false,
            shards: shards.iter().map(|shard| shard.bytes).collect(),
            superseded: manifest.end.superseded.len(),
            total,
            codecs,
            files,
        }
    }
}

impl Totals {
    fn and(self, other: Totals) -> Self {
        // The counts of a hostile image may be anything.
        Totals {
            chunks: self.chunks.saturating_add(other.chunks),
            raw_bytes: self.raw_bytes.saturating_add(other.raw_bytes),
            stored_bytes: self.stored_bytes.saturating_add(other.stored_bytes),
        }
    }

    /// How many bytes of files there are for each byte that is stored.
    #[allow(clippy::cast_precision_loss)] // shown with two digits
    pub fn ratio(&self) -> Option<f64> {
        (self.stored_bytes > 0).then(|| self.raw_bytes as f64 / self.stored_bytes as f64)
    }
}

impl Codecs {
    /// Counts a chunk.
    pub fn count(&mut self, header: &ChunkHeader) {
        let totals = match header.codec {
            Codec::Raw => &mut self.raw,
            Codec::Zero => &mut self.zero,
            Codec::Lz4 => &mut self.lz4,
        };
        *totals = totals.and(Totals {
            chunks: 1,
            raw_bytes: header.raw_len.into(),
            stored_bytes: header.stored_len.into(),
        });
    }

    fn and(self, other: Codecs) -> Self {
        Codecs {
            raw: self.raw.and(other.raw),
            zero: self.zero.and(other.zero),
            lz4: self.lz4.and(other.lz4),
        }
    }
}

/// Takes an image, and keeps the sums of each file.
#[derive(Debug, Default)]
struct Tally(Mutex<HashMap<u32, Codecs>>);

impl Tally {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Codecs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TallyLane {
    tally: Arc<Tally>,
    scratch: Scratch,
    by_file: HashMap<u32, Codecs>,
}

impl ImageSink for Tally {
    type Lane = TallyLane;

    fn lane(self: &Arc<Self>) -> Result<TallyLane> {
        let (scratch, by_file) = Default::default();
        Ok(TallyLane { tally: Arc::clone(self), scratch, by_file })
    }

    fn file_begin(&self, _file: u32, _name: &FileName) -> Result<()> {
        Ok(())
    }
}

impl Lane for TallyLane {
    fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        Ok(self.scratch.take(len))
    }

    fn chunk(&mut self, header: &ChunkHeader, _decompressed: Option<&[u8]>) -> Result<()> {
        self.by_file.entry(header.file).or_default().count(header);
        Ok(())
    }

    fn finish(self) -> Result<()> {
        let mut all = self.tally.lock();
        for (file, codecs) in self.by_file {
            let sum = all.entry(file).or_default();
            *sum = sum.and(codecs);
        }
        Ok(())
    }
}
