//! `verify` and `inspect`, on the images that are kept in `tests/golden`.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use vramstream_streamer::{
    absorb::{Progress, ShardStat},
    inspect::{Inspection, Totals},
    seekable::SeekableImage,
    verify::verify,
};

use crate::{
    golden::{kept, path},
    support::{readers, report},
};

const NATIVE: [&str; 2] = ["native-0.shard", "native-1.shard"];
const MARKERS: [&str; 2] = ["criu-image-streamer-0.shard", "criu-image-streamer-1.shard"];

fn no_progress() -> Progress {
    Arc::new(|_, _| {})
}

fn of_stream(files: [&str; 2]) -> Inspection {
    Inspection::of_stream(readers(&files.map(kept), 1000), &no_progress()).unwrap()
}

#[test]
fn a_table_for_people() {
    let expected = "\
format     native, version 1
image      5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a
written by vramstream tests
created    2023-11-14 22:13:20 UTC
shards     2 (2769 + 1860 bytes)
files      3, and 1 written again
size       7200 bytes, stored in 3051 (ratio 2.36)
verified   every byte

codec      chunks            bytes           stored
raw             3             3040             3040
zero            1             4096                0
lz4             1               64               11

file                     bytes           stored     chunks crc-32
pages-1.img               7160             3011          4 40ea7cd7
inventory.img               40               40          1 f087dc80
empty.img                    0                0          0 00000000
";
    assert_eq!(of_stream(NATIVE).to_string(), expected);
}

#[test]
fn an_image_of_criu_image_streamer() {
    let inspection = of_stream(MARKERS);
    assert_eq!((inspection.format, inspection.version), ("criu-image-streamer", None));
    assert_eq!((&inspection.image, inspection.created_unix_ms), (&None, None));
    assert_eq!((inspection.shards, inspection.files.len()), (vec![8322, 4458], 4));
    let zero = Totals { chunks: 1, raw_bytes: 4096, stored_bytes: 4096 };
    assert_eq!(inspection.codecs.zero, zero);
    assert_eq!(inspection.total.ratio(), Some(1.0));
}

#[test]
fn json_for_programs() {
    let json = serde_json::to_value(of_stream(NATIVE)).unwrap();
    let file = serde_json::json!({
        "name": "pages-1.img", "crc32": "40ea7cd7", "chunks": 4, "raw_bytes": 7160, "stored_bytes": 3011,
    });
    assert_eq!(json["files"][0], file);
    assert_eq!(json["codecs"]["lz4"]["stored_bytes"], 11);
    assert_eq!(json["total"]["raw_bytes"], 7200);
    assert_eq!(json["payloads_verified"], true);
}

fn of_index(shards: &[(String, File)]) -> Inspection {
    let open = |(name, file): &(String, File)| (name.clone(), file.try_clone().unwrap());
    let size = |(_, file): &(String, File)| file.metadata().unwrap().len();
    let sizes = shards.iter().map(|shard| ShardStat { bytes: size(shard), duration_ms: 0 });
    let sizes: Vec<_> = sizes.collect();
    Inspection::of_index(&SeekableImage::open(shards.iter().map(open).collect()).unwrap(), &sizes)
}

#[test]
fn an_index_says_the_same_as_the_stream() {
    let shards = NATIVE.map(|file| (file.to_owned(), File::open(path(file)).unwrap()));
    let found = of_index(&shards);
    assert!(!found.payloads_verified);
    assert_eq!(Inspection { payloads_verified: true, ..found }, of_stream(NATIVE));
}

/// The index is enough to inspect and not to verify.
#[test]
fn a_damaged_payload_is_found_by_verify_alone() {
    let mut shards = NATIVE.map(kept);
    assert!(verify(readers(&shards, usize::MAX), &no_progress()).is_ok());
    // In the first 1000 bytes of pages-1.img, at a multiple of 512 in the second shard.
    shards[1][512 + 100] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    let files = NATIVE.map(|file| (file.to_owned(), dir.path().join(file)));
    for ((_, path), bytes) in files.iter().zip(&shards) {
        std::fs::write(path, bytes).unwrap();
    }
    let files = files.map(|(name, path)| (name, File::open(path).unwrap()));
    assert_eq!(of_index(&files).files.len(), 3);
    let error = verify(readers(&shards, usize::MAX), &no_progress()).unwrap_err();
    let expected = "shard 1: damaged: the payload of pages-1.img at byte 0";
    assert!(report(&error).starts_with(expected), "{}", report(&error));
}

#[test]
fn verify_tells_how_far_it_is() {
    let bytes = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&bytes);
    let progress: Progress = Arc::new(move |_, n| {
        counted.fetch_add(n, Ordering::Relaxed);
    });
    let absorbed = verify(readers(&MARKERS.map(kept), 77), &progress).unwrap();
    assert_eq!(absorbed.manifest.end.raw_bytes, 12540);
    assert_eq!(bytes.load(Ordering::Relaxed), 8322 + 4458);
}
