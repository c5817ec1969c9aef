//! What is fed arrives, and what cannot be an image is refused.

use super::*;

#[test]
fn files_fed_by_several_threads_arrive_whole() {
    for compression in [Compression::None, Compression::Lz4, Compression::Auto] {
        for stages in [StageThreads::Compress, StageThreads::Checksum] {
            for memory in [Memory::Budget(4 << 20), ring(8), ring(1)] {
                arrives(compression, stages, memory);
            }
        }
    }
}

fn arrives(compression: Compression, stages: StageThreads, memory: Memory) {
    let (place, fate) = place(2, After::Nothing);
    let mut packer = started(place, memory, compression, stages, || Ok(()));
    let sizes = [0, 1, 40 * CHUNK + 7, 9 * CHUNK];
    let files: Vec<_> = (0..).zip(sizes).map(|(n, size)| (n, contents(n.into(), size))).collect();
    let feed = packer.feed();
    let handles: Vec<_> =
        files.iter().map(|(n, _)| feed.file(*n, name(&format!("file-{n}")))).collect();
    // Ends before, between and after the chunks.
    feed.end(&handles[2], sizes[2] as u64).unwrap();
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (mut feed, files, handles) = (feed.clone(), &files, &handles);
            scope.spawn(move || {
                for ((_, bytes), handle) in files.iter().zip(handles) {
                    let chunks = bytes.chunks(CHUNK).enumerate();
                    for (at, bytes) in chunks.filter(|(at, _)| at % 3 == worker) {
                        let offset = (at * CHUNK) as u64;
                        let payload = payload(&feed, bytes).unwrap();
                        if at % 2 == 0 {
                            feed.chunk(handle, offset, payload).unwrap();
                        } else {
                            feed.chunk_later(handle, offset, payload).unwrap();
                        }
                    }
                }
            });
        }
    });
    for n in [0, 1, 3] {
        feed.end(&handles[n], sizes[n] as u64).unwrap();
    }
    let raw_bytes = sizes.iter().sum::<usize>() as u64;
    // The feed is still there, and so are its clones' files: nothing waits for them to go.
    let totals = Totals { files: 4, raw_bytes, superseded: Vec::new() };
    let (stats, taken) = soon("a commit", move || {
        let stats = packer.commit(&totals).unwrap();
        (stats, packer.feed().ring().free() == packer.feed().ring().chunks())
    });
    assert!(taken, "a chunk was not given back");
    assert!(fate.committed.load(Ordering::Acquire));
    let stored: u64 = stats.iter().map(|shard| shard.bytes).sum();
    assert_eq!(stored, fate.shards.iter().map(|s| s.lock().unwrap().len() as u64).sum::<u64>());
    if compression == Compression::Lz4 {
        assert!(stored < raw_bytes * 4 / 10, "a third is noise, the rest shrinks: {stored}");
    }
    let got = fate.read().unwrap();
    for (n, bytes) in files {
        assert!(got[&format!("file-{n}")] == bytes, "file {n} under {compression:?}, {stages:?}");
    }
}

#[test]
fn chunks_of_another_ring_and_another_size_are_taken_as_well() {
    let (place, fate) = place(1, After::Nothing);
    let mut packer = start(place, ring(8), Compression::Lz4);
    let other = Ring::new(8 * CHUNK, 2).unwrap();
    let mut feed = packer.feed();
    let file = feed.file(0, name("gpu"));
    let bytes = contents(1, 64 * CHUNK);
    for (at, bytes) in (0..).zip(bytes.chunks(8 * CHUNK)) {
        let mut chunk = other.take(PATIENCE).unwrap();
        chunk.copy_from_slice(bytes);
        let payload = Payload { len: chunk.len(), chunk };
        feed.chunk_later(&file, at * 8 * CHUNK as u64, payload).unwrap();
    }
    feed.end(&file, bytes.len() as u64).unwrap();
    let raw_bytes = bytes.len() as u64;
    let stats = packer.commit(&Totals { files: 1, raw_bytes, superseded: Vec::new() }).unwrap();
    assert!(stats[0].bytes < raw_bytes * 6 / 10, "text is compressed: {}", stats[0].bytes);
    assert_eq!(other.free(), 2);
    assert!(fate.read().unwrap()["gpu"] == bytes);
}

#[test]
fn an_image_with_a_file_that_has_not_ended_is_not_committed() {
    for missing in ["the end", "a chunk"] {
        let (place, fate) = place(1, After::Nothing);
        let mut packer = start(place, ring(8), Compression::None);
        let mut feed = packer.feed();
        let file = feed.file(0, name("half"));
        feed.chunk(&file, 0, payload(&feed, b"half").unwrap()).unwrap();
        if missing == "a chunk" {
            feed.end(&file, 8).unwrap();
        }
        let totals = Totals { files: 1, raw_bytes: 4, superseded: Vec::new() };
        let error = packer.commit(&totals).expect_err(missing);
        assert!(matches!(error, Error::DumpIncomplete(_)), "{error}");
        packer.abort("it is not whole");
        assert!(!fate.committed.load(Ordering::Acquire));
        let read = fate.read().expect_err(missing).report().to_string();
        assert!(read.contains("it is not whole"), "{read}");
    }
}

#[test]
fn what_comes_after_the_end_is_refused_and_so_is_what_comes_twice() {
    let (place, _) = place(1, After::Nothing);
    let mut packer = start(place, ring(8), Compression::None);
    let mut feed = packer.feed();
    let file = feed.file(0, name("one"));
    feed.end(&file, 0).unwrap();
    packer.commit(&Totals { files: 1, raw_bytes: 0, superseded: Vec::new() }).unwrap();
    let error = feed.chunk(&file, 0, payload(&feed, b"late").unwrap()).unwrap_err();
    assert!(matches!(error, Error::GivenUp), "{error}");
    let error = packer.explain(error);
    assert!(matches!(&error, Error::DumpIncomplete(what) if what.contains("one")), "{error}");

    let twice: [fn(&mut Feed, &FileHandle) -> Result<()>; 2] = [
        |feed, file| feed.chunk(file, 2, payload(feed, b"cd").unwrap()),
        |feed, file| feed.end(file, 4),
    ];
    for again in twice {
        let (place, _) = self::place(1, After::Nothing);
        let mut packer = start(place, ring(8), Compression::None);
        let mut feed = packer.feed();
        let file = feed.file(0, name("two"));
        feed.chunk(&file, 0, payload(&feed, b"abcd").unwrap()).unwrap();
        feed.end(&file, 4).unwrap();
        let error = again(&mut feed, &file).unwrap_err();
        let error = packer.explain(error);
        let two = |name: &FileName| name.as_str() == "two";
        assert!(
            matches!(&error, Error::Image(ImageError::Overlap { name, .. } | ImageError::EndTwice(name)) if two(name)),
            "{error}"
        );
    }
}

#[test]
fn a_chunk_without_bytes_fails_the_image() {
    for later in [false, true] {
        let (place, fate) = place(1, After::Nothing);
        let mut packer = start(place, ring(8), Compression::None);
        let mut feed = packer.feed();
        let file = feed.file(0, name("empty"));
        feed.end(&file, 0).unwrap();
        let empty = payload(&feed, &[]).unwrap();
        let _ = if later { feed.chunk_later(&file, 0, empty) } else { feed.chunk(&file, 0, empty) };
        let totals = Totals { files: 1, raw_bytes: 0, superseded: Vec::new() };
        assert!(packer.commit(&totals).is_err());
        assert!(!fate.committed.load(Ordering::Acquire));
    }
}
