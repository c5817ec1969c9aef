//! Connections that the receiver must not take, while a real sender gets in.

use super::{lost_senders::say_hello, *};

/// What the receiver answers to a connection.
fn answer(mut stream: &TcpStream, first: &[u8]) -> String {
    stream.write_all(first).unwrap();
    match socket::read_message(stream, Instant::now() + NOTICED) {
        Ok(Message::Failed(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

/// A real transfer to the same receiver.
fn transfer(mut origin: TcpOrigin, connections: u32) {
    let at = origin.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            read_image(origin.open().unwrap()).unwrap();
            origin.committed(0, 0).unwrap();
        });
        let mut destination = destination(at, connections);
        let mut writers = destination.open(IMAGE).unwrap();
        write_image(&mut writers, &files(1)).unwrap();
        destination.commit(&mut || Ok(())).unwrap();
    });
}

#[test]
fn bad_hellos_are_answered_and_do_no_harm() {
    let role = || Role::Control { shards: 1, writer: String::new() };
    let mut old = Hello::new(IMAGE, role());
    (old.version_min, old.version_max) = (3, 5);
    let huge = [&super::super::protocol::MAGIC[..], &u32::MAX.to_le_bytes()].concat();
    let garbage =
        [&super::super::protocol::MAGIC[..], &3u32.to_le_bytes(), b"\xff\xff\xff"].concat();
    let shards = |shards| Hello::new(IMAGE, Role::Control { shards, writer: String::new() });
    let bad: [(Vec<u8>, &[&str]); 7] = [
        (b"GET / HTTP/1.1\r\n\r\n".repeat(600_000), &["not a vramstream sender"]),
        (huge, &["4294967295 bytes"]),
        (garbage, &["protobuf"]),
        (old.encode(), &["versions 3 to 5", "the receiver 1:"]),
        (shards(0).encode(), &["0 shards"]),
        (shards(257).encode(), &["257 shards"]),
        (Hello::new(IMAGE, Role::Shard(256)).encode(), &["shard 256"]),
    ];
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let origin = origin().with_notice(move |line| notes.lock().unwrap().push(line.to_owned()));
    let at = origin.local_addr();
    let streams: Vec<_> = bad.iter().map(|_| TcpStream::connect(at).unwrap()).collect();
    std::thread::scope(|scope| {
        for (stream, (bytes, words)) in streams.iter().zip(&bad) {
            scope.spawn(move || {
                let reason = answer(stream, bytes);
                assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
            });
        }
        transfer(origin, 2);
    });
    assert_eq!(seen.lock().unwrap().iter().filter(|line| line.contains("refused")).count(), 7);
}

/// More of them than are greeted at a time, before the real one, which gets in when they have had
/// their time; and one that sends a byte now and then has no more of it.
#[test]
fn connections_that_say_nothing_are_dropped() {
    let origin = origin();
    let at = origin.local_addr();
    let silent: Vec<_> = (0..70).map(|_| TcpStream::connect(at).unwrap()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for byte in super::super::protocol::MAGIC {
                if (&silent[0]).write_all(&[byte]).is_err() {
                    return;
                }
                std::thread::sleep(TIMES.handshake / 5);
            }
            panic!("was not dropped");
        });
        let patient = Timeouts { handshake: NOTICED, ..TIMES };
        let mut origin = origin;
        let receiver = scope.spawn(move || origin.open().map(|shards| (shards.len(), origin)));
        let mut destination = TcpDestination::new(&at.to_string(), 1, patient).unwrap();
        let started = Instant::now();
        let writers = destination.open(IMAGE).unwrap();
        assert!(started.elapsed() < 3 * TIMES.handshake, "{:?}", started.elapsed());
        assert_eq!(receiver.join().unwrap().unwrap().0, 1);
        drop(writers);
    });
}

#[test]
fn others_are_refused_during_a_transfer() {
    let mut origin = origin();
    let at = origin.local_addr();
    let (opened, is_open) = crossbeam_channel::bounded(1);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let shards = origin.open().unwrap();
            opened.send(()).unwrap();
            read_image(shards).unwrap();
            origin.committed(0, 0).unwrap();
        });
        let mut first = destination(at, 2);
        let mut writers = first.open(IMAGE).unwrap();
        is_open.recv().unwrap();
        let error = destination(at, 1).open(ImageId([9; 16])).err().unwrap();
        assert_names(&error, at, "busy");
        for (image, shard, words) in [
            (ImageId([9; 16]), 0, "busy"),
            (IMAGE, 0, "shard 0 is there already"),
            (IMAGE, 2, "shard 2 of an image of 2 shards"),
        ] {
            let reason = answer(&say_hello(at, image, Role::Shard(shard)), &[]);
            assert!(reason.contains(words), "{reason}");
        }
        write_image(&mut writers, &files(2)).unwrap();
        first.commit(&mut || Ok(())).unwrap();
        receiver.join().unwrap();
    });
}

/// Shards first, in the wrong order, with another image's among them.
#[test]
fn any_order_will_do() {
    let mut origin = origin();
    let at = origin.local_addr();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let shards = origin.open().unwrap();
            let mut names: Vec<_> =
                shards.iter().map(|shard| shard.describe().to_owned()).collect();
            names.sort();
            assert!(names[0].starts_with("shard 0 from 127.0.0.1:"), "{names:?}");
            assert_eq!(names.len(), 2);
            origin
        });
        let foreign = say_hello(at, ImageId([9; 16]), Role::Shard(0));
        let one = say_hello(at, IMAGE, Role::Shard(1));
        std::thread::sleep(Duration::from_millis(50));
        let peer =
            Peer::new(say_hello(at, IMAGE, Role::Control { shards: 2, writer: String::new() }));
        assert_eq!(peer.hear(), Message::Accept(1));
        let zero = say_hello(at, IMAGE, Role::Shard(0));
        assert!(answer(&foreign, &[]).contains("busy"));
        let origin = receiver.join().unwrap();
        drop((one, zero, origin));
    });
}
