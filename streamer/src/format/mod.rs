//! The native image format, version 1. This page is its specification.
//!
//! An *image* is a set of named *files* (what CRIU dumps), spread over one or more *shards*. A
//! shard is a byte stream: it can be written to a pipe and read from one, and where it lies in a
//! file it can be opened from its end. All integers are little-endian. Headers are protobuf
//! (`proto/image_format.proto`, package `vramstream.format.v1`).
//!
//! # A shard
//!
//! ```text
//! ┌──────────┬───────┬───────┬─────┬──────────────────┬───────┬─────────┐
//! │ prologue │ frame │ frame │ ... │ frame (ImageEnd) │ index │ trailer │
//! │ 64 bytes │       │       │     │                  │       │ 32 bytes│
//! └──────────┴───────┴───────┴─────┴──────────────────┴───────┴─────────┘
//! ```
//!
//! **Prologue**, 64 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | magic, the bytes `VRAMSTRM` |
//! | 8 | 4 | format version, 1 |
//! | 12 | 4 | number of this shard, from 0 |
//! | 16 | 4 | number of shards of the image, 1 to [`MAX_SHARDS`] |
//! | 20 | 16 | image id: 16 random bytes, the same in all shards of an image |
//! | 36 | 24 | zero |
//! | 60 | 4 | CRC-32 of bytes 0 to 59 |
//!
//! **Frame**:
//!
//! | size | field |
//! |---|---|
//! | 4 | length of the header, 1 to [`MAX_HEADER_BYTES`] |
//! | 4 | CRC-32 of those 4 bytes and the header |
//! | length | header: protobuf `FrameHeader` |
//! | `pad` | only after a `Chunk`: zero bytes, at most [`MAX_PAD`] |
//! | `stored_len` | only after a `Chunk`: the payload |
//!
//! | header | meaning |
//! |---|---|
//! | `FileBegin` | this number is this name. Each shard says so before its first chunk or end of that file |
//! | `Chunk` | a piece of a file: offset, raw length, stored length, codec, CRC-32 of the raw bytes |
//! | `FileEnd` | size and CRC-32 of a whole file; once for each file, in any one shard |
//! | `ImageEnd` | totals; the last frame of every shard of a complete image |
//! | `Abort` | the writer gave up and says why; the last frame, nothing follows |
//!
//! Chunks carry their file and offset, so there is no order between shards, nor between files:
//! any shard may bring any chunk at any time, before or after the `FileEnd` in another shard.
//!
//! | codec | payload |
//! |---|---|
//! | 0 raw | the bytes; `stored_len == raw_len`, at most [`MAX_CHUNK_BYTES`] |
//! | 1 zero | none; `raw_len` zero bytes, at most [`MAX_ZERO_RUN_BYTES`] |
//! | 2 lz4 | one LZ4 block; `stored_len < raw_len`, `raw_len` at most [`MAX_CHUNK_BYTES`] |
//! | 3, 4, 5 | reserved: zstd, float planes, back-reference. A version 1 reader refuses them |
//!
//! **Index**, after the last frame of a complete shard:
//!
//! | size | field |
//! |---|---|
//! | 8 | length of what follows the next field, at most [`MAX_INDEX_BYTES`] |
//! | 4 | CRC-32 of what follows |
//! | 4 | length of the table |
//! | length | protobuf `IndexTable`: the files this shard names, the ends it has, its `ImageEnd` |
//! | rest | one record for each chunk of the shard, in order; see [`index`] |
//!
//! **Trailer**, 32 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | offset of the index in the shard |
//! | 8 | 8 | length of the whole shard, trailer included |
//! | 16 | 4 | zero |
//! | 20 | 4 | CRC-32 of bytes 0 to 19 |
//! | 24 | 8 | magic, the bytes `VRAMSEND` |
//!
//! # When an image exists
//!
//! Only when every shard from 0 to count-1 is there once, with the same image id and count; each
//! ends in `ImageEnd`, index and trailer; the `ImageEnd`s agree; every file is covered by its
//! chunks without gap or overlap up to the size in its `FileEnd`, with that CRC-32; and the files
//! that are not superseded number `files`, sum to `raw_bytes` and have no name twice. Anything
//! else is not an image, whatever can be read of it. [`Assembly`] is this paragraph as code.
//!
//! # Names
//!
//! Plain file names: 1 to 255 bytes of UTF-8, no `/`, no NUL, not `.` and not `..`. A name may be
//! begun again under a new file number (a program that writes an image twice); the `ImageEnd` then
//! lists every number but the one that counts as superseded.
//!
//! # Limits
//!
//! Every length and count that is read is checked against a constant of this module before
//! anything is allocated for it. Readers refuse what is above; writers refuse to write it.
//!
//! # What this module must not know
//!
//! Where shards are, how they are read or written, and what is in the files. [`ShardEncoder`]
//! appends bytes to a buffer, [`ShardDecoder`] says how many bytes it wants and is fed them.

mod assembly;
mod decoder;
mod encoder;
mod error;
mod frame;
pub mod index;
mod name;
mod prologue;
mod runs;

pub use assembly::{Assembly, FileSummary, ImageError, Manifest};
pub use decoder::{Event, ShardDecoder};
pub use encoder::ShardEncoder;
pub use error::FormatError;
pub use frame::{ChunkHeader, Codec, FileEnd, Header, ImageEnd};
pub use name::{FileName, NameError};
pub use prologue::{ImageId, PROLOGUE_BYTES, Prologue};
pub use runs::{Overlap, Runs};

/// The version this module reads and writes.
pub const VERSION: u32 = 1;

/// The longest frame header: an `ImageEnd` with [`MAX_SUPERSEDED`] numbers of 5 bytes, and room.
pub const MAX_HEADER_BYTES: u32 = 32 << 10;
/// The most payload bytes, and raw bytes, of a chunk that has a payload. A reader needs one buffer
/// of this size for each shard; four times the largest chunk that any writer here makes.
pub const MAX_CHUNK_BYTES: u32 = 16 << 20;
/// The most zero bytes that one chunk stands for. They cost a reader no memory, but time.
pub const MAX_ZERO_RUN_BYTES: u32 = 1 << 30;
/// The most padding before a payload: the alignment that O_DIRECT can ask for, and one more page.
pub const MAX_PAD: u32 = 64 << 10;
/// The most files: a tree of 20 000 processes has some ten images for each.
pub const MAX_FILES: u32 = 1 << 18;
/// The most times that names may be written again in one image.
pub const MAX_SUPERSEDED: usize = 4096;
/// The most shards: past some tens of connections or files more of them only cost.
pub const MAX_SHARDS: u32 = 256;
/// The largest file: more than the memory of any host, and far from overflowing an offset.
pub const MAX_FILE_BYTES: u64 = 1 << 48;
/// The largest index of one shard: with 1 MiB chunks it stands for some 30 TiB of them.
pub const MAX_INDEX_BYTES: u64 = 512 << 20;
/// The longest reason in an `Abort`, in bytes; longer ones are cut.
pub const MAX_REASON_BYTES: usize = 2048;
/// The longest name of a writer in an `ImageEnd`, in bytes.
pub const MAX_WRITER_BYTES: usize = 256;
