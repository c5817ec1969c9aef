//! Images built in memory: opened, read whole, damaged, taken apart.

use std::{
    collections::BTreeMap,
    io::{Seek, SeekFrom, Write},
};

use bytes::BytesMut;
use proptest::prelude::*;
use vramstream::stage::{AutoCompress, Compression, Crc32, Lz4Table, crc32_of_zeros};

use super::*;
use crate::{
    error::Result,
    format::{ChunkHeader, Codec, FileEnd, ImageEnd, ImageError, ImageId, Prologue, ShardEncoder},
};

mod damage;

/// Writes shards into memory.
struct Writer {
    shards: Vec<(ShardEncoder, BytesMut)>,
    files: u32,
    raw_bytes: u64,
    superseded: Vec<u32>,
}

impl Writer {
    fn new(image: u8, shards: u32) -> Self {
        let shard = |shard| {
            let mut out = BytesMut::new();
            let prologue = Prologue { image: ImageId([image; 16]), shard, shards };
            (ShardEncoder::new(&prologue, &mut out), out)
        };
        let shards = (0..shards).map(shard).collect();
        Writer { shards, files: 0, raw_bytes: 0, superseded: Vec::new() }
    }

    fn named(&mut self, shard: usize, file: u32, name: &str) -> &mut (ShardEncoder, BytesMut) {
        let (encoder, out) = &mut self.shards[shard];
        if !encoder.knows(file) {
            encoder.file_begin(file, &FileName::new(name).unwrap(), out);
        }
        &mut self.shards[shard]
    }

    fn chunk(
        &mut self,
        shard: usize,
        (file, name): (u32, &str),
        offset: u64,
        raw: &[u8],
        codec: Codec,
        align: bool,
    ) {
        let mut stored = vec![0; raw.len()];
        let (codec, stored) = match codec {
            Codec::Zero if raw.iter().all(|&b| b == 0) => (Codec::Zero, &[][..]),
            Codec::Lz4 => {
                match AutoCompress::default().compress(
                    Compression::Lz4,
                    raw,
                    &mut stored,
                    &mut Lz4Table::default(),
                ) {
                    Some(len) => (Codec::Lz4, &stored[..len]),
                    None => (Codec::Raw, raw),
                }
            }
            _ => (Codec::Raw, raw),
        };
        let header = ChunkHeader {
            file,
            offset,
            raw_len: u32::try_from(raw.len()).unwrap(),
            stored_len: u32::try_from(stored.len()).unwrap(),
            codec,
            crc: Crc32::of(raw).value,
            pad: 0,
        };
        let align = (align && codec != Codec::Zero).then_some(4096);
        let (encoder, out) = self.named(shard, file, name);
        encoder.chunk(header, align, out).unwrap();
        out.extend_from_slice(stored);
    }

    fn file_end(&mut self, shard: usize, (file, name): (u32, &str), checksum: Crc32) {
        let (encoder, out) = self.named(shard, file, name);
        encoder.file_end(FileEnd { file, checksum }, out);
        self.files += 1;
        self.raw_bytes += checksum.len;
    }

    fn finish(self) -> Vec<Vec<u8>> {
        let end = ImageEnd {
            files: self.files,
            raw_bytes: self.raw_bytes,
            superseded: self.superseded,
            created_unix_ms: 1,
            writer: "test".into(),
            shard_chunks: 0,
            shard_stored_bytes: 0,
        };
        let shard = |(encoder, mut out): (ShardEncoder, BytesMut)| {
            encoder.image_end(end.clone(), &mut out);
            out.to_vec()
        };
        self.shards.into_iter().map(shard).collect()
    }
}

fn open(shards: &[impl AsRef<[u8]>]) -> Result<SeekableImage> {
    let file = |(number, bytes): (usize, &_)| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(AsRef::<[u8]>::as_ref(bytes)).unwrap();
        (format!("shard number {number}"), file)
    };
    SeekableImage::open(shards.iter().enumerate().map(file).collect())
}

/// The files of an image, read through their chunks.
fn read_all(image: &SeekableImage) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut scratch = Scratch::default();
    let mut files = BTreeMap::new();
    for summary in &image.manifest().files {
        let mut bytes: Vec<u8> = Vec::new();
        for chunk in image.file(summary.name.as_str()).unwrap().chunks() {
            assert_eq!(chunk.record.header.offset, bytes.len() as u64);
            match image.read_chunk(&chunk, &mut scratch)? {
                ChunkBytes::Bytes(raw) => bytes.extend(raw),
                ChunkBytes::Zeros(len) => {
                    bytes.resize(bytes.len() + usize::try_from(len).unwrap(), 0);
                }
            }
        }
        assert_eq!(Crc32::of(&bytes), summary.checksum);
        files.insert(summary.name.to_string(), bytes);
    }
    Ok(files)
}

/// An image of two shards with every codec, padding, a file that was written twice and an empty one.
fn sample() -> (Vec<Vec<u8>>, BTreeMap<String, Vec<u8>>) {
    let mut writer = Writer::new(7, 2);
    let noise: Vec<u8> =
        (0..3000u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()).collect();
    let text = b"all work and no play ".repeat(200);
    let mut first = noise.clone();
    first.extend(&text);
    first.resize(first.len() + 5000, 0);
    let pages = (3, "pages-1.img");
    let text_at = noise.len() as u64;
    writer.chunk(1, pages, text_at, &text, Codec::Lz4, false);
    writer.chunk(0, pages, text_at + text.len() as u64, &[0; 5000], Codec::Zero, false);
    writer.chunk(0, pages, 0, &noise, Codec::Raw, true);
    writer.file_end(1, pages, Crc32::of(&first));
    writer.file_end(0, (4, "empty.img"), Crc32::default());
    writer.chunk(0, (5, "core-1.img"), 0, b"old", Codec::Raw, false);
    writer.chunk(1, (6, "core-1.img"), 0, b"new one", Codec::Raw, true);
    writer.file_end(1, (6, "core-1.img"), Crc32::of(b"new one"));
    writer.superseded = vec![5];
    let expected =
        [("pages-1.img", first), ("empty.img", vec![]), ("core-1.img", b"new one".into())];
    (writer.finish(), expected.map(|(name, bytes)| (name.to_owned(), bytes)).into())
}

#[test]
fn files_are_read_from_whatever_shard_has_them() {
    let (mut shards, expected) = sample();
    for _ in 0..2 {
        let image = open(&shards).unwrap();
        assert_eq!(read_all(&image).unwrap(), expected);
        assert_eq!((image.manifest().shards, image.manifest().files.len()), (2, 3));
        assert!(image.file("core-2.img").is_none());
        let file = image.file("pages-1.img").unwrap();
        assert_eq!((file.chunks().len(), file.summary.chunks), (3, 3));
        for offset in [0, 1, 11_999, 12_000, 16_199, 16_200, 21_199] {
            let header = file.chunk_at(offset).unwrap().record.header;
            assert!(header.offset <= offset && offset < header.end());
        }
        assert_eq!(file.chunk_at(21_200), None);
        assert_eq!(image.file("empty.img").unwrap().chunk_at(0), None);
        shards.reverse();
    }
}

proptest! {
    /// Any file in any pieces on any shards.
    #[test]
    fn any_image_is_read_back(
        pieces in prop::collection::vec((0u32..4, 1usize..3000, 0usize..3, 0u8..3, any::<bool>()), 0..40),
        keys in prop::collection::vec(any::<u32>(), 40),
    ) {
        let mut files: BTreeMap<u32, Vec<u8>> = (0..4).map(|file| (file, Vec::new())).collect();
        let mut chunks = Vec::new();
        for (n, (file, len, shard, codec, align)) in pieces.into_iter().enumerate() {
            let bytes = files.get_mut(&file).unwrap();
            let codec = [Codec::Raw, Codec::Zero, Codec::Lz4][usize::from(codec)];
            let fill = if codec == Codec::Zero { 0 } else { u8::try_from(n).unwrap() };
            chunks.push((keys[n], file, bytes.len(), len, shard, codec, align));
            bytes.resize(bytes.len() + len, fill);
        }
        chunks.sort_by_key(|chunk| chunk.0);
        let mut writer = Writer::new(1, 3);
        for (_, file, offset, len, shard, codec, align) in chunks {
            let name = format!("f{file}");
            let raw = &files[&file][offset..offset + len];
            writer.chunk(shard, (file, &name), offset as u64, raw, codec, align);
        }
        for (file, bytes) in &files {
            writer.file_end(*file as usize % 3, (*file, &format!("f{file}")), Crc32::of(bytes));
        }
        let image = open(&writer.finish()).unwrap();
        let files = files.into_iter().map(|(file, bytes)| (format!("f{file}"), bytes)).collect();
        prop_assert_eq!(read_all(&image).unwrap(), files);
    }
}

/// 4 GiB in 1 MiB chunks on 4 shards; sparse files, because opening reads no payload.
#[test]
fn a_large_image_takes_little_memory_and_time() {
    const MIB: u32 = 1 << 20;
    const CHUNKS: u32 = 4096;
    let mut writer = Writer::new(1, 4);
    let zeros = crc32_of_zeros(MIB.into());
    let mut files: Vec<_> = (0..4).map(|_| tempfile::tempfile().unwrap()).collect();
    for n in 0..CHUNKS {
        let (shard, offset) = (n as usize % 4, u64::from(n) * u64::from(MIB));
        let header = ChunkHeader {
            file: 0,
            offset,
            raw_len: MIB,
            stored_len: MIB,
            codec: Codec::Raw,
            crc: zeros.value,
            pad: 0,
        };
        let (encoder, out) = writer.named(shard, 0, "pages-1.img");
        encoder.chunk(header, Some(4096), out).unwrap();
        files[shard].write_all(out).unwrap();
        files[shard].seek(SeekFrom::Current(MIB.into())).unwrap();
        out.clear();
    }
    writer.file_end(0, (0, "pages-1.img"), crc32_of_zeros(u64::from(CHUNKS) * u64::from(MIB)));
    for (file, rest) in files.iter_mut().zip(writer.finish()) {
        file.write_all(&rest).unwrap();
    }
    let files = files.into_iter().map(|file| ("shard".to_owned(), file)).collect();
    let start = std::time::Instant::now();
    let image = SeekableImage::open(files).unwrap();
    let took = start.elapsed();
    println!("{CHUNKS} chunks: {took:?}, {} bytes", image.memory_bytes());
    assert!(image.memory_bytes() < 200 << 10, "{}", image.memory_bytes());
    // Some milliseconds; the rest is for machines that are busy.
    assert!(took < std::time::Duration::from_secs(1), "{took:?}");
    let last = image.file("pages-1.img").unwrap().chunk_at((4 << 30) - 1).unwrap();
    let mut scratch = Scratch::default();
    assert_eq!(
        image.read_chunk(&last, &mut scratch).unwrap(),
        ChunkBytes::Bytes(&[0; MIB as usize])
    );
}
