//! Reads an index, believing nothing of it.

use prost::Message;
use vramstream::stage::Crc32;

use super::{
    super::{
        ChunkHeader, Codec, FileEnd, FileName, FormatError, ImageEnd, MAX_FILES, frame::file_number,
    },
    ChunkRecord, FLAG_CODEC, FLAG_FILE, FLAG_GAP, FLAG_OFFSET, FLAG_PAD, FLAG_RAW_LEN,
    FLAG_RESERVED, FileSet, Previous,
};
use crate::proto::format as pb;

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
    named: FileSet,
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
        // Counted before they are decoded: an entry of two bytes becomes one of fifty in memory.
        let not_protobuf = || malformed("an index table that is not protobuf");
        let (value, limit) = (count_files(table).ok_or_else(not_protobuf)?, MAX_FILES.into());
        if value > limit {
            return Err(FormatError::Limit { what: "number of files", value, limit, at });
        }
        let table = pb::IndexTable::decode(table).map_err(|_| not_protobuf())?;
        let image_end = table.image_end.ok_or(malformed("an index without totals"))?;
        let image_end = ImageEnd::from_pb(image_end, at)?;
        if table.chunks != image_end.shard_chunks {
            return Err(malformed("an index whose number of chunks is not the shard's"));
        }
        let mut named = FileSet::default();
        let files = table.files.into_iter().map(|file| {
            if !named.insert(file_number(file.file, at)?) {
                return Err(malformed("a file that is named twice"));
            }
            let end = file.end.map(|end| FileEnd::from_pb(end, at)).transpose()?;
            if end.is_some_and(|end| end.file != file.file) {
                return Err(malformed("an index entry with another file's end"));
            }
            let name =
                FileName::new(&file.name).map_err(|source| FormatError::Name { at, source })?;
            Ok(IndexedFile { file: file.file, name, end })
        });
        let files = files.collect::<Result<_, _>>()?;
        Ok(Index { files, image_end, named, records: records.to_vec(), index_at: at })
    }

    /// The chunks of the shard, in its order; ends after the first error.
    pub fn chunks(&self) -> impl Iterator<Item = Result<ChunkRecord, FormatError>> + '_ {
        let mut state = Previous::default();
        let mut rest = &self.records[..];
        let mut left = self.image_end.shard_chunks;
        // Payload bytes that the records ahead must have.
        let mut stored = Some(self.image_end.shard_stored_bytes);
        std::iter::from_fn(move || {
            if left == 0 {
                let trailing = !std::mem::take(&mut rest).is_empty();
                let wrong = match stored.take() {
                    _ if trailing => "an index longer than its chunks",
                    Some(1..) => "totals that are not those of the shard",
                    Some(0) | None => return None,
                };
                return Some(Err(self.malformed(wrong)));
            }
            left -= 1;
            let record = self.record(&mut rest, &mut state).and_then(|record| {
                let less = stored.and_then(|n| n.checked_sub(record.header.stored_len.into()));
                stored =
                    Some(less.ok_or(self.malformed("totals that are not those of the shard"))?);
                Ok(record)
            });
            if record.is_err() {
                (left, rest, stored) = (0, &[], None);
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
        if flags & FLAG_RESERVED != 0 {
            return Err(self.malformed("an index record with an unknown flag"));
        }
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
        if !self.named.contains(header.file) {
            return Err(self.malformed("a chunk of a file that was not named"));
        }
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

/// How many files an index table has; `None` where it is not protobuf.
fn count_files(mut table: &[u8]) -> Option<u64> {
    use prost::encoding::{DecodeContext, decode_key, skip_field};
    const FILES: u32 = 1;
    let mut count = 0;
    while !table.is_empty() {
        let (field, wire) = decode_key(&mut table).ok()?;
        skip_field(wire, field, &mut table, DecodeContext::default()).ok()?;
        count += u64::from(field == FILES);
    }
    Some(count)
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
