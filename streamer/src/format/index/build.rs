//! Collects the index of a shard while it is written.

use bytes::{BufMut, BytesMut};
use prost::Message;
use vramstream::stage::Crc32;

use super::{
    super::{ChunkHeader, Codec, FileEnd, FileName, FormatError, ImageEnd, MAX_INDEX_BYTES},
    ChunkRecord, FLAG_FILE, FLAG_GAP, FLAG_OFFSET, FLAG_PAD, FLAG_RAW_LEN, FileSet,
    INDEX_PREFIX_BYTES, Previous, TRAILER_BYTES, Trailer,
};
use crate::proto::format as pb;

/// The index so far.
#[derive(Debug, Default)]
pub(in super::super) struct IndexBuilder {
    files: Vec<(u32, FileName)>,
    ends: Vec<FileEnd>,
    known: FileSet,
    records: Vec<u8>,
    chunks: u64,
    stored_bytes: u64,
    last: Previous,
}

impl IndexBuilder {
    pub(in super::super) fn bytes(&self) -> usize {
        let per_file = size_of::<(u32, FileName)>() + size_of::<FileEnd>();
        self.records.capacity() + self.files.len() * per_file
    }

    pub(in super::super) fn chunks(&self) -> u64 {
        self.chunks
    }

    pub(in super::super) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    pub(in super::super) fn knows(&self, file: u32) -> bool {
        self.known.contains(file)
    }

    pub(in super::super) fn file_begin(&mut self, file: u32, name: &FileName) {
        if self.known.insert(file) {
            self.files.push((file, name.clone()));
        }
    }

    pub(in super::super) fn file_end(&mut self, end: FileEnd) {
        self.ends.push(end);
    }

    pub(in super::super) fn chunk(
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
    pub(in super::super) fn finish(mut self, end: &ImageEnd, at: u64, out: &mut BytesMut) {
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
