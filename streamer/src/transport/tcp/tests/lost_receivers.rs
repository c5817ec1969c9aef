//! Receivers that go at every stage, in every way: the sender fails, names them, and soon.

use super::*;

/// How far the receiver gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Connected,
    Accepted,
    InTheMiddle,
    Sent,
}

/// Plays a receiver up to a stage.
fn receive(listener: &TcpListener, until: Stage) -> Peer {
    let mut peer = Peer::new(listener.accept().unwrap().0);
    if until == Stage::Connected {
        return peer;
    }
    socket::read_hello(&peer.control, Instant::now() + NOTICED).unwrap();
    peer.say(&Message::Accept(1));
    peer.beat();
    let shard = listener.accept().unwrap().0;
    socket::read_hello(&shard, Instant::now() + NOTICED).unwrap();
    peer.shards.push(shard);
    match until {
        Stage::InTheMiddle => {
            peer.shards[0].read_exact(&mut [0; 1000]).unwrap();
            // Until the sender's writer is blocked.
            std::thread::sleep(Duration::from_millis(100));
        }
        Stage::Sent => {
            peer.shards[0].read_to_end(&mut Vec::new()).unwrap();
            assert!(matches!(peer.hear(), Message::Sent(1000)));
        }
        Stage::Connected | Stage::Accepted => {}
    }
    peer
}

/// Sends a shard, without end unless the receiver is to see the end of it.
fn send(destination: &mut TcpDestination, stage: Stage) -> Result<()> {
    let mut writers = destination.open(IMAGE)?;
    let written = match stage {
        Stage::Sent => writers[0].write(&[7; 1000]).and_then(|()| writers[0].finish()),
        // Nothing to write: only asking shows that the receiver has gone.
        Stage::Accepted => Ok(()),
        Stage::Connected | Stage::InTheMiddle => loop {
            if let Err(error) = writers[0].write(&[7; 65536]) {
                break Err(error);
            }
        },
    };
    written.map_err(|error| destination.explain(error))?;
    if stage != Stage::Accepted {
        return destination.commit(&mut || Ok(()));
    }
    loop {
        destination.health()?;
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn lose_receiver(stage: Stage, exit: Exit) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let error = std::thread::scope(|scope| {
        let gone = scope.spawn(|| {
            let stalled = receive(&listener, stage).exit(exit);
            (stalled, Instant::now())
        });
        let mut destination = destination(at, 1);
        let error = send(&mut destination, stage).unwrap_err();
        destination.abort("the receiver is gone");
        let (_stalled, since) = gone.join().unwrap();
        assert!(since.elapsed() < NOTICED, "{stage:?} {exit:?}: after {:?}", since.elapsed());
        error
    });
    eprintln!("{stage:?} {exit:?}: {}", error.report());
    assert_names(&error, at, exit.words());
}

#[test]
fn lost_at_every_stage() {
    std::thread::scope(|scope| {
        for stage in [Stage::Connected, Stage::Accepted, Stage::InTheMiddle, Stage::Sent] {
            for exit in EXITS {
                scope.spawn(move || lose_receiver(stage, exit));
            }
        }
    });
}

/// The kernel of a stopped receiver takes connections in its name.
#[test]
fn one_that_does_not_accept() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let error = destination(at, 1).open(IMAGE).err().unwrap();
    assert_names(&error, at, "waiting for the receiver to accept");
}

#[test]
fn one_that_is_no_receiver() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            socket::drain(&stream, Instant::now() + NOTICED);
        });
        let error = destination(at, 1).open(IMAGE).err().unwrap();
        assert_names(&error, at, "this is not a vramstream receiver");
    });
}

/// A `Committed` that is taken back, or that comes before its time, is none.
#[test]
fn a_committed_out_of_place() {
    for stage in [Stage::Accepted, Stage::Sent] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| {
                let peer = receive(&listener, stage);
                let committed = Message::Committed { files: 1, raw_bytes: 1 }.encode();
                let failed = Message::Failed(REASON.into()).encode();
                (&*peer.control).write_all(&[committed, failed].concat()).unwrap();
                peer
            });
            let error = send(&mut destination(at, 1), stage).unwrap_err();
            let words = if stage == Stage::Sent { REASON } else { "has no place here" };
            assert_names(&error, at, words);
            peer.join().unwrap();
        });
    }
}
