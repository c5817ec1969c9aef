//! Frame headers: the checked types that the rest of the program sees, and their protobuf form.

use bytes::{BufMut, BytesMut};
use prost::Message;
use vramstream::stage::Crc32;

use super::{
    FileName, FormatError, MAX_CHUNK_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_HEADER_BYTES, MAX_PAD,
    MAX_REASON_BYTES, MAX_SUPERSEDED, MAX_WRITER_BYTES, MAX_ZERO_RUN_BYTES,
};
use crate::proto::format::{self as pb, frame_header::Body};

/// Bytes in front of every header: its length and its CRC-32.
pub(super) const PREFIX_BYTES: usize = 8;

/// How the payload of a chunk is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As it is.
    Raw,
    /// Not at all: the bytes are zero.
    Zero,
    /// As one LZ4 block.
    Lz4,
}

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Number of the file.
    pub file: u32,
    /// Where in the file the piece starts.
    pub offset: u64,
    /// Bytes of the file it stands for; at least 1.
    pub raw_len: u32,
    /// Bytes of payload.
    pub stored_len: u32,
    /// How the payload is stored.
    pub codec: Codec,
    /// CRC-32 of the raw bytes.
    pub crc: u32,
    /// Zero bytes between header and payload.
    pub pad: u32,
}

impl ChunkHeader {
    /// The CRC-32 of the raw bytes with their length.
    pub fn checksum(&self) -> Crc32 {
        Crc32 { value: self.crc, len: self.raw_len.into() }
    }

    /// The first byte of the file after this piece.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.raw_len)
    }
}

/// The whole of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileEnd {
    /// Number of the file.
    pub file: u32,
    /// CRC-32 of the whole file, and its size.
    pub checksum: Crc32,
}

/// Totals of an image, and of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageEnd {
    /// Files, without the superseded ones.
    pub files: u32,
    /// Sum of their sizes.
    pub raw_bytes: u64,
    /// Numbers of files that another of the same name replaces, ascending.
    pub superseded: Vec<u32>,
    /// Milliseconds since 1970-01-01 UTC when the capture began.
    pub created_unix_ms: u64,
    /// Program and version that wrote the image.
    pub writer: String,
    /// Chunks in this shard.
    pub shard_chunks: u64,
    /// Payload bytes in this shard.
    pub shard_stored_bytes: u64,
}

impl ImageEnd {
    /// Whether two shards say the same of their image.
    pub fn same_image(&self, other: &ImageEnd) -> bool {
        let ImageEnd { files, raw_bytes, superseded, created_unix_ms, writer, .. } = self;
        (*files, *raw_bytes, *created_unix_ms)
            == (other.files, other.raw_bytes, other.created_unix_ms)
            && *superseded == other.superseded
            && *writer == other.writer
    }
}

/// A checked frame header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Header {
    /// A number gets its name.
    FileBegin(u32, FileName),
    /// A piece of a file.
    Chunk(ChunkHeader),
    /// A file is whole.
    FileEnd(FileEnd),
    /// The image is whole.
    ImageEnd(ImageEnd),
    /// The writer gave up.
    Abort(String),
}

impl Header {
    /// Appends length, CRC and header to `out`.
    pub(super) fn encode(&self, out: &mut BytesMut) {
        let body = match self {
            Header::FileBegin(file, name) => {
                Body::FileBegin(pb::FileBegin { file: *file, name: name.as_str().to_owned() })
            }
            Header::Chunk(chunk) => Body::Chunk(chunk.to_pb()),
            Header::FileEnd(end) => Body::FileEnd(end.to_pb()),
            Header::ImageEnd(end) => Body::ImageEnd(end.to_pb()),
            Header::Abort(reason) => {
                Body::Abort(pb::Abort { reason: cut(reason, MAX_REASON_BYTES).to_owned() })
            }
        };
        let header = pb::FrameHeader { body: Some(body) };
        let start = out.len();
        out.put_bytes(0, PREFIX_BYTES);
        header.encode_raw(out);
        let header_len = out.len() - start - PREFIX_BYTES;
        debug_assert!(header_len <= MAX_HEADER_BYTES as usize);
        // Limits on names, reasons and lists keep every header under MAX_HEADER_BYTES.
        let len = u32::try_from(header_len).unwrap_or(u32::MAX).to_le_bytes();
        let crc = frame_crc(len, &out[start + PREFIX_BYTES..]).to_le_bytes();
        out[start..start + 4].copy_from_slice(&len);
        out[start + 4..start + 8].copy_from_slice(&crc);
    }

    /// Reads a whole frame but for what follows a chunk's header; `at` is where it starts, for
    /// messages.
    pub(crate) fn decode_frame(bytes: &[u8], at: u64) -> Result<Self, FormatError> {
        let cut = FormatError::Malformed { what: "a frame of another length", at };
        let (prefix, header) = bytes.split_first_chunk::<PREFIX_BYTES>().ok_or(cut.clone())?;
        let [a, b, c, d, crc @ ..] = *prefix;
        let len = [a, b, c, d];
        if u32::from_le_bytes(len) as usize != header.len() {
            return Err(cut);
        }
        if frame_crc(len, header) != u32::from_le_bytes(crc) {
            return Err(FormatError::Checksum { what: "frame header", at });
        }
        Header::decode(header, at)
    }

    /// Reads a header; `at` is where its frame starts, for messages.
    pub(super) fn decode(bytes: &[u8], at: u64) -> Result<Self, FormatError> {
        let malformed = |what| FormatError::Malformed { what, at };
        let header = pb::FrameHeader::decode(bytes)
            .map_err(|_| malformed("a frame header that is not protobuf"))?;
        match header.body.ok_or(malformed("a frame header of no known kind"))? {
            Body::FileBegin(begin) => {
                let file = file_number(begin.file, at)?;
                let name = FileName::new(&begin.name)
                    .map_err(|source| FormatError::Name { at, source })?;
                Ok(Header::FileBegin(file, name))
            }
            Body::Chunk(chunk) => ChunkHeader::from_pb(chunk, at).map(Header::Chunk),
            Body::FileEnd(end) => FileEnd::from_pb(end, at).map(Header::FileEnd),
            Body::ImageEnd(end) => ImageEnd::from_pb(end, at).map(Header::ImageEnd),
            Body::Abort(abort) => {
                Ok(Header::Abort(cut(&abort.reason, MAX_REASON_BYTES).to_owned()))
            }
        }
    }
}

/// The CRC-32 in a frame's prefix: of the length field and the header.
pub(super) fn frame_crc(len: [u8; 4], header: &[u8]) -> u32 {
    Crc32::of(&len).followed_by(Crc32::of(header)).value
}

impl ChunkHeader {
    pub(super) fn to_pb(self) -> pb::Chunk {
        let codec = match self.codec {
            Codec::Raw => pb::Codec::Raw,
            Codec::Zero => pb::Codec::Zero,
            Codec::Lz4 => pb::Codec::Lz4,
        };
        pb::Chunk {
            file: self.file,
            offset: self.offset,
            raw_len: self.raw_len,
            stored_len: self.stored_len,
            codec: codec.into(),
            crc: self.crc,
            pad: self.pad,
        }
    }

    fn from_pb(pb: pb::Chunk, at: u64) -> Result<Self, FormatError> {
        let codec = match pb::Codec::try_from(pb.codec) {
            Ok(pb::Codec::Raw) => Codec::Raw,
            Ok(pb::Codec::Zero) => Codec::Zero,
            Ok(pb::Codec::Lz4) => Codec::Lz4,
            Ok(pb::Codec::Zstd | pb::Codec::FloatPlanes | pb::Codec::BackReference) | Err(_) => {
                return Err(FormatError::Codec { codec: pb.codec, at });
            }
        };
        ChunkHeader {
            file: pb.file,
            offset: pb.offset,
            raw_len: pb.raw_len,
            stored_len: pb.stored_len,
            codec,
            crc: pb.crc,
            pad: pb.pad,
        }
        .checked(at)
    }

    /// Applies every rule of the format to a header that came from outside.
    pub(super) fn checked(self, at: u64) -> Result<Self, FormatError> {
        let malformed = |what| Err(FormatError::Malformed { what, at });
        file_number(self.file, at)?;
        let limit = match self.codec {
            Codec::Zero => MAX_ZERO_RUN_BYTES,
            Codec::Raw | Codec::Lz4 => MAX_CHUNK_BYTES,
        };
        within("length of a chunk", self.raw_len.into(), limit.into(), at)?;
        within("padding of a chunk", self.pad.into(), MAX_PAD.into(), at)?;
        within("offset of a chunk", self.offset, MAX_FILE_BYTES - u64::from(self.raw_len), at)?;
        match self.codec {
            _ if self.raw_len == 0 => malformed("a chunk of no bytes"),
            Codec::Raw if self.stored_len != self.raw_len => {
                malformed("a raw chunk whose lengths differ")
            }
            Codec::Zero if self.stored_len != 0 || self.pad != 0 => {
                malformed("a zero chunk with a payload")
            }
            Codec::Lz4 if self.stored_len == 0 || self.stored_len >= self.raw_len => {
                malformed("a compressed chunk that is not smaller")
            }
            _ => Ok(self),
        }
    }
}

impl FileEnd {
    pub(super) fn to_pb(self) -> pb::FileEnd {
        pb::FileEnd { file: self.file, size: self.checksum.len, crc: self.checksum.value }
    }

    pub(super) fn from_pb(pb: pb::FileEnd, at: u64) -> Result<Self, FormatError> {
        file_number(pb.file, at)?;
        within("size of a file", pb.size, MAX_FILE_BYTES, at)?;
        Ok(FileEnd { file: pb.file, checksum: Crc32 { value: pb.crc, len: pb.size } })
    }
}

impl ImageEnd {
    pub(super) fn to_pb(&self) -> pb::ImageEnd {
        pb::ImageEnd {
            files: self.files,
            raw_bytes: self.raw_bytes,
            superseded: self.superseded.clone(),
            created_unix_ms: self.created_unix_ms,
            writer: cut(&self.writer, MAX_WRITER_BYTES).to_owned(),
            shard_chunks: self.shard_chunks,
            shard_stored_bytes: self.shard_stored_bytes,
        }
    }

    pub(super) fn from_pb(pb: pb::ImageEnd, at: u64) -> Result<Self, FormatError> {
        within("number of files", pb.files.into(), MAX_FILES.into(), at)?;
        within(
            "number of superseded files",
            pb.superseded.len() as u64,
            MAX_SUPERSEDED as u64,
            at,
        )?;
        within("name of the writer", pb.writer.len() as u64, MAX_WRITER_BYTES as u64, at)?;
        if !pb.superseded.is_sorted_by(|a, b| a < b) {
            return Err(FormatError::Malformed { what: "superseded files out of order", at });
        }
        Ok(ImageEnd {
            files: pb.files,
            raw_bytes: pb.raw_bytes,
            superseded: pb.superseded,
            created_unix_ms: pb.created_unix_ms,
            writer: pb.writer,
            shard_chunks: pb.shard_chunks,
            shard_stored_bytes: pb.shard_stored_bytes,
        })
    }
}

pub(super) fn file_number(file: u32, at: u64) -> Result<u32, FormatError> {
    within("number of a file", file.into(), u64::from(MAX_FILES) - 1, at)?;
    Ok(file)
}

fn within(what: &'static str, value: u64, limit: u64, at: u64) -> Result<(), FormatError> {
    if value > limit {
        return Err(FormatError::Limit { what, value, limit, at });
    }
    Ok(())
}

/// The longest start of `text` of at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}
