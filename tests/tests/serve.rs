//! `serve` as a whole program, with a fake CRIU.

use std::{io, io::Read, path::Path, thread, time::Duration};

use prost::Message;
use vramstream_tests::{
    fake_criu::ServeClient,
    images::{
        ESTABLISHED, FAMILIES, FILES_MAGIC, FileEntry, LISTEN, epoll, image, inventory,
        random_bytes, tcp_socket,
    },
    rounds::{Files, expect_served, image_of, plausible_files, serve, serve_on},
    streamer::{Launch, Operation, Program, Running},
};

/// Serves these files from two shards, does this as CRIU, and insists that all went well.
fn served(files: &Files, work: impl FnOnce(&ServeClient) -> io::Result<()>) -> io::Result<()> {
    let shards = image_of(files, 2)?;
    let dir = tempfile::tempdir()?;
    let (mut running, _feeders) = serve(dir.path(), &shards)?;
    running.wait_for("socket-init")?;
    let criu = ServeClient::connect(dir.path())?;
    work(&criu).map_err(|error| with_stderr(&error, &running))?;
    drop(criu);
    running.wait()?.expect_success()
}

fn with_stderr(error: &io::Error, running: &Running) -> io::Error {
    // What the program says comes a moment later than what it does.
    thread::sleep(Duration::from_millis(100));
    io::Error::new(error.kind(), format!("{error}; stderr:\n{}", running.stderr()))
}

fn large_pair() -> Files {
    Files::from([
        ("pages-1.img".to_owned(), random_bytes(1, 64 << 20)),
        ("pages-2.img".to_owned(), random_bytes(2, 64 << 20)),
        ("core-1.img".to_owned(), random_bytes(3, 700)),
    ])
}

fn open(criu: &ServeClient, name: &str) -> io::Result<vramstream_tests::fake_criu::ImageReader> {
    criu.open(name)?.ok_or_else(|| io::Error::other(format!("{name}: said not to exist")))
}

fn expect_rest(mut reader: impl Read, content: &[u8]) -> io::Result<()> {
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest)?;
    if rest == content { Ok(()) } else { Err(io::Error::other("other bytes")) }
}

#[test]
fn files_are_served_in_any_order() -> io::Result<()> {
    let files = plausible_files(16 << 20);
    served(&files, |criu| {
        for (name, content) in files.iter().rev() {
            assert!(criu.read(name)?.as_ref() == Some(content), "{name}");
        }
        assert_eq!(criu.read("inventory.img")?, Some(inventory()));
        Ok(())
    })
}

#[test]
fn files_are_served_again() -> io::Result<()> {
    let files = plausible_files(16 << 20);
    served(&files, |criu| {
        for _ in 0..3 {
            expect_served(criu, &files)?;
        }
        Ok(())
    })
}

#[test]
fn an_image_that_is_not_read_blocks_nothing() -> io::Result<()> {
    let files = large_pair();
    served(&files, |criu| {
        drop(open(criu, "pages-1.img")?);
        drop(open(criu, "core-1.img")?);
        assert!(criu.read("pages-2.img")?.as_ref() == files.get("pages-2.img"));
        // A small one can be asked for again, whatever became of the first time.
        assert_eq!(criu.read("core-1.img")?.as_ref(), files.get("core-1.img"));
        assert_eq!(criu.read("inventory.img")?, Some(inventory()));
        Ok(())
    })
}

#[test]
fn an_image_half_read_can_be_given_up() -> io::Result<()> {
    let files = large_pair();
    served(&files, |criu| {
        let mut first = open(criu, "pages-1.img")?;
        let mut half = vec![0; 32 << 20];
        first.read_exact(&mut half)?;
        assert!(half == files["pages-1.img"][..32 << 20]);
        assert!(criu.read("pages-2.img")?.as_ref() == files.get("pages-2.img"));
        drop(first);
        assert_eq!(criu.read("core-1.img")?.as_ref(), files.get("core-1.img"));
        Ok(())
    })
}

#[test]
fn two_large_images_open_at_once_can_be_read_in_reverse() -> io::Result<()> {
    let files = large_pair();
    served(&files, |criu| {
        let first = open(criu, "pages-1.img")?;
        let second = open(criu, "pages-2.img")?;
        expect_rest(second, &files["pages-2.img"])?;
        expect_rest(first, &files["pages-1.img"])
    })
}

#[test]
fn pipes_of_one_page_do() -> io::Result<()> {
    let files = plausible_files(4 << 20);
    let shards = image_of(&files, 2)?;
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).shard_pipe_size(4096);
    let (mut running, _feeders) = serve_on(launch, &shards)?;
    running.wait_for("socket-init")?;
    let criu = ServeClient::connect(dir.path())?.with_pipe_size(4096);
    let first = open(&criu, "pages-1.img")?;
    let second = open(&criu, "pages-2.img")?;
    expect_rest(second, &files["pages-2.img"])?;
    expect_rest(first, &files["pages-1.img"])?;
    expect_served(&criu, &files)?;
    drop(criu);
    running.wait()?.expect_success()
}

#[test]
fn images_that_nobody_asks_for_do_not_matter() -> io::Result<()> {
    served(&plausible_files(16 << 20), |criu| {
        assert_eq!(criu.read("inventory.img")?, Some(inventory()));
        Ok(())
    })
}

#[test]
fn absent_images_are_said_to_be_absent() -> io::Result<()> {
    let files = plausible_files(1 << 20);
    served(&files, |criu| {
        for _ in 0..100 {
            for name in ["iptables-9.img", "core-1.im", "core-1.img ", "x", "-"] {
                assert!(!criu.request(name)?, "{name:?} exists");
            }
        }
        expect_served(criu, &files)
    })
}

#[test]
fn names_that_no_image_can_have_give_nothing_away() -> io::Result<()> {
    let shards = image_of(&plausible_files(1 << 20), 1)?;
    let long = [b'a'; 300];
    let names: [&[u8]; 6] = [b"", b"../inventory.img", b"/etc/passwd", b".", b"\xff", &long];
    for name in names {
        let dir = tempfile::tempdir()?;
        let (mut running, _feeders) = serve(dir.path(), &shards)?;
        running.wait_for("socket-init")?;
        let criu = ServeClient::connect(dir.path())?;
        // Absent is right, and so is to hang up on a client that does not talk like CRIU.
        match criu.request(name) {
            Ok(exists) => {
                assert!(!exists, "{} exists", name.escape_ascii());
                drop(criu);
                running.wait()?.expect_success()?;
            }
            Err(_) => running.wait()?.expect_failure(&[])?,
        }
    }
    Ok(())
}

#[test]
fn a_large_image_asked_for_twice_comes_whole_or_not_at_all() -> io::Result<()> {
    let files = large_pair();
    let shards = image_of(&files, 2)?;
    let dir = tempfile::tempdir()?;
    let (mut running, _feeders) = serve(dir.path(), &shards)?;
    running.wait_for("socket-init")?;
    let criu = ServeClient::connect(dir.path())?;
    assert!(criu.read("pages-1.img")?.as_ref() == files.get("pages-1.img"));
    // Never fewer bytes: CRIU reads on for ever where memory ends too early. Never "absent".
    match criu.read("pages-1.img") {
        Ok(again) => {
            assert!(again.as_ref() == files.get("pages-1.img"), "not the same as the first time");
            drop(criu);
            running.wait()?.expect_success()
        }
        Err(_) => running.wait()?.expect_failure(&["pages-1.img"]),
    }
}

#[test]
fn several_clients_are_served_at_once() -> io::Result<()> {
    let files = plausible_files(32 << 20);
    let shards = image_of(&files, 2)?;
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).args(&["--criu-clients", "4"]);
    let (mut running, _feeders) = serve_on(launch, &shards)?;
    running.wait_for("socket-init")?;
    let clients = (0..4).map(|_| ServeClient::connect(dir.path()));
    let clients = clients.collect::<io::Result<Vec<_>>>()?;
    thread::scope(|scope| {
        let files = &files;
        let workers: Vec<_> = clients
            .into_iter()
            .map(|criu| {
                scope.spawn(move || {
                    expect_served(&criu, files)?;
                    expect_served(&criu, files)
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a client panicked")))
        })
    })
    .map_err(|error: io::Error| with_stderr(&error, &running))?;
    running.wait()?.expect_success()
}

#[test]
fn a_client_that_holds_a_pipe_does_not_keep_others_waiting() -> io::Result<()> {
    let files = large_pair();
    let shards = image_of(&files, 2)?;
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&Program::under_test()?, dir.path()).args(&["--criu-clients", "2"]);
    let (mut running, _feeders) = serve_on(launch, &shards)?;
    running.wait_for("socket-init")?;
    let (one, two) = (ServeClient::connect(dir.path())?, ServeClient::connect(dir.path())?);
    let held = open(&one, "pages-1.img")?;
    // It has asked and owes the descriptor.
    assert!(one.request("core-1.img")?);
    expect_served(&two, &files)?;
    expect_rest(held, &files["pages-1.img"])?;
    expect_rest(one.pass_pipe()?, &files["core-1.img"])?;
    drop((one, two));
    running.wait()?.expect_success()
}

#[test]
fn statistics_come_before_the_socket() -> io::Result<()> {
    let shards = image_of(&plausible_files(1 << 20), 3)?;
    let dir = tempfile::tempdir()?;
    let (mut running, _feeders) = serve(dir.path(), &shards)?;
    let stats: serde_json::Value = serde_json::from_str(&running.line()?.unwrap_or_default())?;
    for (number, shard) in shards.iter().enumerate() {
        assert_eq!(stats["shards"][number]["size"].as_u64(), Some(shard.len() as u64), "{stats}");
        assert!(stats["shards"][number]["transfer_duration_millis"].is_u64(), "{stats}");
    }
    assert_eq!(running.line()?.as_deref(), Some("socket-init"));
    drop(ServeClient::connect(dir.path())?);
    running.wait()?.expect_success()
}

#[test]
fn an_image_that_captured_twice_is_served_as_it_ended() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let captured = vramstream_tests::rounds::capture(dir.path(), |criu| {
        criu.send("ghost.img", &random_bytes(1, 1 << 20))?;
        criu.send("ghost.img", &[1, 2, 3])?;
        criu.finish()
    })?;
    captured.outcome.expect_success()?;
    let (mut running, _feeders) = serve(dir.path(), &captured.shards)?;
    running.wait_for("socket-init")?;
    let criu = ServeClient::connect(dir.path())?;
    assert_eq!(criu.read("ghost.img")?.as_deref(), Some(&[1, 2, 3][..]));
    drop(criu);
    running.wait()?.expect_success()
}

// Changing the ports that sockets listen on.

/// Fields that no schema knows, in an encoding that no encoder would choose.
const UNKNOWN: &[u8] = &[0x98, 0x3f, 0x85, 0x80, 0x00, 0xa2, 0x3f, 0x02, 0xff, 0x00];

/// A record of `files.img`: a socket with unknown fields inside and around it.
fn socket_with_unknown(id: u32, family: u32, state: u32, port: u32) -> Vec<u8> {
    let mut entry = tcp_socket(id, family, state, port);
    let inner = entry.inet.take().map(|inet| inet.encode_to_vec()).unwrap_or_default();
    let inner = [UNKNOWN, &inner, UNKNOWN].concat();
    let mut record = [UNKNOWN, &entry.encode_to_vec()].concat();
    prost::encoding::bytes::encode(4, &inner, &mut record);
    record.extend_from_slice(UNKNOWN);
    record
}

fn socket(id: u32, family: u32, state: u32, port: u32) -> Vec<u8> {
    tcp_socket(id, family, state, port).encode_to_vec()
}

/// Serves a `files.img` with these records and this remap, and gives back what CRIU sees.
fn remapped(records: &[Vec<u8>], remap: &str) -> io::Result<Vec<u8>> {
    let files = Files::from([("files.img".to_owned(), image(FILES_MAGIC, records))]);
    let shards = image_of(&files, 1)?;
    let dir = tempfile::tempdir()?;
    let launch = remap_launch(dir.path(), remap)?;
    let (mut running, _feeders) = serve_on(launch, &shards)?;
    running.wait_for("socket-init")?;
    let criu = ServeClient::connect(dir.path())?;
    let seen = criu.read("files.img")?.unwrap_or_default();
    drop(criu);
    running.wait()?.expect_success()?;
    Ok(seen)
}

fn remap_launch(dir: &Path, remap: &str) -> io::Result<Launch> {
    Ok(Launch::new(&Program::under_test()?, dir).args(&["--tcp-listen-remap", remap]))
}

fn expect_remap(before: &[Vec<u8>], remap: &str, after: &[Vec<u8>]) -> io::Result<()> {
    assert!(remapped(before, remap)? == image(FILES_MAGIC, after), "{remap}");
    Ok(())
}

#[test]
fn both_families_are_remapped() -> io::Result<()> {
    let with = |port| FAMILIES.map(|family| socket(family, family, LISTEN, port)).to_vec();
    expect_remap(&with(80), "80:8080", &with(8080))
}

#[test]
fn all_listeners_of_a_port_are_remapped() -> io::Result<()> {
    let with = |port| {
        (1..=4)
            .map(|id| {
                let mut entry: FileEntry = tcp_socket(id, FAMILIES[0], LISTEN, port);
                if let Some(inet) = &mut entry.inet {
                    inet.opts.reuseport = Some(true);
                }
                entry.encode_to_vec()
            })
            .collect::<Vec<_>>()
    };
    // From one byte on the wire to three.
    expect_remap(&with(80), "80:65535", &with(65_535))
}

#[test]
fn remaps_are_applied_at_once() -> io::Result<()> {
    let with = |ports: [u32; 3]| ports.map(|port| socket(port, FAMILIES[0], LISTEN, port)).to_vec();
    let set = |ports: [u32; 3], ids: [u32; 3]| {
        ids.iter().zip(ports).map(|(&id, port)| socket(id, FAMILIES[0], LISTEN, port)).collect()
    };
    let before = [80, 81, 443];
    let swapped: Vec<_> = set([81, 80, 443], before);
    expect_remap(&with(before), "80:81,81:80", &swapped)?;
    let chained: Vec<_> = set([81, 82, 443], before);
    expect_remap(&with(before), "80:81,81:82", &chained)
}

#[test]
fn what_a_remap_does_not_know_stays_byte_for_byte() -> io::Result<()> {
    let records = |port| {
        vec![
            epoll(1, 700).encode_to_vec(),
            socket_with_unknown(2, FAMILIES[0], LISTEN, port),
            socket_with_unknown(3, FAMILIES[1], ESTABLISHED, 80),
            socket(4, FAMILIES[0], ESTABLISHED, 80),
            [UNKNOWN, &epoll(5, 2).encode_to_vec(), UNKNOWN].concat(),
        ]
    };
    assert!(records(80)[0].len() > 10_240, "an epoll that the original cannot take");
    expect_remap(&records(80), "80:8080", &records(8080))
}

#[test]
fn only_listening_sockets_are_remapped() -> io::Result<()> {
    let records = |port| {
        vec![
            socket(1, FAMILIES[0], LISTEN, port),
            socket(2, FAMILIES[0], ESTABLISHED, 80),
            socket(3, FAMILIES[0], 7, 80),
        ]
    };
    expect_remap(&records(80), "80:8080", &records(8080))
}

#[test]
fn impossible_remaps_are_refused_at_once() -> io::Result<()> {
    for remap in ["80:65536", "65536:80", "80", "80:", ":80", "a:b", "80:-1", "80:81,80:82"] {
        let dir = tempfile::tempdir()?;
        let mut running = remap_launch(dir.path(), remap)?.start(Operation::Serve)?;
        let outcome = running.wait_within(Duration::from_secs(10))?;
        outcome.expect_failure(&["remap", "port"])?;
    }
    Ok(())
}
