//! Senders that go at every stage, in every way: the receiver fails, names them, and soon.

use super::*;

/// How far the sender gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Accepted,
    OneOfTwo,
    InTheMiddle,
    AllBytes,
    Sent,
    Committed,
}

const SHARD: [u8; 1000] = [7; 1000];

pub(super) fn say_hello(at: SocketAddr, image: ImageId, role: Role) -> TcpStream {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(&Hello::new(image, role).encode()).unwrap();
    stream
}

/// Plays a sender up to a stage.
fn send(at: SocketAddr, until: Stage) -> Peer {
    let control = Role::Control { shards: 2, writer: "test".into() };
    let mut peer = Peer::new(say_hello(at, IMAGE, control));
    assert_eq!(peer.hear(), Message::Accept(1));
    peer.beat();
    let shards = match until {
        Stage::Accepted => 0,
        Stage::OneOfTwo => 1,
        _ => 2,
    };
    for shard in 0..shards {
        let mut stream = say_hello(at, IMAGE, Role::Shard(shard));
        stream.write_all(&SHARD).unwrap();
        if until >= Stage::AllBytes {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        peer.shards.push(stream);
    }
    if until >= Stage::Sent {
        peer.say(&Message::Sent(2 * SHARD.len() as u64));
    }
    if until == Stage::Committed {
        assert_eq!(peer.hear(), Message::Committed { files: 1, raw_bytes: 1 });
    }
    if until > Stage::OneOfTwo {
        // Until the receiver waits for what does not come.
        std::thread::sleep(Duration::from_millis(100));
    }
    peer
}

/// Receives as the streamer does, with the verification done before the sender goes or after.
fn receive(origin: &mut TcpOrigin, stage: Stage) -> Result<()> {
    let mut shards = origin.open()?;
    for shard in &mut shards {
        let mut bytes = Vec::new();
        let read = shard.read_to_end(&mut bytes).map_err(Error::io(|| "read a shard"));
        read.map_err(|error| origin.explain(error))?;
        if bytes != SHARD {
            let error = Error::Shard {
                shard: shard.describe().into(),
                source: crate::format::FormatError::Truncated { what: "it", at: 0 },
            };
            return Err(origin.explain(error));
        }
    }
    if stage == Stage::Sent {
        std::thread::sleep(Duration::from_millis(200));
    }
    origin.committed(1, 1)
}

fn lose_sender(stage: Stage, exit: Exit) {
    let mut origin = origin();
    let at = origin.local_addr();
    let error = std::thread::scope(|scope| {
        let gone = scope.spawn(|| {
            let stalled = send(at, stage).exit(exit);
            (stalled, Instant::now())
        });
        let error = receive(&mut origin, stage).unwrap_err();
        origin.failed("the sender is gone");
        let (_stalled, since) = gone.join().unwrap();
        assert!(since.elapsed() < NOTICED, "{stage:?} {exit:?}: after {:?}", since.elapsed());
        error
    });
    eprintln!("{stage:?} {exit:?}: {}", error.report());
    assert_names(&error, "127.0.0.1:", "");
    // While shards are missing, that may be noticed before the silence.
    if stage > Stage::OneOfTwo || exit != Exit::Stall {
        assert_names(&error, "127.0.0.1:", exit.words());
    }
    // Only when the sender was told and said nothing is it not known what it did.
    let known = stage < Stage::Sent || exit == Exit::Fail;
    if known {
        assert!(!matches!(error, Error::Unconfirmed { .. }), "{stage:?} {exit:?}");
    } else if stage == Stage::Committed {
        assert!(matches!(error, Error::Unconfirmed { .. }), "{stage:?} {exit:?}");
    }
}

#[test]
fn lost_at_every_stage() {
    std::thread::scope(|scope| {
        use Stage::*;
        for stage in [Accepted, OneOfTwo, InTheMiddle, AllBytes, Sent, Committed] {
            for exit in EXITS {
                scope.spawn(move || lose_sender(stage, exit));
            }
        }
    });
}

/// The kernel closes the connections of a killed sender as cleanly as a living one would.
#[test]
fn a_clean_close_confirms_nothing() {
    let mut origin = origin();
    let at = origin.local_addr();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let peer = send(at, Stage::Committed);
            peer.control.shutdown(std::net::Shutdown::Write).unwrap();
            socket::drain(&peer.control, Instant::now() + NOTICED);
        });
        let error = receive(&mut origin, Stage::Committed).unwrap_err();
        assert!(matches!(error, Error::Unconfirmed { .. }), "{error:?}");
        origin.failed("not confirmed");
    });
}

#[test]
fn a_confirmed_out_of_place_and_wrong_totals() {
    for (message, words) in
        [(Message::Confirmed, "has no place here"), (Message::Sent(1999), "1999 bytes")]
    {
        let mut origin = origin();
        let at = origin.local_addr();
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| {
                let peer = send(at, Stage::AllBytes);
                peer.say(&message);
                peer
            });
            let error = receive(&mut origin, Stage::AllBytes).unwrap_err();
            assert_names(&error, "127.0.0.1:", words);
            let peer = peer.join().unwrap();
            assert!(matches!(peer.hear(), Message::Failed(_)));
        });
    }
}

/// Whoever reads a shard must not take it for whole.
#[test]
fn a_lost_sender_is_not_the_end_of_a_shard() {
    let mut origin = origin();
    let at = origin.local_addr();
    std::thread::scope(|scope| {
        let stalled = scope.spawn(|| send(at, Stage::InTheMiddle).exit(Exit::Stall));
        let mut shards = origin.open().unwrap();
        let error = shards[0].read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("nothing was heard"), "{error}");
        stalled.join().unwrap();
    });
}

/// Heartbeats do not excuse shards that never come.
#[test]
fn all_shards_have_to_come_soon() {
    let mut origin = origin();
    let at = origin.local_addr();
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let peer = send(at, Stage::OneOfTwo);
            assert!(matches!(peer.hear(), Message::Failed(reason) if reason.contains("1 of 2")));
        });
        let error = origin.open().err().unwrap();
        assert_names(&error, "127.0.0.1:", "only 1 of 2 shard connections came");
        peer.join().unwrap();
    });
}
