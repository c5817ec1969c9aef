//! A native image that was cut, altered or mixed up is refused: every bit and every byte of a small
//! one is tried. Reading then ends with an error, or, where a bit does not matter, with the files
//! as they were; it never hangs, panics or gives other files.

use vramstream::stage::{Compression, Crc32};
use vramstream_streamer::{
    Error,
    format::{
        Codec, ImageError,
        index::{Index, TRAILER_BYTES, Trailer, index_len},
    },
};

use crate::{
    native_image::NativeImage,
    round_trip::open,
    support::{Files, read_bytes, refused, report},
};

/// Two shards with every kind of frame and codec.
fn sample(image: u8) -> (Vec<Vec<u8>>, Files) {
    let text = b"all work and no play makes jack a dull boy. ".repeat(4);
    let mut out = NativeImage::new(image, 2, &["a.img", "b.img", "a.img"]);
    out.chunk(0, 0, 0, b"given up", Compression::None, None);
    out.chunk(0, 1, 0, &text, Compression::Lz4, None);
    out.chunk(1, 1, text.len() as u64, &[0; 100], Compression::None, None);
    out.chunk(1, 2, 0, b"raw and aligned", Compression::None, Some(64));
    out.end(0, 2, Crc32::of(b"raw and aligned"));
    let whole = [&text[..], &[0; 100]].concat();
    out.end(1, 1, Crc32::of(&whole));
    let shards = out.finish(2, whole.len() as u64 + 15, &[0]);
    let files = [("a.img".into(), b"raw and aligned".to_vec()), ("b.img".into(), whole)];
    (shards, files.into())
}

#[test]
fn every_flipped_bit() {
    let (shards, files) = sample(1);
    assert_eq!(read_bytes(&shards).unwrap().1, files);
    let mut harmless = Vec::new();
    for shard in 0..shards.len() {
        for bit in 0..shards[shard].len() * 8 {
            let mut altered = shards.clone();
            altered[shard][bit / 8] ^= 1 << (bit % 8);
            if let Ok((_, found)) = read_bytes(&altered) {
                assert_eq!(found, files, "shard {shard}, bit {bit}");
                harmless.push((shard, bit / 8));
            }
        }
    }
    // A bit of an LZ4 block may have no meaning; the checksum is of what comes out.
    for (shard, byte) in harmless {
        let (_, records) = open(&shards[shard]);
        let block = |record: &vramstream_streamer::format::index::ChunkRecord| {
            let from = record.payload_at() as usize;
            record.header.codec == Codec::Lz4
                && (from..from + record.header.stored_len as usize).contains(&byte)
        };
        assert!(records.iter().any(block), "shard {shard}, byte {byte}");
    }
}

#[test]
fn cut_anywhere() {
    let (shards, _) = sample(1);
    for shard in 0..shards.len() {
        for len in 0..shards[shard].len() {
            let mut cut = shards.clone();
            cut[shard].truncate(len);
            let error = refused(&cut);
            assert!(error.contains("truncated"), "shard {shard} of {len} bytes: {error}");
        }
        let mut longer = shards.clone();
        longer[shard].push(0);
        assert!(refused(&longer).contains("data after the end of the shard"));
    }
}

#[test]
fn a_shard_missing_twice_or_of_another_image() {
    let ([a, b], [c, d]) = (pair(1), pair(2));
    let error = |shards: &[&Vec<u8>]| {
        let shards: Vec<_> = shards.iter().map(|&shard| shard.clone()).collect();
        match read_bytes(&shards) {
            Err(Error::Image(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(error(&[&a]), ImageError::ShardsMissing { missing: vec![1], count: 2 });
    assert_eq!(error(&[&b]), ImageError::ShardsMissing { missing: vec![0], count: 2 });
    assert!(matches!(error(&[&a, &a]), ImageError::ShardTwice(0)));
    assert!(matches!(error(&[&b, &a, &b]), ImageError::ShardTwice(1) | ImageError::EndTwice(_)));
    assert!(matches!(error(&[&a, &d]), ImageError::Foreign { .. }));
    assert!(matches!(error(&[&c, &b]), ImageError::Foreign { .. }));
    let other_count = NativeImage::new(1, 3, &[]).finish(0, 0, &[]).swap_remove(2);
    assert!(matches!(error(&[&a, &other_count]), ImageError::ShardCount { .. }));
}

fn pair(image: u8) -> [Vec<u8>; 2] {
    sample(image).0.try_into().unwrap()
}

#[test]
fn a_writer_that_gave_up() {
    let mut image = NativeImage::new(1, 2, &["a"]);
    image.chunk(0, 0, 0, b"some", Compression::None, None);
    let error = refused(&image.abort("the dump failed"));
    assert!(error.contains("its writer gave up: the dump failed"), "{error}");
}

/// Rules of the whole image, each broken by a writer that keeps to the frames.
#[test]
fn images_that_do_not_add_up() {
    let whole = Crc32::of(b"abcdef");
    let write = |edit: &dyn Fn(&mut NativeImage), totals: (u32, u64), superseded: &[u32]| {
        let mut image = NativeImage::new(1, 2, &["x", "y", "x"]);
        image.chunk(0, 0, 0, b"abc", Compression::None, None);
        edit(&mut image);
        match read_bytes(&image.finish(totals.0, totals.1, superseded)) {
            Err(error) => report(&error),
            Ok(image) => panic!("{image:?}"),
        }
    };
    let rest = |image: &mut NativeImage| {
        image.chunk(1, 0, 3, b"def", Compression::None, None);
        image.end(1, 0, whole);
    };
    let cases = [
        (write(&|image| image.end(1, 0, whole), (1, 6), &[]), "x has 3 bytes of 6"),
        (
            write(&|image| image.chunk(1, 0, 3, b"d", Compression::None, None), (1, 4), &[]),
            "x has 4 bytes of an unknown number",
        ),
        (
            write(
                &|image| {
                    rest(image);
                    image.end(0, 0, whole);
                },
                (1, 6),
                &[],
            ),
            "x ends twice",
        ),
        (
            write(
                &|image| {
                    rest(image);
                    image.chunk(1, 0, 2, b"c", Compression::None, None);
                },
                (1, 6),
                &[],
            ),
            // Which of the two pieces comes second is the threads' affair.
            "damaged: x has bytes",
        ),
        (
            write(
                &|image| {
                    image.chunk(1, 0, 3, b"deF", Compression::None, None);
                    image.end(1, 0, whole);
                },
                (1, 6),
                &[],
            ),
            "the checksum of x does not match",
        ),
        (write(&rest, (2, 6), &[]), "the image has 1 files of 6 bytes, its end says 2 of 6"),
        (write(&rest, (1, 7), &[]), "its end says 1 of 7"),
        (write(&rest, (1, 6), &[2]), "file 2 is superseded and not in the image"),
        (
            write(
                &|image| {
                    rest(image);
                    image.end(0, 2, Crc32::of(b""));
                },
                (2, 6),
                &[],
            ),
            "there are two files called x",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// An index whose checksum is right and whose contents are not.
#[test]
fn an_index_that_contradicts_itself() {
    use prost::Message;
    use vramstream_streamer::proto::format::{FileEnd, ImageEnd, IndexFile, IndexTable};
    let file = |file, name: &str| IndexFile { file, name: name.into(), end: None };
    let table = |files: Vec<IndexFile>, chunks, stored| IndexTable {
        files,
        chunks,
        image_end: Some(ImageEnd {
            shard_chunks: chunks,
            shard_stored_bytes: stored,
            ..ImageEnd::default()
        }),
    };
    let error = |table: &IndexTable, records: &[u8]| {
        let table = table.encode_to_vec();
        let body = [&(table.len() as u32).to_le_bytes(), &table[..], records].concat();
        let index = Index::decode(&body, Crc32::of(&body).value, 1000);
        match index.and_then(|index| index.chunks().collect::<Result<Vec<_>, _>>()) {
            Err(error) => error.to_string(),
            Ok(records) => panic!("{records:?}"),
        }
    };
    // One raw chunk: raw length 5, frame of 20 bytes.
    let record = b"\x10\x05\x14\0\0\0\0";
    let one = || vec![file(0, "a")];
    let mut end_of_other = table(one(), 1, 5);
    end_of_other.files[0].end = Some(FileEnd { file: 1, ..FileEnd::default() });
    let too_many = vec![IndexFile::default(); (1 << 18) + 1];
    let cases = [
        (error(&table(one(), 2, 5), record), "an index record that is cut"),
        (error(&table(one(), 1, 5), &record[..6]), "an index record that is cut"),
        (error(&table(one(), 0, 0), record), "an index longer than its chunks"),
        (error(&table(one(), 1, 4), record), "totals that are not those of the shard"),
        (error(&table(one(), 1, 6), record), "totals that are not those of the shard"),
        (error(&table(vec![], 1, 5), record), "a chunk of a file that was not named"),
        (error(&table([one(), one()].concat(), 1, 5), record), "a file that is named twice"),
        (error(&table(vec![file(0, "../a")], 1, 5), record), "is not a plain file name"),
        (error(&table(vec![file(1 << 18, "a")], 1, 5), record), "number of a file"),
        (error(&table(too_many, 0, 0), b""), "number of files"),
        (error(&end_of_other, record), "an index entry with another file's end"),
        (error(&table(one(), 1, 5), b"\x10\x05\xe8\x07\0\0\0\0"), "an index record past the index"),
        (error(&table(one(), 1, 5), b"\x30\x05\xe8\x07\x14\0\0\0\0"), "past the index"),
        (error(&table(one(), 1, 5), b"\x13\x05\x14\0\0\0\0"), "uses codec 3"),
        (error(&table(one(), 1, 5), b"\x90\x05\x14\0\0\0\0"), "an unknown flag"),
        (error(&table(one(), 1, 0), b"\x10\0\x14\0\0\0\0"), "a chunk of no bytes"),
    ];
    for (error, expected) in cases {
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// A trailer whose checksum is right and whose contents are not.
#[test]
fn a_trailer_that_points_elsewhere() {
    let shard = NativeImage::new(1, 1, &[]).finish(0, 0, &[]).swap_remove(0);
    let at = shard.len() - TRAILER_BYTES;
    let index_at =
        Trailer::decode(shard.last_chunk().unwrap(), shard.len() as u64).unwrap().index_at;
    let altered = |index_at: u64, shard_len: u64, reserved: u32| {
        let mut shard = shard.clone();
        shard[at..at + 8].copy_from_slice(&index_at.to_le_bytes());
        shard[at + 8..at + 16].copy_from_slice(&shard_len.to_le_bytes());
        shard[at + 16..at + 20].copy_from_slice(&reserved.to_le_bytes());
        let crc = Crc32::of(&shard[at..at + 20]).value;
        shard[at + 20..at + 24].copy_from_slice(&crc.to_le_bytes());
        shard
    };
    let len = shard.len() as u64;
    assert!(read_bytes(&[altered(index_at, len, 0)]).is_ok());
    for (index_at, len, reserved) in [
        (index_at - 1, len, 0),
        (0, len, 0),
        (u64::MAX, len, 0),
        (index_at, len + 1, 0),
        (index_at, len, 1),
    ] {
        let altered = altered(index_at, len, reserved);
        refused(std::slice::from_ref(&altered));
        // From the end, too.
        let seek = |altered: &[u8]| {
            let trailer = Trailer::decode(altered.last_chunk()?, altered.len() as u64).ok()?;
            let prefix = altered.get(trailer.index_at as usize..)?.first_chunk()?;
            index_len(prefix, &trailer).ok()
        };
        assert!(seek(&shard).is_some());
        assert_eq!(seek(&altered), None, "{index_at} {len} {reserved}");
    }
}
