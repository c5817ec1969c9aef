//! Transfers that have to succeed, slowly if need be.

use super::*;

/// Sends and receives an image; both sides' results.
fn transfer(mut origin: TcpOrigin, to: &str, connections: u32) {
    let files = files(9);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let shards = origin.open().unwrap();
            assert_eq!(shards.len(), connections as usize);
            let (absorbed, files) = read_image(shards).unwrap();
            assert_eq!(absorbed.manifest.image, IMAGE);
            origin.committed(absorbed.manifest.end.files, absorbed.manifest.end.raw_bytes).unwrap();
            files
        });
        let mut destination = destination(to, connections);
        let mut writers = destination.open(IMAGE).unwrap();
        write_image(&mut writers, &files).unwrap();
        destination.health().unwrap();
        destination.commit(&mut || Ok(())).unwrap();
        assert_eq!(receiver.join().unwrap(), files);
    });
}

#[test]
fn images_arrive() {
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        for connections in [1, 4] {
            let origin = TcpOrigin::bind(listen, TIMES).unwrap();
            let to = origin.local_addr().to_string();
            transfer(origin, &to, connections);
        }
    }
}

/// A name stands for several addresses; the receiver listens at one of them.
#[test]
fn every_address_is_tried() {
    let closed = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let open = TcpListener::bind("[::1]:0").unwrap();
    let (one, two, three) = (closed(), open.local_addr().unwrap(), closed());
    assert_eq!(socket::connect("name:7", &[one, two, three], &TIMES).unwrap().1, two);
    let error = socket::connect("name:7", &[one, three], &TIMES).unwrap_err();
    assert_names(&error, "name:7", &format!("tried {one}, {three}"));
}

#[test]
fn a_name_is_resolved() {
    let origin = origin();
    let to = format!("localhost:{}", origin.local_addr().port());
    assert!(socket::resolve(&to).unwrap().contains(&origin.local_addr()));
    transfer(origin, &to, 2);
}

/// More than all buffers hold, and a reader that starts long after the silence would be over.
#[test]
fn a_slow_receiver_is_not_given_up() {
    const BYTES: usize = 24 << 20;
    let mut origin = origin();
    let mut destination = destination(origin.local_addr(), 1);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut shards = origin.open().unwrap();
            std::thread::sleep(4 * TIMES.silence);
            let mut bytes = Vec::new();
            shards[0].read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len(), BYTES);
            // Nor one that takes its time to verify.
            std::thread::sleep(2 * TIMES.silence);
            origin.committed(1, 1).unwrap();
        });
        let mut writers = destination.open(IMAGE).unwrap();
        writers[0].write(&vec![1; BYTES]).unwrap();
        writers[0].finish().unwrap();
        destination.commit(&mut || Ok(())).unwrap();
        receiver.join().unwrap();
    });
}

#[test]
fn an_idle_sender_is_not_given_up() {
    let mut origin = origin();
    let mut destination = destination(origin.local_addr(), 2);
    let files = files(2);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (_, files) = read_image(origin.open().unwrap()).unwrap();
            origin.committed(0, 0).unwrap();
            files
        });
        let mut writers = destination.open(IMAGE).unwrap();
        std::thread::sleep(3 * TIMES.silence);
        write_image(&mut writers, &files).unwrap();
        std::thread::sleep(3 * TIMES.silence);
        destination.commit(&mut || Ok(())).unwrap();
        assert_eq!(receiver.join().unwrap(), files);
    });
}

/// The sender may change its mind when all shards are there and before it has said so.
#[test]
fn an_abort_after_the_last_byte_counts() {
    let mut origin = origin();
    let at = origin.local_addr();
    let mut destination = destination(at, 1);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            read_image(origin.open().unwrap()).unwrap();
            origin.committed(0, 0).unwrap_err()
        });
        let mut writers = destination.open(IMAGE).unwrap();
        write_image(&mut writers, &files(1)).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        destination.abort(REASON);
        assert_names(&receiver.join().unwrap(), "127.0.0.1:", REASON);
    });
}

/// Each end's own reason reaches the other one, whatever that one meets first.
#[test]
fn reasons_arrive_in_the_middle_of_an_image() {
    let mut origin = origin();
    let at = origin.local_addr();
    let mut destination = destination(at, 2);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            // It may be gone before its shards have come in.
            let error = origin.open().and_then(read_image).unwrap_err();
            origin.explain(error)
        });
        let mut writers = destination.open(IMAGE).unwrap();
        writers[0].write(&Prologue { image: IMAGE, shard: 0, shards: 2 }.encode()).unwrap();
        drop(writers);
        destination.abort(REASON);
        assert_names(&receiver.join().unwrap(), "127.0.0.1:", REASON);
    });

    let mut origin = super::origin();
    let at = origin.local_addr();
    let mut destination = super::destination(at, 1);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let shards = origin.open().unwrap();
            origin.failed(REASON);
            drop(shards);
        });
        let mut writers = destination.open(IMAGE).unwrap();
        let error = (0..1000).find_map(|_| writers[0].write(&[0; 65536]).err()).unwrap();
        assert_names(&destination.explain(error), at, REASON);
        assert_names(&destination.health().unwrap_err(), at, REASON);
        assert_names(&destination.commit(&mut || Ok(())).unwrap_err(), at, "");
        receiver.join().unwrap();
    });
}

/// Dropping an end in the middle is giving up: the other one notices at once.
#[test]
fn a_dropped_end_is_noticed() {
    let mut origin = origin();
    let mut destination = destination(origin.local_addr(), 1);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            // It may be gone before its shards have come in.
            let error = origin.open().and_then(read_image).unwrap_err();
            origin.explain(error)
        });
        let writers = destination.open(IMAGE).unwrap();
        drop((destination, writers));
        assert_names(&receiver.join().unwrap(), "127.0.0.1:", "it ended before");
    });
}

#[test]
fn an_unfinished_shard_is_not_committed() {
    let mut origin = origin();
    let at = origin.local_addr();
    let mut destination = destination(at, 2);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| origin.open().and_then(read_image).unwrap_err());
        let mut writers = destination.open(IMAGE).unwrap();
        writers[0].finish().unwrap();
        let error = destination.commit(&mut || Ok(())).unwrap_err();
        assert_names(&error, at, "only 1 of 2 shards");
        drop((destination, writers));
        receiver.join().unwrap();
    });
}

#[test]
fn mistakes_in_an_address_are_named() {
    for addr in ["", "localhost", "localhost:many"] {
        let error = TcpDestination::new(addr, 1, TIMES).unwrap().open(IMAGE).err().unwrap();
        assert!(matches!(&error, Error::Usage(_) | Error::Io { .. }), "{error:?}");
        assert_names(&error, addr, "");
        assert_names(&TcpOrigin::bind(addr, TIMES).unwrap_err(), addr, "");
    }
    assert!(TcpDestination::new("localhost:1", 0, TIMES).is_err());
    assert!(TcpDestination::new("localhost:1", 257, TIMES).is_err());
}

#[test]
fn nobody_there() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = destination(free, 1).open(IMAGE).err().unwrap();
    assert_names(&error, free, "is the receiver running");

    let times = Timeouts { sender: Some(Duration::from_millis(50)), ..TIMES };
    let mut origin = TcpOrigin::bind("127.0.0.1:0", times).unwrap();
    let error = origin.open().err().unwrap();
    assert_names(&error, origin.local_addr(), "waiting for a sender");
}
