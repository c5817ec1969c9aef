//! The index at the end of a shard: where every chunk is, so that one file can be read without the
//! others.
//!
//! A chunk's record is a flag byte, then the fields that the flags ask for, in this order, as
//! LEB128 varints, then the CRC-32 of the raw bytes in 4 bytes:
//!
//! | flag | field if set | otherwise |
//! |---|---|---|
//! | bits 0 to 1 | | the codec |
//! | bit 2 | file number | the previous record's |
//! | bit 3 | offset | where the previous record ended |
//! | bit 4 | raw length | the previous record's |
//! | bit 5 | gap: bytes of other frames before this frame | 0 |
//! | bit 6 | padding | 0 |
//! | bit 7 | must be 0 | |
//! | | header length, prefix included (always) | |
//! | | stored length (only codec lz4) | from codec and raw length |
//!
//! "Previous" for the first record is file 0, offset 0, length 0, and a frame that ended at byte
//! [`PROLOGUE_BYTES`]. Some ten bytes for a chunk: the index of a terabyte in 1 MiB chunks takes
//! 10 MB of the writer's memory.

use bytes::{BufMut, BytesMut};
use prost::Message;
use vramstream::stage::Crc32;

use super::{
    ChunkHeader, Codec, FileEnd, FileName, FormatError, ImageEnd, MAX_FILES, MAX_INDEX_BYTES,
    PROLOGUE_BYTES, frame::file_number,
};
use crate::proto::format as pb;

/// Size of what stands in front of the index: its length and CRC-32.
pub const INDEX_PREFIX_BYTES: usize = 12;
/// Size of the trailer.
pub const TRAILER_BYTES: usize = 32;

const TRAILER_MAGIC: [u8; 8] = *b"VRAMSEND";

const FLAG_CODEC: u8 = 0b11;
const FLAG_FILE: u8 = 1 << 2;
const FLAG_OFFSET: u8 = 1 << 3;
const FLAG_RAW_LEN: u8 = 1 << 4;
const FLAG_GAP: u8 = 1 << 5;
const FLAG_PAD: u8 = 1 << 6;

/// Where a chunk is in its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRecord {
    /// The chunk's header.
    pub header: ChunkHeader,
    /// Where its frame starts.
    pub frame_at: u64,
    /// Bytes of prefix and header.
    pub frame_len: u64,
}

impl ChunkRecord {
    /// Where its payload starts.
    pub fn payload_at(&self) -> u64 {
        self.frame_at + self.frame_len + u64::from(self.header.pad)
    }

    fn end(&self) -> u64 {
        self.payload_at() + u64::from(self.header.stored_len)
    }
}

/// A file that a shard names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedFile {
    /// Its number.
    pub file: u32,
    /// Its name.
    pub name: FileName,
    /// Its size and checksum, where this shard has its end.
    pub end: Option<FileEnd>,
}

/// What an index says, but for the chunks, which [`Index::chunks`] reads out one by one.
#[derive(Debug, Clone)]
pub struct Index {
    /// Files that have a chunk or their end in this shard.
    pub files: Vec<IndexedFile>,
    /// The totals.
    pub image_end: ImageEnd,
    records: Vec<u8>,
    index_at: u64,
}

impl Index {
    /// Reads an index (what follows its prefix) that starts at byte `at` of its shard, and checks it
    /// against the CRC-32 of the prefix.
    pub fn decode(body: &[u8], crc: u32, at: u64) -> Result<Self, FormatError> {
        let malformed = |what| FormatError::Malformed { what, at };
        if Crc32::of(body).value != crc {
            return Err(FormatError::Checksum { what: "index", at });
        }
        let (table_len, rest) =
            body.split_first_chunk::<4>().ok_or(malformed("an index without a table"))?;
        let (table, records) = rest
            .split_at_checked(u32::from_le_bytes(*table_len) as usize)
            .ok_or(malformed("an index shorter than its table"))?;
        let table = pb::IndexTable::decode(table)
            .map_err(|_| malformed("an index table that is not protobuf"))?;
        if table.files.len() > MAX_FILES as usize {
            let (value, limit) = (table.files.len() as u64, MAX_FILES.into());
            return Err(FormatError::Limit { what: "number of files", value, limit, at });
        }
        let image_end = table.image_end.ok_or(malformed("an index without totals"))?;
        let image_end = ImageEnd::from_pb(image_end, at)?;
        if table.chunks != image_end.shard_chunks {
            return Err(malformed("an index whose number of chunks is not the shard's"));
        }
        let files = table.files.into_iter().map(|file| {
            let end = file.end.map(|end| FileEnd::from_pb(end, at)).transpose()?;
            if end.is_some_and(|end| end.file != file.file) {
                return Err(malformed("an index entry with another file's end"));
            }
            let name =
                FileName::new(&file.name).map_err(|source| FormatError::Name { at, source })?;
            Ok(IndexedFile { file: file_number(file.file, at)?, name, end })
        });
        let files = files.collect::<Result<_, _>>()?;
        Ok(Index { files, image_end, records: records.to_vec(), index_at: at })
    }

    /// The chunks of the shard, in its order; ends after the first error.
    pub fn chunks(&self) -> impl Iterator<Item = Result<ChunkRecord, FormatError>> + '_ {
        let mut state = Previous::default();
        let mut rest = &self.records[..];
        let mut left = self.image_end.shard_chunks;
        std::iter::from_fn(move || {
            if left == 0 {
                let trailing = !std::mem::take(&mut rest).is_empty();
                return trailing.then(|| Err(self.malformed("an index longer than its chunks")));
            }
            left -= 1;
            let record = self.record(&mut rest, &mut state);
            if record.is_err() {
                (left, rest) = (0, &[]);
            }
            Some(record)
        })
    }

    fn malformed(&self, what: &'static str) -> FormatError {
        FormatError::Malformed { what, at: self.index_at }
    }

    fn record(&self, rest: &mut &[u8], last: &mut Previous) -> Result<ChunkRecord, FormatError> {
        let cut = || self.malformed("an index record that is cut");
        let (&flags, after) = rest.split_first().ok_or_else(cut)?;
        *rest = after;
        let mut field = |wanted: bool, otherwise: u64| {
            if wanted { varint(rest).ok_or_else(cut) } else { Ok(otherwise) }
        };
        let narrow =
            |n: u64| u32::try_from(n).map_err(|_| self.malformed("an index field past 32 bits"));
        let file = narrow(field(flags & FLAG_FILE != 0, last.file.into())?)?;
        let offset = field(flags & FLAG_OFFSET != 0, last.offset_end)?;
        let raw_len = narrow(field(flags & FLAG_RAW_LEN != 0, last.raw_len.into())?)?;
        let gap = field(flags & FLAG_GAP != 0, 0)?;
        let pad = narrow(field(flags & FLAG_PAD != 0, 0)?)?;
        let frame_len = field(true, 0)?;
        let (codec, stored_len) = match flags & FLAG_CODEC {
            0 => (Codec::Raw, raw_len),
            1 => (Codec::Zero, 0),
            2 => (Codec::Lz4, narrow(field(true, 0)?)?),
            codec => return Err(FormatError::Codec { codec: codec.into(), at: self.index_at }),
        };
        let (crc, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        *rest = after;
        let crc = u32::from_le_bytes(*crc);
        let header = ChunkHeader { file, offset, raw_len, stored_len, codec, crc, pad };
        let header = header.checked(self.index_at)?;
        // Sums of numbers from outside: bound them by the place of the index before adding.
        if gap > self.index_at || frame_len > self.index_at {
            return Err(self.malformed("an index record past the index"));
        }
        let record = ChunkRecord { header, frame_at: last.frame_end + gap, frame_len };
        if record.end() > self.index_at {
            return Err(self.malformed("an index record past the index"));
        }
        last.follow(&record);
        Ok(record)
    }
}

/// What a record is told relative to.
#[derive(Debug)]
struct Previous {
    file: u32,
    offset_end: u64,
    raw_len: u32,
    frame_end: u64,
}

impl Default for Previous {
    fn default() -> Self {
        Previous { file: 0, offset_end: 0, raw_len: 0, frame_end: PROLOGUE_BYTES as u64 }
    }
}

impl Previous {
    fn follow(&mut self, record: &ChunkRecord) {
        self.file = record.header.file;
        self.offset_end = record.header.end();
        self.raw_len = record.header.raw_len;
        self.frame_end = record.end();
    }
}

/// Collects the index of a shard while it is written.
#[derive(Debug, Default)]
pub(super) struct IndexBuilder {
    files: Vec<(u32, FileName)>,
    ends: Vec<FileEnd>,
    known: FileSet,
    records: Vec<u8>,
    chunks: u64,
    stored_bytes: u64,
    last: Previous,
}

impl IndexBuilder {
    pub(super) fn bytes(&self) -> usize {
        let per_file = size_of::<(u32, FileName)>() + size_of::<FileEnd>();
        self.records.capacity() + self.files.len() * per_file
    }

    pub(super) fn chunks(&self) -> u64 {
        self.chunks
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    pub(super) fn knows(&self, file: u32) -> bool {
        self.known.contains(file)
    }

    pub(super) fn file_begin(&mut self, file: u32, name: &FileName) {
        if self.known.insert(file) {
            self.files.push((file, name.clone()));
        }
    }

    pub(super) fn file_end(&mut self, end: FileEnd) {
        self.ends.push(end);
    }

    pub(super) fn chunk(
        &mut self,
        header: &ChunkHeader,
        frame_at: u64,
        frame_len: u64,
    ) -> Result<(), FormatError> {
        // The table of files and the last record come on top; half leaves room for both.
        if self.records.len() as u64 >= MAX_INDEX_BYTES / 2 {
            let (value, limit) = (self.records.len() as u64, MAX_INDEX_BYTES / 2);
            return Err(FormatError::Limit {
                what: "index of this shard",
                value,
                limit,
                at: frame_at,
            });
        }
        let gap = frame_at - self.last.frame_end;
        let mut flags = match header.codec {
            Codec::Raw => 0,
            Codec::Zero => 1,
            Codec::Lz4 => 2,
        };
        let at = self.records.len();
        self.records.push(0);
        let mut field = |flag: u8, differs: bool, value: u64| {
            if differs {
                flags |= flag;
                put_varint(&mut self.records, value);
            }
        };
        field(FLAG_FILE, header.file != self.last.file, header.file.into());
        field(FLAG_OFFSET, header.offset != self.last.offset_end, header.offset);
        field(FLAG_RAW_LEN, header.raw_len != self.last.raw_len, header.raw_len.into());
        field(FLAG_GAP, gap != 0, gap);
        field(FLAG_PAD, header.pad != 0, header.pad.into());
        field(0, true, frame_len);
        field(0, header.codec == Codec::Lz4, header.stored_len.into());
        self.records[at] = flags;
        self.records.extend_from_slice(&header.crc.to_le_bytes());
        self.chunks += 1;
        self.stored_bytes += u64::from(header.stored_len);
        self.last.follow(&ChunkRecord { header: *header, frame_at, frame_len });
        Ok(())
    }

    /// Appends the index, which starts at byte `at` of the shard, and the trailer.
    pub(super) fn finish(mut self, end: &ImageEnd, at: u64, out: &mut BytesMut) {
        self.ends.sort_unstable_by_key(|end| end.file);
        let end_of = |file: u32| {
            let found = self.ends.binary_search_by_key(&file, |end| end.file).ok()?;
            Some(self.ends[found].to_pb())
        };
        let files = self.files.iter().map(|(file, name)| pb::IndexFile {
            file: *file,
            name: name.as_str().to_owned(),
            end: end_of(*file),
        });
        let table = pb::IndexTable {
            files: files.collect(),
            chunks: self.chunks,
            image_end: Some(end.to_pb()),
        };
        let start = out.len();
        out.put_bytes(0, INDEX_PREFIX_BYTES);
        // At most MAX_FILES entries of some 300 bytes each: far below 32 bits.
        out.put_u32_le(u32::try_from(table.encoded_len()).unwrap_or(u32::MAX));
        table.encode_raw(out);
        out.put_slice(&self.records);
        let body = &out[start + INDEX_PREFIX_BYTES..];
        let (len, crc) = (body.len() as u64, Crc32::of(body).value);
        out[start..start + 8].copy_from_slice(&len.to_le_bytes());
        out[start + 8..start + 12].copy_from_slice(&crc.to_le_bytes());
        let shard_len = at + (out.len() - start + TRAILER_BYTES) as u64;
        out.put_slice(&Trailer { index_at: at, shard_len }.encode());
    }
}

/// The prefix of an index: length and CRC-32 of what follows.
pub(super) fn decode_prefix(
    bytes: &[u8; INDEX_PREFIX_BYTES],
    at: u64,
) -> Result<(u64, u32), FormatError> {
    let (len, crc) = bytes.split_at(8);
    let len = len.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
    let crc = crc.iter().rev().fold(0, |n, &b| n << 8 | u32::from(b));
    if len > MAX_INDEX_BYTES {
        return Err(FormatError::Limit {
            what: "length of the index",
            value: len,
            limit: MAX_INDEX_BYTES,
            at,
        });
    }
    Ok((len, crc))
}

/// The last bytes of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Where the index starts.
    pub index_at: u64,
    /// Length of the whole shard.
    pub shard_len: u64,
}

impl Trailer {
    fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut out = [0; TRAILER_BYTES];
        out[..8].copy_from_slice(&self.index_at.to_le_bytes());
        out[8..16].copy_from_slice(&self.shard_len.to_le_bytes());
        let crc = Crc32::of(&out[..20]).value;
        out[20..24].copy_from_slice(&crc.to_le_bytes());
        out[24..].copy_from_slice(&TRAILER_MAGIC);
        out
    }

    /// Reads the trailer of a shard of `shard_len` bytes.
    pub fn decode(bytes: &[u8; TRAILER_BYTES], shard_len: u64) -> Result<Self, FormatError> {
        let at = shard_len.saturating_sub(TRAILER_BYTES as u64);
        let word = |range: std::ops::Range<usize>| {
            bytes[range].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
        };
        if bytes[24..] != TRAILER_MAGIC {
            return Err(FormatError::Truncated {
                what: "the image: it has no trailer",
                at: shard_len,
            });
        }
        if word(20..24) != u64::from(Crc32::of(&bytes[..20]).value) || word(16..20) != 0 {
            return Err(FormatError::Checksum { what: "trailer", at });
        }
        let trailer = Trailer { index_at: word(0..8), shard_len: word(8..16) };
        let first = (PROLOGUE_BYTES + TRAILER_BYTES + INDEX_PREFIX_BYTES) as u64;
        if trailer.shard_len != shard_len {
            return Err(FormatError::Malformed { what: "a trailer that gives another length", at });
        }
        if shard_len < first
            || trailer.index_at > shard_len - (TRAILER_BYTES + INDEX_PREFIX_BYTES) as u64
        {
            return Err(FormatError::Malformed {
                what: "a trailer whose index is not in the shard",
                at,
            });
        }
        Ok(trailer)
    }
}

/// Reads the index prefix of a shard that is open at its end; the index must fill the place between
/// its start and the trailer.
pub fn index_len(
    prefix: &[u8; INDEX_PREFIX_BYTES],
    trailer: &Trailer,
) -> Result<(u64, u32), FormatError> {
    let (len, crc) = decode_prefix(prefix, trailer.index_at)?;
    let end = trailer.shard_len - TRAILER_BYTES as u64;
    if trailer.index_at + INDEX_PREFIX_BYTES as u64 + len != end {
        let at = trailer.index_at;
        return Err(FormatError::Malformed {
            what: "an index that does not end at the trailer",
            at,
        });
    }
    Ok((len, crc))
}

/// A set of file numbers, a bit for each.
#[derive(Debug, Default)]
pub(super) struct FileSet(Vec<u64>);

impl FileSet {
    pub(super) fn contains(&self, file: u32) -> bool {
        self.0.get(file as usize / 64).is_some_and(|word| word >> (file % 64) & 1 == 1)
    }

    /// Adds a number below [`MAX_FILES`]; whether it was new.
    pub(super) fn insert(&mut self, file: u32) -> bool {
        let word = file as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let new = !self.contains(file);
        self.0[word] |= 1 << (file % 64);
        new
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low & 0x7f);
            break;
        }
        out.push(low | 0x80);
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
