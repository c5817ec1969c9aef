//! Images that were written once and are kept in `tests/golden/v1`: what was an image stays one, and
//! what is written today is what was written then, byte for byte.
//!
//! The native shards are made by [`native`] and written anew with `VRAMSTREAM_UPDATE_GOLDEN=1`;
//! doing so gives up reading, or being read by, earlier versions, so it needs a new format version.
//! The `criu-image-streamer-*` shards were written by that program, version 1.0.0, for a client that
//! opened two files at once.

use std::path::PathBuf;

use bytes::BytesMut;
use vramstream::stage::{Compression, Crc32};
use vramstream_streamer::{
    absorb::ImageFormat,
    criu_image_streamer::{Marker, MarkerBody},
    format::Codec,
};

use crate::{
    native_image::{CREATED, NativeImage, WRITER},
    support::{Files, read_bytes, refused},
};

/// 64 times `a` as an LZ4 block, written by hand so that it does not depend on a compressor: one
/// literal, a match of 58 at distance 1, five literals.
const LZ4_AAAA: &[u8] = b"\x1fa\x01\0\x27\x50aaaaa";

pub(crate) fn path(file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../tests/golden/v1", file].iter().collect()
}

pub(crate) fn kept(file: &str) -> Vec<u8> {
    std::fs::read(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Bytes that look like nothing in particular.
fn contents(from: u64, to: u64, k: u64) -> Vec<u8> {
    (from..to).map(|i| ((i * i * 7 + i * k) >> 2) as u8).collect()
}

/// Every kind of frame but `Abort`, every codec, padding, files out of order over two shards, an
/// empty file and one that is superseded.
fn native() -> (Vec<Vec<u8>>, Files) {
    let names = ["inventory.img", "pages-1.img", "inventory.img", "empty.img"];
    let mut image = NativeImage::new(0x5a, 2, &names);
    let pages = [&contents(0, 3000, 3)[..], &[0; 4096], &[b'a'; 64]].concat();
    image.chunk(0, 0, 0, b"written again later", Compression::None, None);
    image.end(0, 0, Crc32::of(b"written again later"));
    image.put(1, 1, 7096, (Codec::Lz4, 64, LZ4_AAAA), Crc32::of(&[b'a'; 64]), None);
    image.chunk(0, 1, 1000, &pages[1000..3000], Compression::None, Some(512));
    image.zeros(1, 1, 3000, 4096);
    image.end(1, 1, Crc32::of(&pages));
    image.chunk(1, 1, 0, &pages[..1000], Compression::None, Some(512));
    image.end(0, 3, Crc32::of(b""));
    let inventory = contents(0, 40, 5);
    image.chunk(1, 2, 0, &inventory, Compression::None, None);
    image.end(1, 2, Crc32::of(&inventory));
    let raw_bytes = (pages.len() + inventory.len()) as u64;
    let shards = image.finish(3, raw_bytes, &[0]);
    let files = [("inventory.img", inventory), ("pages-1.img", pages), ("empty.img", vec![])];
    (shards, files.map(|(name, bytes)| (name.to_owned(), bytes)).into())
}

fn aborted() -> Vec<u8> {
    let mut image = NativeImage::new(0x5a, 1, &["core-1.img"]);
    image.chunk(0, 0, 0, b"the beginning", Compression::None, None);
    image.abort("the dump failed").swap_remove(0)
}

#[test]
fn native_images_are_written_as_ever() {
    let (shards, _) = native();
    let files = ["native-0.shard", "native-1.shard", "aborted.shard"];
    for (file, bytes) in files.into_iter().zip(shards.into_iter().chain([aborted()])) {
        if std::env::var_os("VRAMSTREAM_UPDATE_GOLDEN").is_some() {
            std::fs::write(path(file), &bytes).unwrap();
        }
        assert!(kept(file) == bytes, "{file} would be written otherwise today");
    }
}

#[test]
fn native_images_are_read_as_ever() {
    let shards = [kept("native-1.shard"), kept("native-0.shard")];
    let (absorbed, files) = read_bytes(&shards).unwrap();
    assert_eq!(absorbed.format, ImageFormat::Native);
    assert_eq!(files, native().1);
    let manifest = absorbed.manifest;
    assert_eq!(manifest.image.to_string(), "5a".repeat(16));
    assert_eq!(manifest.shards, 2);
    assert_eq!((manifest.end.files, manifest.end.raw_bytes), (3, 7200));
    assert_eq!((manifest.end.created_unix_ms, manifest.end.superseded), (CREATED, vec![0]));
    assert_eq!(manifest.end.writer, WRITER);
    let files: Vec<_> = manifest
        .files
        .iter()
        .map(|f| {
            (f.file, f.name.as_str(), f.checksum.value, f.checksum.len, f.stored_bytes, f.chunks)
        })
        .collect();
    let expected = [
        (1, "pages-1.img", 0x40ea_7cd7, 7160, 3011, 4),
        (2, "inventory.img", 0xf087_dc80, 40, 40, 1),
        (3, "empty.img", 0, 0, 0, 0),
    ];
    assert_eq!(files, expected);
    let error = refused(&[kept("aborted.shard")]);
    assert!(error.ends_with("its writer gave up: the dump failed"), "{error}");
}

#[test]
fn images_of_criu_image_streamer_are_read() {
    let shards = [0, 1].map(|n| kept(&format!("criu-image-streamer-{n}.shard")));
    let (absorbed, files) = read_bytes(&shards).unwrap();
    assert_eq!(absorbed.format, ImageFormat::CriuImageStreamer);
    let pages = [contents(0, 5000, 3), vec![0; 4096], contents(9096, 12000, 3)].concat();
    let expected = [
        ("core-1.img", contents(0, 500, 1)),
        ("pages-1.img", pages),
        ("empty.img", vec![]),
        ("inventory.img", contents(0, 40, 5)),
    ];
    let expected: Files = expected.map(|(name, bytes)| (name.to_owned(), bytes)).into();
    assert_eq!(files, expected);
    assert_eq!(absorbed.manifest.end.files, 4);
    assert_eq!(absorbed.manifest.end.raw_bytes, 12540);
}

/// The records that program wrote are the records that this one writes.
#[test]
fn records_of_criu_image_streamer_are_written_alike() {
    for n in 0..2 {
        let shard = kept(&format!("criu-image-streamer-{n}.shard"));
        let mut again = BytesMut::new();
        let mut rest = &shard[..];
        while let Some((len, after)) = rest.split_first_chunk() {
            let (marker, after) = after.split_at(Marker::length(*len).unwrap());
            let marker = Marker::decode(marker).unwrap();
            marker.encode(&mut again);
            let payload = match marker.body {
                MarkerBody::Data(len) => len as usize,
                _ => 0,
            };
            again.extend_from_slice(&after[..payload]);
            rest = &after[payload..];
        }
        assert!(again == shard[..]);
    }
}
