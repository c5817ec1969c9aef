//! Shards in the native format that no writer would make, frame by frame.

use prost::Message;
use vramstream_streamer::{
    format::{ImageId, Prologue},
    proto::format::{Chunk, FileBegin, FileEnd, FrameHeader, frame_header::Body},
};

/// The start of an image of one shard.
fn prologue() -> Vec<u8> {
    Prologue { image: ImageId([7; 16]), shard: 0, shards: 1 }.encode().to_vec()
}

/// A frame whose header is this, checksum and all.
fn frame_of(header: &[u8]) -> Vec<u8> {
    let length = u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes();
    let checksum = crc32fast::hash(&[&length, header].concat()).to_le_bytes();
    [&length, &checksum, header].concat()
}

fn frame(body: Body) -> Vec<u8> {
    frame_of(&FrameHeader { body: Some(body) }.encode_to_vec())
}

/// A name as bytes: field 1 of the header is `FileBegin`, its field 2 the name.
fn begin(name: &[u8]) -> Vec<u8> {
    let Ok(text) = String::from_utf8(name.to_vec()) else { return frame_of(&[0xff]) };
    frame(Body::FileBegin(FileBegin { file: 0, name: text }))
}

fn chunk(offset: u64, length: u32, content: &[u8]) -> Vec<u8> {
    let chunk = Chunk {
        file: 0,
        offset,
        raw_len: length,
        stored_len: length,
        codec: 0,
        crc: crc32fast::hash(content),
        pad: 0,
    };
    [frame(Body::Chunk(chunk)), content.to_vec()].concat()
}

fn end(size: u64, content: &[u8]) -> Vec<u8> {
    frame(Body::FileEnd(FileEnd { file: 0, size, crc: crc32fast::hash(content) }))
}

/// A whole file of this name. The image does not end, but nothing should come to that.
pub(super) fn image(name: &[u8], content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    let size = u64::from(length);
    [prologue(), begin(name), chunk(0, length, content), end(size, content)].concat()
}

/// A header that claims this length.
pub(super) fn long_header(length: u32) -> Vec<u8> {
    let checksum = crc32fast::hash(&length.to_le_bytes());
    [&prologue()[..], &length.to_le_bytes(), &checksum.to_le_bytes(), &[0; 100]].concat()
}

/// A chunk that claims this length.
pub(super) fn long_chunk(length: u32) -> Vec<u8> {
    [prologue(), begin(b"a"), chunk(0, length, &[0; 100])].concat()
}

/// A file that claims this length.
pub(super) fn long_file(length: u64) -> Vec<u8> {
    [prologue(), begin(b"a"), chunk(0, 100, &[0; 100]), end(length, &[0; 100])].concat()
}

/// A chunk at the far end of a file.
pub(super) fn far_chunk(offset: u64) -> Vec<u8> {
    [prologue(), begin(b"a"), chunk(offset, 100, &[0; 100])].concat()
}
