//! Both ends over loopback, and each end against peers that do every wrong thing.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use socket2::SockRef;
use vramstream::{ring::Ring, stage::Crc32};

use super::{
    TcpDestination, TcpOrigin, Timeouts,
    protocol::{Hello, Message, Role},
    socket,
};
use crate::{
    absorb::{Absorbed, ImageSink, Lane, absorb},
    error::{Error, Result},
    format::{ChunkHeader, Codec, FileEnd, FileName, ImageEnd, ImageId, Prologue, ShardEncoder},
    payload::Payload,
    transport::{Destination, Origin, ShardReader, ShardWriter},
};

mod hellos;
mod lost_receivers;
mod lost_senders;
mod transfers;

const IMAGE: ImageId = ImageId(*b"an image of test");

/// Short, and long enough for a busy machine.
const TIMES: Timeouts = Timeouts {
    connect: Duration::from_secs(2),
    handshake: Duration::from_millis(500),
    heartbeat: Duration::from_millis(50),
    silence: Duration::from_millis(500),
    grace: Duration::from_millis(250),
    sender: Some(Duration::from_secs(5)),
};

/// By when any end of a peer is noticed with [`TIMES`], on a busy machine.
const NOTICED: Duration = Duration::from_secs(3);

/// How a peer goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exit {
    /// Its process ends.
    Close,
    /// Its process ends with data unread, or its host has restarted.
    Reset,
    /// Its process is stopped, or the network is cut: connections stay, nothing comes.
    Stall,
    /// It says that it failed.
    Fail,
}

const EXITS: [Exit; 4] = [Exit::Close, Exit::Reset, Exit::Stall, Exit::Fail];

/// What the peer says when it fails.
const REASON: &str = "the dog ate the disk";

impl Exit {
    /// What has to be in the message.
    fn words(self) -> &'static str {
        match self {
            // The reset may come to a connection that was half-closed before.
            Exit::Close | Exit::Reset => "",
            Exit::Stall => "nothing was heard",
            Exit::Fail => REASON,
        }
    }
}

/// A peer played by a test: one control connection with or without heartbeats, some shards.
struct Peer {
    control: Arc<TcpStream>,
    shards: Vec<TcpStream>,
    /// Dropping it ends the heartbeats.
    heartbeats: Option<(crossbeam_channel::Sender<()>, std::thread::JoinHandle<()>)>,
}

impl Peer {
    fn new(control: TcpStream) -> Self {
        Peer { control: Arc::new(control), shards: Vec::new(), heartbeats: None }
    }

    fn say(&self, message: &Message) {
        (&*self.control).write_all(&message.encode()).unwrap();
    }

    /// The next message that is not a heartbeat.
    fn hear(&self) -> Message {
        loop {
            let message = socket::read_message(&self.control, Instant::now() + NOTICED).unwrap();
            if !matches!(message, Message::Heartbeat(_)) {
                return message;
            }
        }
    }

    fn beat(&mut self) {
        let (stop, stopped) = crossbeam_channel::bounded::<()>(0);
        let control = Arc::clone(&self.control);
        let thread = std::thread::spawn(move || {
            use crossbeam_channel::RecvTimeoutError::Timeout;
            while stopped.recv_timeout(TIMES.heartbeat) == Err(Timeout) {
                let _ = (&*control).write_all(&Message::Heartbeat(0).encode());
            }
        });
        self.heartbeats = Some((stop, thread));
    }

    /// Goes. What has to stay open is returned.
    fn exit(mut self, how: Exit) -> Option<Peer> {
        if let Some((stop, thread)) = self.heartbeats.take() {
            drop(stop);
            thread.join().unwrap();
        }
        match how {
            Exit::Stall => return Some(self),
            Exit::Close => {
                // Closing with something unread is a reset.
                for stream in self.shards.iter().chain([&*self.control]) {
                    stream.set_nonblocking(true).unwrap();
                    while let Ok(1..) = (&*stream).read(&mut [0; 65536]) {}
                }
            }
            Exit::Reset => {
                for stream in self.shards.iter().chain([&*self.control]) {
                    SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
            }
            Exit::Fail => {
                self.say(&Message::Failed(REASON.into()));
                self.control.shutdown(std::net::Shutdown::Write).unwrap();
                socket::drain(&self.control, Instant::now() + NOTICED);
            }
        }
        None
    }
}

fn destination(at: impl ToString, connections: u32) -> TcpDestination {
    TcpDestination::new(&at.to_string(), connections, TIMES).unwrap()
}

fn origin() -> TcpOrigin {
    TcpOrigin::bind("127.0.0.1:0", TIMES).unwrap()
}

/// Fails unless the error names the peer and has these words.
#[track_caller]
fn assert_names(error: &Error, peer: impl ToString, words: &str) {
    let text = error.report().to_string();
    assert!(text.contains(&peer.to_string()) && text.contains(words), "{text:?}, not {words:?}");
}

/// Files that are told apart by every byte: sizes and contents differ.
fn files(count: usize) -> BTreeMap<String, Vec<u8>> {
    let contents =
        |n: usize| (0..n * 10_007 + 1).map(|i| u8::try_from((i * 31 + n) % 251).unwrap()).collect();
    (0..count).map(|n| (format!("pages-{n}.img"), contents(n))).collect()
}

/// Writes files as an image, each in chunks that go round the shards, and finishes the shards.
fn write_image(
    writers: &mut [Box<dyn ShardWriter>],
    files: &BTreeMap<String, Vec<u8>>,
) -> Result<()> {
    let ring = Ring::new(16 << 10, 2).unwrap();
    let shards = u32::try_from(writers.len()).unwrap();
    let mut encoders = Vec::new();
    for (shard, writer) in (0..).zip(writers.iter_mut()) {
        let mut out = BytesMut::new();
        let prologue = Prologue { image: IMAGE, shard, shards };
        encoders.push(ShardEncoder::new(&prologue, &mut out));
        writer.write(&out)?;
    }
    let mut next = 0;
    for (file, (name, contents)) in (0..).zip(files) {
        let name = FileName::new(name).unwrap();
        for (at, piece) in contents.chunks(ring.chunk_bytes()).enumerate() {
            let shard = next % writers.len();
            next += 1;
            let mut head = BytesMut::new();
            if !encoders[shard].knows(file) {
                encoders[shard].file_begin(file, &name, &mut head);
            }
            let len = u32::try_from(piece.len()).unwrap();
            let chunk = ChunkHeader {
                file,
                offset: (at * ring.chunk_bytes()) as u64,
                raw_len: len,
                stored_len: len,
                codec: Codec::Raw,
                crc: Crc32::of(piece).value,
                pad: 0,
            };
            encoders[shard].chunk(chunk, None, &mut head).unwrap();
            let mut chunk = ring.try_take().unwrap();
            chunk[..piece.len()].copy_from_slice(piece);
            let payload = Payload { chunk, len: piece.len() };
            writers[shard].write_chunk(&head, payload)?;
        }
        let mut out = BytesMut::new();
        let shard = (next + writers.len() - 1) % writers.len();
        encoders[shard].file_end(FileEnd { file, checksum: Crc32::of(contents) }, &mut out);
        writers[shard].write(&out)?;
    }
    let end = ImageEnd {
        files: u32::try_from(files.len()).unwrap(),
        raw_bytes: files.values().map(|contents| contents.len() as u64).sum(),
        superseded: Vec::new(),
        created_unix_ms: 0,
        writer: "test".into(),
        shard_chunks: 0,
        shard_stored_bytes: 0,
    };
    for (encoder, writer) in encoders.into_iter().zip(writers) {
        let mut out = BytesMut::new();
        encoder.image_end(end.clone(), &mut out);
        writer.write(&out)?;
        writer.finish()?;
    }
    Ok(())
}

/// Keeps the files in memory.
#[derive(Debug, Default)]
struct Collect {
    names: Mutex<BTreeMap<u32, String>>,
    contents: Mutex<BTreeMap<u32, Vec<u8>>>,
}

struct CollectLane(Arc<Collect>, Vec<u8>);

impl ImageSink for Collect {
    type Lane = CollectLane;

    fn lane(self: &Arc<Self>) -> Result<CollectLane> {
        Ok(CollectLane(Arc::clone(self), Vec::new()))
    }

    fn file_begin(&self, file: u32, name: &FileName) -> Result<()> {
        self.names.lock().unwrap().insert(file, name.to_string());
        Ok(())
    }
}

impl Lane for CollectLane {
    fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        self.1.resize(len, 0);
        Ok(&mut self.1)
    }

    fn chunk(&mut self, header: &ChunkHeader, _: Option<&[u8]>) -> Result<()> {
        let mut contents = self.0.contents.lock().unwrap();
        let file = contents.entry(header.file).or_default();
        let [from, to] = [header.offset, header.end()].map(|at| usize::try_from(at).unwrap());
        file.resize(file.len().max(to), 0);
        file[from..to].copy_from_slice(&self.1);
        Ok(())
    }

    fn finish(self) -> Result<()> {
        Ok(())
    }
}

/// Reads an image from an origin's shards.
fn read_image(shards: Vec<Box<dyn ShardReader>>) -> Result<(Absorbed, BTreeMap<String, Vec<u8>>)> {
    let sink = Arc::new(Collect::default());
    let progress = Arc::new(|_, _| {}) as crate::absorb::Progress;
    let absorbed = absorb(shards, &sink, &progress, &mut || Ok(()))?;
    let names = sink.names.lock().unwrap();
    let mut contents = sink.contents.lock().unwrap();
    let files =
        names.iter().map(|(file, name)| (name.clone(), contents.remove(file).unwrap_or_default()));
    Ok((absorbed, files.collect()))
}
