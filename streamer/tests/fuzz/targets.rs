//! The decoders. Each test runs one of them on altered inputs, and checks what it promises about any
//! bytes at all: it ends, it asks for little memory, and what it accepts keeps to its rules.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
};

use prost::Message as _;
use vramstream::stage::decompress_lz4;
use vramstream_streamer::{
    criu,
    criu_image_streamer::{LENGTH_BYTES, Marker, MarkerError, Sequence, Step},
    format::{
        Assembly, Codec, Event, ImageId, MAX_CHUNK_BYTES, MAX_FILE_BYTES, ShardDecoder,
        index::{INDEX_PREFIX_BYTES, Index, TRAILER_BYTES, Trailer, index_len},
    },
    proto::criu::ImgStreamerRequestEntry,
    serve::{PortMap, remap_files_img},
    transport::{
        ShardReader,
        tcp::protocol::{HELLO_PREFIX_BYTES, Hello, Inbox, MESSAGE_PREFIX_BYTES, Message, Role},
    },
    verify::verify,
};

use crate::{mutate::fuzz, seal};

/// An image that is kept in `tests/golden`.
fn kept(file: &str) -> Vec<u8> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/v1/");
    std::fs::read(format!("{dir}{file}")).unwrap()
}

fn native_shards() -> Vec<Vec<u8>> {
    ["native-0.shard", "native-1.shard", "aborted.shard"].map(kept).into()
}

fn marker_shards() -> Vec<Vec<u8>> {
    ["criu-image-streamer-0.shard", "criu-image-streamer-1.shard"].map(kept).into()
}

/// A native shard as a stream: decoder, decompression and the rules of a whole image.
#[test]
fn native_shard() {
    let mut raw = Vec::new();
    fuzz(
        &native_shards(),
        |shard| seal::native(shard),
        |bytes, _| {
            let mut decoder = ShardDecoder::new();
            let mut assembly = Assembly::default();
            let (mut at, mut number) = (0, 0);
            loop {
                let wants = decoder.wants();
                assert!(wants <= 64 << 10);
                assert_eq!(decoder.position(), at as u64);
                let Some(piece) = bytes.get(at..at + wants) else {
                    let _ = decoder.truncated(at + wants - bytes.len());
                    return;
                };
                at += wants;
                let Ok(event) = decoder.feed(piece) else { return };
                let outcome = match event {
                    Event::More => Ok(()),
                    Event::Prologue(prologue) => {
                        number = prologue.shard;
                        assembly.shard(&prologue)
                    }
                    Event::FileBegin(file, name) => assembly.file_begin(file, &name).map(drop),
                    Event::FileEnd(end) => assembly.file_end(&end),
                    Event::ImageEnd(end) => assembly.shard_end(number, &end),
                    Event::End => break,
                    Event::Chunk(chunk) => {
                        assert!(
                            chunk.end() <= MAX_FILE_BYTES && chunk.stored_len <= MAX_CHUNK_BYTES
                        );
                        let stored = bytes.get(at..at + chunk.stored_len as usize);
                        let Some(stored) = stored else { return };
                        at += stored.len();
                        if chunk.codec == Codec::Lz4 {
                            raw.resize(chunk.raw_len as usize, 0);
                            let _ = decompress_lz4(stored, &mut raw);
                        }
                        assembly.chunk(&chunk)
                    }
                };
                if outcome.is_err() {
                    return;
                }
            }
            assert_eq!(decoder.wants(), 0);
            let _ = assembly.finish();
        },
    );
}

/// A native shard that is opened from its end.
#[test]
fn native_index() {
    let seal = |shard: &mut Vec<u8>| {
        // Where the trailer pointed before it was altered, if it is still there.
        let trailer = shard.len().saturating_sub(TRAILER_BYTES);
        if let Some(at) = shard.get(trailer..).and_then(|bytes| bytes.first_chunk::<8>()) {
            let at = u64::from_le_bytes(*at);
            seal::index(shard, usize::try_from(at).unwrap_or(0).min(1 << 20));
        }
    };
    fuzz(&native_shards()[..2], seal, |shard, _| {
        let Some(trailer) = shard.last_chunk::<TRAILER_BYTES>() else { return };
        let Ok(trailer) = Trailer::decode(trailer, shard.len() as u64) else { return };
        let at = trailer.index_at as usize;
        let prefix: &[u8; INDEX_PREFIX_BYTES] = shard[at..].first_chunk().unwrap();
        let Ok((len, crc)) = index_len(prefix, &trailer) else { return };
        let body_at = at + INDEX_PREFIX_BYTES;
        let body = &shard[body_at..body_at + len as usize];
        let Ok(index) = Index::decode(body, crc, trailer.index_at) else { return };
        let (mut end, mut stored, mut chunks, mut failed) = (0, 0, 0, false);
        for record in index.chunks() {
            assert!(!failed, "a record after an error");
            let Ok(record) = record else {
                failed = true;
                continue;
            };
            // In order, apart from each other, in front of the index, of a file with a name.
            assert!(record.frame_at >= end);
            end = record.payload_at() + u64::from(record.header.stored_len);
            assert!(end <= trailer.index_at);
            assert!(index.files.iter().any(|file| file.file == record.header.file));
            stored += u64::from(record.header.stored_len);
            chunks += 1;
            assert!(chunks <= len);
        }
        let totals = (index.image_end.shard_chunks, index.image_end.shard_stored_bytes);
        assert!(failed || totals == (chunks, stored));
    });
}

/// The records of criu-image-streamer, of one shard.
#[test]
fn marker_stream() {
    fuzz(&marker_shards(), number_records, |bytes, _| {
        let mut sequence = Sequence::default();
        let _ = records(bytes, |marker, _| {
            let step = sequence.record(&marker)?;
            if let Step::Data { file, offset, len } = step {
                assert!(offset + u64::from(len) <= MAX_FILE_BYTES && file <= 1 << 18);
                sequence.piece(file, offset, vramstream::stage::crc32_of_zeros(len.into()));
            }
            assert_eq!(sequence.next(), marker.seq + 1);
            Ok(())
        });
        if sequence.ended() {
            sequence.finish(1).unwrap();
        }
    });
}

/// Calls `each` with the records of a shard and where they start.
fn records(
    bytes: &[u8],
    mut each: impl FnMut(Marker, usize) -> Result<(), MarkerError>,
) -> Result<(), MarkerError> {
    let mut at = 0;
    while let Some(len) = bytes.get(at..at + LENGTH_BYTES).and_then(|bytes| bytes.first_chunk()) {
        let len = Marker::length(*len)?;
        let truncated = MarkerError::Truncated("a marker");
        let marker = bytes.get(at + LENGTH_BYTES..at + LENGTH_BYTES + len).ok_or(truncated)?;
        let marker = Marker::decode(marker)?;
        let payload = match marker.body {
            vramstream_streamer::criu_image_streamer::MarkerBody::Data(len) => len as usize,
            _ => 0,
        };
        each(marker, at)?;
        at += LENGTH_BYTES + len + payload;
    }
    Ok(())
}

/// Gives the records of one shard numbers without gaps, so that it is an image by itself.
fn number_records(shard: &mut Vec<u8>) {
    let mut out = bytes::BytesMut::new();
    let (mut seq, mut from) = (0, 0);
    let _ = records(shard, |mut marker, at| {
        // What is between two records is a payload.
        if at > from {
            out.extend_from_slice(&shard[from..at]);
        }
        let len = u32::from_le_bytes(*shard[at..].first_chunk().unwrap()) as usize;
        from = at + LENGTH_BYTES + len;
        marker.seq = seq;
        seq += 1;
        marker.encode(&mut out);
        Ok(())
    });
    out.extend_from_slice(&shard[from.min(shard.len())..]);
    *shard = out.to_vec();
}

struct Bytes(io::Cursor<Vec<u8>>);

impl Read for Bytes {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl ShardReader for Bytes {
    fn describe(&self) -> &str {
        "a shard"
    }
}

/// Reading all shards of an image, one of which was altered, with threads and all: of either format.
#[test]
fn whole_image() {
    for (shards, seal) in [
        (&native_shards()[..2], (|shard| seal::native(shard)) as fn(&mut Vec<u8>)),
        (&marker_shards()[..], |_: &mut Vec<u8>| {}),
    ] {
        fuzz(shards, seal, |bytes, numbers| {
            let mut shards = shards.to_vec();
            let altered = numbers.below(2);
            shards[altered] = bytes.to_vec();
            let reader = |bytes| Box::new(Bytes(io::Cursor::new(bytes))) as Box<dyn ShardReader>;
            let image =
                verify(shards.into_iter().map(reader).collect(), &(Arc::new(|_, _| {}) as _));
            if let Ok(image) = image {
                let sizes = image.manifest.files.iter().map(|file| file.checksum.len);
                assert_eq!(sizes.sum::<u64>(), image.manifest.end.raw_bytes);
                assert_eq!(image.manifest.files.len(), image.manifest.end.files as usize);
            }
        });
    }
}

/// The first message of a transfer.
#[test]
fn transfer_hello() {
    let hello = |role| Hello::new(ImageId([7; 16]), role).encode();
    let control = Role::Control { shards: 4, writer: "vramstream".into() };
    fuzz(
        &[hello(control), hello(Role::Shard(3))],
        |_| {},
        |bytes, _| {
            let Some((prefix, rest)) = bytes.split_first_chunk::<HELLO_PREFIX_BYTES>() else {
                return;
            };
            let Ok(len) = Hello::body_len(prefix) else { return };
            assert!(len <= 64 << 10);
            let _ = Hello::decode(rest.get(..len).unwrap_or(rest));
        },
    );
}

/// The other messages of a transfer, in pieces of any size.
#[test]
fn transfer_messages() {
    let messages = [
        Message::Accept(1),
        Message::Heartbeat(1 << 40),
        Message::Sent(300),
        Message::Committed { files: 3, raw_bytes: 1 << 33 },
        Message::Failed("no space left on device".into()),
    ];
    let all = messages.iter().flat_map(Message::encode).collect();
    let some = messages[3..].iter().flat_map(Message::encode).collect();
    fuzz(
        &[all, some],
        |_| {},
        |bytes, numbers| {
            let mut inbox = Inbox::default();
            let mut popped = 0;
            for piece in bytes.chunks(1 + numbers.below(60)) {
                inbox.push(piece);
                loop {
                    match inbox.pop() {
                        Ok(Some(_)) => popped += 1,
                        Ok(None) => break,
                        Err(_) => return,
                    }
                }
            }
            assert!(popped * MESSAGE_PREFIX_BYTES <= bytes.len());
        },
    );
}

/// What CRIU says on its socket.
#[test]
fn criu_request() {
    let request = |filename: &str| {
        let body = ImgStreamerRequestEntry { filename: filename.into() }.encode_to_vec();
        [&(body.len() as u32).to_le_bytes()[..], &body, b"\0"].concat()
    };
    let long = "x".repeat(255);
    fuzz(
        &[request("pages-1.img"), request("a"), request(&long)],
        |_| {},
        |bytes, _| {
            let (mut criu, streamer) = UnixStream::pair().unwrap();
            criu.write_all(bytes).unwrap();
            drop(criu);
            streamer.set_nonblocking(true).unwrap();
            let mut connection = criu::Connection::new(streamer, "a socket".into());
            // All bytes are there, and no call but one that takes some of them asks for another.
            for _ in 0..=bytes.len() {
                match connection.receive() {
                    Ok(Some(criu::Request::Name(_))) => connection.expect_pipe(),
                    Ok(None | Some(criu::Request::Pipe(..))) => {}
                    Ok(Some(criu::Request::Closed)) | Err(_) => return,
                }
            }
            panic!("it does not end");
        },
    );
}

/// The image that ports are changed in.
#[test]
fn files_img() {
    let record = |entry: &[u8]| [&(entry.len() as u32).to_le_bytes(), entry].concat();
    // file_entry { type: 1, id: 7, isk: { proto: 6, state: 10, src_port: 80, unknown } }, and another.
    let listens = record(b"\x08\x01\x10\x07\x22\x0b\x28\x06\x30\x0a\x38\x50\x92\x01\x02ab");
    let other = record(b"\x08\x02\x10\x09\x1a\x03\x08\x09\x10");
    let magic = b"\x16\x46\x55\x55\x19\x36\x64\x56";
    let image = [&magic[..], &listens, &other, &listens].concat();
    let ports: PortMap = "80:8080".parse().unwrap();
    assert_eq!(remap_files_img(&image, &ports).unwrap().len(), image.len() + 2);
    fuzz(
        &[image, [&magic[..], &listens].concat()],
        |_| {},
        |bytes, _| {
            // With nothing to change, what is accepted stays as it is.
            if let Ok(unchanged) = remap_files_img(bytes, &PortMap::default()) {
                assert!(unchanged == bytes);
            }
            if let Ok(changed) = remap_files_img(bytes, &ports) {
                // What was made is an image, and there is nothing left to change.
                assert!(remap_files_img(&changed, &ports).unwrap() == changed);
            }
        },
    );
}
