//! Shards that fail, stick or are given up, and feeds that do.

use super::*;

/// Feeds until there is an error.
fn feed_until_error(mut feed: Feed, file: &FileHandle, later: bool, other: Option<&Ring>) -> Error {
    let start = Instant::now();
    let mut places = (0..).step_by(CHUNK);
    loop {
        let at = places.next().unwrap();
        let payload = match other {
            None => payload(&feed, &[7; CHUNK]),
            Some(ring) => {
                let mut chunk = ring.take(PATIENCE).unwrap();
                chunk.fill(7);
                Ok(Payload { len: chunk.len(), chunk })
            }
        };
        let fed = payload.and_then(|payload| match later {
            true => feed.chunk_later(file, at, payload),
            false => feed.chunk(file, at, payload),
        });
        if let Err(error) = fed {
            return error;
        }
        assert!(start.elapsed() < PATIENCE, "nothing is noticed");
    }
}

#[test]
fn a_shard_that_fails_ends_every_feed_and_the_packer_knows_why() {
    for after in [After::Fail(5 * CHUNK), After::Panic(5 * CHUNK)] {
        let (place, fate) = place(2, after);
        let packer = start(place, ring(8), Compression::Auto);
        let feeds: Vec<_> = (0..4)
            .map(|n| {
                let feed = packer.feed();
                let file = feed.file(n, name(&format!("file-{n}")));
                std::thread::spawn(move || feed_until_error(feed, &file, n % 2 == 0, None))
            })
            .collect();
        let (errors, mut packer) = soon("a feed", move || {
            let errors: Vec<_> = feeds.into_iter().map(|feed| feed.join().unwrap()).collect();
            (errors, packer)
        });
        assert!(errors.iter().all(|error| matches!(error, Error::GivenUp)), "{errors:?}");
        let cause = packer.explain(Error::GivenUp);
        let expected = match after {
            After::Fail(_) => {
                matches!(&cause, Error::Io { doing, .. } if doing.contains("the place"))
            }
            _ => matches!(&cause, Error::Panicked(thread) if thread == "shard"),
        };
        assert!(expected, "{cause:?}");
        soon("an abort", move || packer.abort("it failed"));
        assert_eq!(fate.aborted.lock().unwrap().as_deref(), Some("it failed"));
        assert!(fate.read().is_err());
    }
}

/// Says once, to whoever asks first, that a signal has come.
fn signalled() -> impl Fn() -> Result<()> + Send + Sync + 'static {
    let signal = AtomicBool::new(true);
    move || {
        let told = !signal.swap(false, Ordering::AcqRel);
        told.then_some(()).ok_or(Error::Interrupted("SIGTERM"))
    }
}

#[test]
fn a_shard_that_is_stuck_hangs_nobody() {
    // Chunks of another ring fill the queues; the packer's own are all out before that.
    for (own_chunks, later, compression) in [
        (true, false, Compression::None),
        (false, false, Compression::None),
        (false, true, Compression::Lz4),
    ] {
        let (place, fate) = place(1, After::Stick(0));
        fate.stuck.store(true, Ordering::Release);
        let memory = ring(if own_chunks { 8 } else { 1 });
        let mut packer = started(place, memory, compression, StageThreads::Checksum, signalled());
        let other = (!own_chunks).then(|| Ring::new(CHUNK, 64).unwrap());
        let feeds: Vec<_> = (0..3)
            .map(|n| {
                let (feed, other) = (packer.feed(), other.clone());
                let file = feed.file(n, name(&format!("file-{n}")));
                std::thread::spawn(move || feed_until_error(feed, &file, later, other.as_ref()))
            })
            .collect();
        let cause = soon("a feed", move || {
            let errors: Vec<_> = feeds.into_iter().map(|feed| feed.join().unwrap()).collect();
            assert!(errors.iter().all(|error| matches!(error, Error::GivenUp)), "{errors:?}");
            let cause = packer.explain(Error::GivenUp);
            packer.abort("interrupted");
            cause
        });
        assert!(matches!(cause, Error::Interrupted("SIGTERM")), "{cause:?}");
        assert!(fate.aborted.lock().unwrap().is_some());
        fate.stuck.store(false, Ordering::Release);
    }
}

#[test]
fn a_commit_to_a_shard_that_is_stuck_can_be_stopped() {
    let (place, fate) = place(1, After::Stick(0));
    fate.stuck.store(true, Ordering::Release);
    let mut packer =
        started(place, ring(8), Compression::None, StageThreads::Compress, signalled());
    let mut feed = packer.feed();
    let file = feed.file(0, name("one"));
    feed.chunk(&file, 0, payload(&feed, b"abcd").unwrap()).unwrap();
    feed.end(&file, 4).unwrap();
    let error = soon("a commit", move || {
        let totals = Totals { files: 1, raw_bytes: 4, superseded: Vec::new() };
        let error = packer.commit(&totals).unwrap_err();
        packer.abort("interrupted");
        error
    });
    assert!(matches!(error, Error::Interrupted("SIGTERM")), "{error:?}");
    fate.stuck.store(false, Ordering::Release);
    assert!(!fate.committed.load(Ordering::Acquire));
}

#[test]
fn an_abort_reaches_the_shards_though_feeds_are_left() {
    let (place, fate) = place(2, After::Nothing);
    let mut packer = start(place, ring(8), Compression::Lz4);
    let mut feed = packer.feed();
    let file = feed.file(0, name("one"));
    feed.chunk(&file, 0, payload(&feed, b"abcd").unwrap()).unwrap();
    packer.abort("the device is gone");
    let error = fate.read().unwrap_err().report().to_string();
    assert!(error.contains("the device is gone"), "{error}");
    assert_eq!(fate.aborted.lock().unwrap().as_deref(), Some("the device is gone"));
    assert!(feed.chunk(&file, 4, payload(&feed, b"efgh").unwrap()).is_err());
}

#[test]
fn a_feed_that_fails_fails_the_image() {
    let (place, fate) = place(1, After::Nothing);
    let mut packer = start(place, ring(8), Compression::None);
    packer.feed().fail(Error::Faulty("the memory of GPU 3"));
    assert!(matches!(packer.feed().go_on(), Err(Error::GivenUp)));
    let totals = Totals { files: 0, raw_bytes: 0, superseded: Vec::new() };
    let error = packer.commit(&totals).unwrap_err();
    assert!(matches!(error, Error::Faulty("the memory of GPU 3")), "{error:?}");
    assert!(!fate.committed.load(Ordering::Acquire));
}

#[test]
fn what_is_dropped_is_not_an_image() {
    let (place, fate) = place(2, After::Nothing);
    let packer = start(place, ring(8), Compression::None);
    let feed = packer.feed();
    let file = feed.file(0, name("one"));
    feed.end(&file, 0).unwrap();
    drop(packer);
    assert!(feed.end(&file, 0).is_err());
    assert!(fate.read().is_err());
    assert!(!fate.committed.load(Ordering::Acquire));
}

#[test]
fn a_budget_of_too_few_pages_is_refused() {
    for (bytes, fits) in [(31 * page_bytes(), false), (32 * page_bytes(), true)] {
        let (place, _) = place(1, After::Nothing);
        let options = Options {
            compression: Compression::None,
            memory: Memory::Budget(bytes as u64),
            stages: StageThreads::Compress,
        };
        let packer = Packer::start(place, options, || Ok(()), &Progress::silent());
        assert_eq!(packer.is_ok(), fits, "{bytes}");
    }
}
