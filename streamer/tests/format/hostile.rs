//! Native shards whose checksums are right and whose contents no writer makes.

use prost::Message;
use vramstream::stage::Crc32;
use vramstream_streamer::{
    format::{ImageId, Prologue},
    proto::format::{Abort, Chunk, FileBegin, FileEnd, FrameHeader, ImageEnd, frame_header::Body},
};

use crate::support::refused;

/// A frame with its prefix.
fn sealed(header: &[u8]) -> Vec<u8> {
    let len = (header.len() as u32).to_le_bytes();
    let crc = Crc32::of(&[&len, header].concat()).value.to_le_bytes();
    [&len, &crc, header].concat()
}

fn frame(body: Body) -> Vec<u8> {
    sealed(&FrameHeader { body: Some(body) }.encode_to_vec())
}

fn begin(file: u32, name: &str) -> Vec<u8> {
    frame(Body::FileBegin(FileBegin { file, name: name.into() }))
}

/// The error of the only shard of an image, which has these frames after its prologue.
fn error(frames: &[Vec<u8>]) -> String {
    let prologue = Prologue { image: ImageId([1; 16]), shard: 0, shards: 1 }.encode();
    refused(&[[&prologue[..], &frames.concat()].concat()])
}

#[test]
fn frames_that_no_writer_makes() {
    let chunk = |edit: &dyn Fn(&mut Chunk)| {
        let mut chunk = Chunk { raw_len: 3, stored_len: 3, crc: 1, ..Chunk::default() };
        edit(&mut chunk);
        error(&[begin(0, "a"), frame(Body::Chunk(chunk))])
    };
    let end = |edit: &dyn Fn(&mut ImageEnd)| {
        let mut end = ImageEnd::default();
        edit(&mut end);
        error(&[frame(Body::ImageEnd(end))])
    };
    let file_end = |file, size| frame(Body::FileEnd(FileEnd { file, size, crc: 0 }));
    let huge = u32::MAX.to_le_bytes();
    let cases = [
        (chunk(&|c| c.file = 1), "a chunk of a file that was not named"),
        (chunk(&|c| c.file = 1 << 18), "number of a file"),
        (chunk(&|c| (c.raw_len, c.stored_len) = (0, 0)), "a chunk of no bytes"),
        (chunk(&|c| c.stored_len = 2), "a raw chunk whose lengths differ"),
        (chunk(&|c| (c.raw_len, c.stored_len) = (u32::MAX, u32::MAX)), "length of a chunk"),
        (chunk(&|c| c.codec = 1), "a zero chunk with a payload"),
        (chunk(&|c| (c.codec, c.stored_len, c.pad) = (1, 0, 1)), "a zero chunk with a payload"),
        (
            chunk(&|c| (c.codec, c.stored_len, c.raw_len) = (1, 0, (1 << 30) + 1)),
            "length of a chunk",
        ),
        (chunk(&|c| c.codec = 2), "a compressed chunk that is not smaller"),
        (chunk(&|c| (c.codec, c.stored_len) = (2, 0)), "a compressed chunk that is not smaller"),
        (chunk(&|c| c.codec = 3), "uses codec 3"),
        (chunk(&|c| c.codec = -1), "uses codec -1"),
        (chunk(&|c| c.pad = (64 << 10) + 1), "padding of a chunk"),
        (chunk(&|c| c.offset = (1 << 48) - 2), "offset of a chunk"),
        (chunk(&|c| c.offset = u64::MAX), "offset of a chunk"),
        (end(&|e| e.shard_chunks = 1), "totals that are not those of the shard"),
        (end(&|e| e.shard_stored_bytes = 1), "totals that are not those of the shard"),
        (end(&|e| e.files = (1 << 18) + 1), "number of files"),
        (end(&|e| e.superseded = vec![1, 1]), "superseded files out of order"),
        (end(&|e| e.superseded = (0..=4096).collect()), "number of superseded files"),
        (end(&|e| e.writer = "w".repeat(257)), "name of the writer"),
        (error(&[begin(0, "a"), begin(0, "a")]), "a file that is named twice"),
        (error(&[begin(1 << 18, "a")]), "number of a file"),
        (error(&[begin(0, "../a")]), "is not a plain file name"),
        (error(&[begin(0, "")]), "a file name is empty"),
        (error(&[file_end(0, 0)]), "the end of a file that was not named"),
        (error(&[begin(0, "a"), file_end(0, (1 << 48) + 1)]), "size of a file"),
        (error(&[sealed(b"")]), "length of a frame header"),
        (error(&[sealed(&[0; (32 << 10) + 1])]), "length of a frame header"),
        (error(&[[huge, huge].concat()]), "length of a frame header"),
        (error(&[sealed(b"\xff")]), "a frame header that is not protobuf"),
        (error(&[sealed(b"\x30\x01")]), "a frame header of no known kind"),
        (
            error(&[frame(Body::Abort(Abort { reason: "x".repeat(9999) }))]),
            "its writer gave up: xxx",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{expected}: {error}");
        assert!(error.len() < 2200, "{error}");
    }
}

#[test]
fn prologues_that_no_writer_makes() {
    let error = |edit: &dyn Fn(&mut [u8; 64])| {
        let mut bytes = Prologue { image: ImageId([1; 16]), shard: 0, shards: 1 }.encode();
        edit(&mut bytes);
        let crc = Crc32::of(&bytes[..60]).value.to_le_bytes();
        bytes[60..].copy_from_slice(&crc);
        refused(&[bytes.to_vec()])
    };
    let cases = [
        (error(&|bytes| bytes[8] = 2), "image format version 2 is not understood"),
        (error(&|bytes| bytes[12] = 1), "shard number past the count"),
        (error(&|bytes| bytes[16] = 0), "shard number past the count"),
        (error(&|bytes| bytes[16..18].copy_from_slice(&[1, 1])), "number of shards"),
        (error(&|bytes| bytes[19] = 0xff), "number of shards"),
        (error(&|bytes| bytes[36] = 1), "prologue bytes that must be zero"),
        (error(&|bytes| bytes[59] = 1), "prologue bytes that must be zero"),
        (error(&|_| ()), "truncated"),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
