//! Shards that are no image, and images that were altered.

use prost::Message;

use super::*;
use crate::{format::index, proto::format as pb};

#[test]
fn what_is_no_image_is_not_opened() {
    let (shards, _) = sample();
    let image_error = |shards: &[&[u8]]| match open(shards) {
        Err(Error::Image(error)) => error,
        other => panic!("{other:?}"),
    };
    let (a, b) = (&shards[0][..], &shards[1][..]);
    assert_eq!(image_error(&[]), ImageError::NoShard);
    assert_eq!(image_error(&[b]), ImageError::ShardsMissing { missing: vec![0], count: 2 });
    assert_eq!(image_error(&[a, b, a]), ImageError::ShardTwice(0));
    let other = Writer::new(8, 2).finish();
    assert!(matches!(image_error(&[a, &other[1]]), ImageError::Foreign { shard: 1, .. }));
    let same_id = Writer::new(7, 2).finish();
    assert_eq!(image_error(&[a, &same_id[1]]), ImageError::EndsDiffer(1));

    type Change = fn(&mut Writer);
    let broken: [(Change, ImageError); 6] = [
        (
            |w| w.chunk(0, F, 3, b"de", Codec::Raw, false),
            ImageError::FileIncomplete { name: name(), have: 5, size: Some(3) },
        ),
        (
            |w| w.chunk(0, F, 4, b"e", Codec::Raw, false),
            ImageError::FileIncomplete { name: name(), have: 3, size: Some(3) },
        ),
        (
            |w| w.chunk(0, F, 2, b"cd", Codec::Raw, false),
            ImageError::Overlap { name: name(), from: 2, to: 4 },
        ),
        (|w| w.file_end(1, F, Crc32::of(b"abc")), ImageError::EndTwice(name())),
        (|w| w.file_end(0, (2, "f"), Crc32::default()), ImageError::NameTwice(name())),
        (
            |w| w.raw_bytes += 1,
            ImageError::Totals { files: 1, raw_bytes: 3, expected_files: 1, expected_raw_bytes: 4 },
        ),
    ];
    const F: (u32, &str) = (1, "f");
    fn name() -> FileName {
        FileName::new("f").unwrap()
    }
    let with = |end: &[u8], change: Change| {
        let mut writer = Writer::new(1, 2);
        writer.chunk(0, F, 0, b"abc", Codec::Raw, false);
        writer.file_end(0, F, Crc32::of(end));
        change(&mut writer);
        writer.finish()
    };
    assert!(open(&with(b"abc", |_| {})).is_ok());
    for (change, expected) in broken {
        let shards = with(b"abc", change);
        let error = image_error(&[&shards[0], &shards[1]]);
        assert_eq!(error, expected);
    }
    let shards = with(b"abd", |_| {});
    assert_eq!(image_error(&[&shards[0], &shards[1]]), ImageError::FileChecksum(name()));
}

#[test]
fn a_damaged_payload_is_named() {
    let (mut shards, _) = sample();
    let image = open(&shards).unwrap();
    let chunk = image.file("pages-1.img").unwrap().chunk_at(0).unwrap();
    let at = usize::try_from(chunk.record.payload_at()).unwrap();
    assert_eq!((at % 4096, chunk.shard), (0, 0));
    shards[0][at + 5] ^= 1;
    let error = read_all(&open(&shards).unwrap()).unwrap_err().report().to_string();
    for part in ["shard number 0", "pages-1.img at byte 0", "checksum"] {
        assert!(error.contains(part), "{error}");
    }
    let pipe = std::io::pipe().unwrap();
    let pipe = File::from(std::os::fd::OwnedFd::from(pipe.0));
    let error = SeekableImage::open(vec![("standard input".into(), pipe)]).unwrap_err();
    assert!(error.to_string().contains("standard input is not a file"), "{error}");
}

/// Both the frame and the index are well formed; they disagree, or what is between is not nothing.
#[test]
fn a_frame_that_is_not_what_the_index_says_is_refused() {
    let image = |bytes: &[u8]| {
        let mut writer = Writer::new(1, 1);
        writer.chunk(0, (0, "f"), 0, bytes, Codec::Raw, true);
        writer.file_end(0, (0, "f"), Crc32::of(bytes));
        writer.finish().remove(0)
    };
    let (good, other) = (image(b"abc"), image(b"abd"));
    let opened = open(&[&good]).unwrap();
    let record = opened.file("f").unwrap().chunk_at(0).unwrap().record;
    let head = usize::try_from(record.frame_at).unwrap()
        ..usize::try_from(record.frame_at + record.frame_len).unwrap();
    let refusal =
        |shard: &[u8]| read_all(&open(&[shard]).unwrap()).unwrap_err().report().to_string();
    let mut bad = good.clone();
    bad[head.clone()].copy_from_slice(&other[head.clone()]);
    assert_ne!(bad, good);
    let error = refusal(&bad);
    assert!(
        error.contains("shard number 0") && error.contains("not what the index says"),
        "{error}"
    );
    let mut bad = good.clone();
    bad[head.end + 9] = 1;
    assert!(refusal(&bad).contains("padding that is not zero"));
    assert!(read_all(&open(&[&good]).unwrap()).is_ok());
}

/// Indexes that no writer makes, with checksums that match.
#[test]
fn an_index_that_contradicts_itself_is_refused() {
    let mut writer = Writer::new(1, 2);
    writer.chunk(0, (0, "f"), 0, b"abc", Codec::Raw, false);
    writer.file_end(0, (0, "f"), Crc32::of(b"abcabc"));
    writer.raw_bytes += 3;
    let crc = Crc32::of(b"abc").value;
    let header = ChunkHeader {
        file: 0,
        offset: 3,
        raw_len: 3,
        stored_len: 3,
        codec: Codec::Raw,
        crc,
        pad: 0,
    };
    let (encoder, out) = &mut writer.shards[1];
    encoder.chunk(header, None, out).unwrap();
    out.extend_from_slice(b"abc");
    let error = open(&writer.finish()).unwrap_err().report().to_string();
    assert!(error.contains("shard number 1") && error.contains("was not named"), "{error}");

    let mut writer = Writer::new(1, 1);
    writer.chunk(0, (0, "f"), 0, b"abc", Codec::Raw, false);
    writer.file_end(0, (0, "f"), Crc32::of(b"abc"));
    let mut shard = writer.finish().remove(0);
    let trailer_at = shard.len() - index::TRAILER_BYTES;
    let trailer = shard[trailer_at..].first_chunk().unwrap();
    let trailer = index::Trailer::decode(trailer, shard.len() as u64).unwrap();
    let prefix_at = usize::try_from(trailer.index_at).unwrap();
    let body_at = prefix_at + index::INDEX_PREFIX_BYTES;
    let table_len = u32::from_le_bytes(*shard[body_at..].first_chunk().unwrap()) as usize;
    let table = body_at + 4..body_at + 4 + table_len;
    let mut changed = pb::IndexTable::decode(&shard[table.clone()]).unwrap();
    changed.image_end.as_mut().unwrap().shard_stored_bytes = 4;
    shard[table].copy_from_slice(&changed.encode_to_vec());
    let crc = Crc32::of(&shard[body_at..trailer_at]).value;
    shard[prefix_at + 8..body_at].copy_from_slice(&crc.to_le_bytes());
    let error = open(&[shard]).unwrap_err().report().to_string();
    assert!(error.contains("totals that are not those of the shard"), "{error}");
}

proptest! {
    /// Any bit, anywhere: refused, or it changes nothing that is read. And any end that is cut.
    #[test]
    fn damage_is_never_believed(place: prop::sample::Index, bit in 0u8..8, shard in 0usize..2, cut: bool) {
        let (mut shards, expected) = sample();
        let at = place.index(shards[shard].len());
        if cut {
            shards[shard].truncate(at);
            prop_assert!(open(&shards).is_err());
        } else {
            shards[shard][at] ^= 1 << bit;
            if let Ok(files) = open(&shards).and_then(|image| read_all(&image)) {
                prop_assert_eq!(files, expected);
            }
        }
    }
}
