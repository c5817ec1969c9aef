//! The transfer protocol, version 1. This page is its specification.
//!
//! A *sender* moves one image to one *receiver*, over one **control** connection and one **shard**
//! connection for each shard of the image, all TCP, all opened by the sender. Integers are
//! little-endian; messages are protobuf (`proto/transfer.proto`, package `vramstream.transfer.v1`).
//!
//! # The first message on every connection
//!
//! | size | field |
//! |---|---|
//! | 8 | magic, the bytes `VRAMXFER` |
//! | 4 | length of what follows, at most [`MAX_MESSAGE_BYTES`] |
//! | length | protobuf `Hello`: versions the sender speaks (lowest, highest), the image id, the role |
//!
//! The role is *control*, with the number of shards (1 to [`MAX_SHARDS`]) and the name of the
//! program, or *shard*, with its number.
//!
//! # Messages on the control connection
//!
//! After the Hello, in both directions: 4 bytes of length, at most [`MAX_MESSAGE_BYTES`], and as
//! many bytes of protobuf `Control`.
//!
//! | message | from | meaning |
//! |---|---|---|
//! | `Accept` | receiver | once, before all else: the highest version that both speak |
//! | `Heartbeat` | both | alive. Every second, whatever else is said |
//! | `Sent` | sender | every shard has been written whole, and how many bytes they were together |
//! | `Committed` | receiver | the image was verified and is where it should be |
//! | `Confirmed` | sender | has the `Committed`, and reports success |
//! | `Failed` | both | given up, and why. The last message |
//!
//! ```text
//!  sender                                        receiver
//!    │ control: Hello ───────────────────────────► │
//!    │ ◄─────────────────────────────────── Accept │
//!    │ shard 0: Hello, bytes of the shard ───────► │   Heartbeats both ways, all the time
//!    │ shard n: Hello, bytes of the shard ───────► │
//!    │ shards: half-close ───────────────────────► │
//!    │ control: Sent ────────────────────────────► │   has read all shards to their ends,
//!    │                                             │   verified the image and put it in place
//!    │ ◄──────────────────────────────── Committed │
//!    │ Confirmed, half-close ────────────────────► │   may use the image
//! ```
//!
//! A **shard connection** carries, after its Hello, exactly the bytes of the shard and nothing
//! else; then the sender half-closes it. In the other direction it carries nothing.
//!
//! A connection that the receiver does not take gets a `Failed` that says why, where an `Accept`
//! could have come, and is closed: not a `Hello`, no version in common, another image, a second
//! transfer, a shard number out of range or there already. One on which no Hello comes is closed
//! without a word. A sender waits for the `Accept` before it opens shards; a receiver takes
//! connections in any order.
//!
//! # Who is alive
//!
//! Time-outs look at messages on the control connection only. A peer from which none came for 8 s
//! is dead, stopped or cut off, whatever its kernel still acknowledges; a peer whose heartbeats
//! come is waited for, however long no byte of a shard moves: CRIU may be slow, or a disk. So a
//! shard connection has no time-out of its own (in particular no `TCP_USER_TIMEOUT`, which since
//! Linux 5.11 counts a closed window, that is a slow reader, as a dead one), and whoever loses the
//! control connection shuts the shard connections down. The end of the control connection, other
//! than after `Confirmed`, is a failure of the transfer. If a network drops one shard connection
//! and spares the control connection, the kernel's own limits apply: keepalive where nothing is
//! under way, retransmission (`net.ipv4.tcp_retries2`, some 15 minutes) where something is.
//!
//! # Who may go on
//!
//! The process must run at one of two places. The sender lets it go (CRIU kills it) only after
//! `Committed`; the receiver uses the image only after `Confirmed`. A connection that closes, even
//! cleanly, confirms nothing: the kernel closes those of a killed process too.
//!
//! | lost | sender | receiver |
//! |---|---|---|
//! | anything before `Sent` has arrived | fails, the process goes on | fails |
//! | `Committed` | fails, the process goes on | fails: nobody confirmed |
//! | `Confirmed` | succeeds, the process is gone | fails: nobody confirmed, files are kept |
//!
//! The last line is the window that two parties on a network cannot close (the two generals). It
//! is as long as one small message takes, and is left where nothing runs twice. What was received
//! into files is not lost there either: the receiver keeps them, and says that a person has to look
//! whether the process still runs at the source before using them. What was received into memory
//! goes with the receiver.
//!
//! # What this module must not know
//!
//! Sockets and time. It turns messages into bytes and bytes into messages.

use prost::Message as _;

use crate::{
    format::{ImageId, MAX_REASON_BYTES, MAX_SHARDS, MAX_WRITER_BYTES},
    proto::transfer::{self as pb, control::Body, hello},
};

/// The lowest version of the protocol that this program speaks.
pub const VERSION_MIN: u32 = 1;
/// The highest.
pub const VERSION_MAX: u32 = 1;
/// The first bytes of every connection.
pub const MAGIC: [u8; 8] = *b"VRAMXFER";
/// The longest message: far more than any of version 1 needs, and nothing to allocate.
pub const MAX_MESSAGE_BYTES: u32 = 64 << 10;
/// Bytes before a Hello's protobuf: the magic and the length.
pub const HELLO_PREFIX_BYTES: usize = 12;
/// Bytes before a control message's protobuf: the length.
pub const MESSAGE_PREFIX_BYTES: usize = 4;

/// What is wrong with what a peer said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Not a sender of images at all.
    #[error("this is not a vramstream sender: it starts with {found:02x?}")]
    Magic {
        /// The first 8 bytes.
        found: [u8; 8],
    },
    /// No version in common.
    #[error(
        "the sender speaks versions {} of the transfer protocol, the receiver {}: use the same vramstream on both hosts",
        range(*min, *max), range(VERSION_MIN, VERSION_MAX)
    )]
    Version {
        /// The lowest that the sender speaks.
        min: u32,
        /// The highest.
        max: u32,
    },
    /// A length above the limit.
    #[error("a message of {0} bytes is above the limit of {MAX_MESSAGE_BYTES}")]
    TooLong(u32),
    /// Bytes that no peer of this version sends.
    #[error("damaged or hostile: {0}")]
    Malformed(&'static str),
    /// A number of shards that cannot be.
    #[error("an image of {0} shards: there can be 1 to {MAX_SHARDS}")]
    ShardCount(u32),
    /// A shard number that cannot be.
    #[error("shard {0}: shard numbers are below {MAX_SHARDS}")]
    ShardNumber(u32),
}

fn range(min: u32, max: u32) -> String {
    if min == max { min.to_string() } else { format!("{min} to {max}") }
}

/// What a connection is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The control connection.
    Control {
        /// How many shard connections there will be.
        shards: u32,
        /// The program that sends, and its version.
        writer: String,
    },
    /// The bytes of one shard.
    Shard(u32),
}

/// The first message on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The lowest version that the sender speaks.
    pub version_min: u32,
    /// The highest.
    pub version_max: u32,
    /// The image that is sent.
    pub image: ImageId,
    /// What the connection is for.
    pub role: Role,
}

impl Hello {
    /// The one that this program says.
    pub fn new(image: ImageId, role: Role) -> Self {
        Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, image, role }
    }

    /// Magic, length and message.
    pub fn encode(&self) -> Vec<u8> {
        let role = match &self.role {
            Role::Control { shards, writer } => hello::Role::Control(pb::ControlRole {
                shard_count: *shards,
                writer: cut(writer, MAX_WRITER_BYTES).to_owned(),
            }),
            Role::Shard(shard) => hello::Role::Shard(pb::ShardRole { shard: *shard }),
        };
        let hello = pb::Hello {
            version_min: self.version_min,
            version_max: self.version_max,
            image_id: self.image.0.to_vec().into(),
            role: Some(role),
        };
        [&MAGIC[..], &framed(&hello)].concat()
    }

    /// How many bytes follow the first [`HELLO_PREFIX_BYTES`].
    pub fn body_len(prefix: &[u8; HELLO_PREFIX_BYTES]) -> Result<usize, ProtocolError> {
        let [magic @ .., l0, l1, l2, l3] = *prefix;
        if magic != MAGIC {
            return Err(ProtocolError::Magic { found: magic });
        }
        checked_len([l0, l1, l2, l3])
    }

    /// Reads what follows the prefix. A Hello of a version that this program does not speak is an
    /// error, whatever else it says.
    pub fn decode(body: &[u8]) -> Result<Self, ProtocolError> {
        let malformed = ProtocolError::Malformed;
        let pb = pb::Hello::decode(body).map_err(|_| malformed("a Hello that is not protobuf"))?;
        let (min, max) = (pb.version_min, pb.version_max);
        if min > max || min > VERSION_MAX || max < VERSION_MIN {
            return Err(ProtocolError::Version { min, max });
        }
        let image = <[u8; 16]>::try_from(&pb.image_id[..])
            .map_err(|_| malformed("an image id that is not 16 bytes"))?;
        let role = match pb.role.ok_or(malformed("a Hello for no known role"))? {
            hello::Role::Control(control) => {
                if control.shard_count == 0 || control.shard_count > MAX_SHARDS {
                    return Err(ProtocolError::ShardCount(control.shard_count));
                }
                let writer = printable(&control.writer, MAX_WRITER_BYTES);
                Role::Control { shards: control.shard_count, writer }
            }
            hello::Role::Shard(pb::ShardRole { shard }) if shard >= MAX_SHARDS => {
                return Err(ProtocolError::ShardNumber(shard));
            }
            hello::Role::Shard(pb::ShardRole { shard }) => Role::Shard(shard),
        };
        Ok(Hello { version_min: min, version_max: max, image: ImageId(image), role })
    }

    /// The version that a receiver accepts.
    pub fn version(&self) -> u32 {
        self.version_max.min(VERSION_MAX)
    }
}

/// A message on the control connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The transfer may begin, in this version.
    Accept(u32),
    /// Alive; so many bytes of shards were sent or received.
    Heartbeat(u64),
    /// Every shard has been written whole; so many bytes together.
    Sent(u64),
    /// The image was verified and is where it should be.
    Committed {
        /// Its files.
        files: u32,
        /// Their bytes.
        raw_bytes: u64,
    },
    /// The `Committed` has arrived.
    Confirmed,
    /// Given up, and why.
    Failed(String),
}

impl Message {
    /// Length and message.
    pub fn encode(&self) -> Vec<u8> {
        let body = match self {
            Message::Accept(version) => Body::Accept(pb::Accept { version: *version }),
            Message::Heartbeat(bytes) => Body::Heartbeat(pb::Heartbeat { bytes: *bytes }),
            Message::Sent(bytes) => Body::Sent(pb::Sent { bytes: *bytes }),
            Message::Committed { files, raw_bytes } => {
                Body::Committed(pb::Committed { files: *files, raw_bytes: *raw_bytes })
            }
            Message::Confirmed => Body::Confirmed(pb::Confirmed {}),
            Message::Failed(reason) => {
                Body::Failed(pb::Failed { reason: cut(reason, MAX_REASON_BYTES).to_owned() })
            }
        };
        framed(&pb::Control { body: Some(body) })
    }

    /// How many bytes follow the first [`MESSAGE_PREFIX_BYTES`].
    pub fn body_len(prefix: [u8; MESSAGE_PREFIX_BYTES]) -> Result<usize, ProtocolError> {
        checked_len(prefix)
    }

    /// Reads what follows the prefix.
    pub fn decode(body: &[u8]) -> Result<Self, ProtocolError> {
        let malformed = ProtocolError::Malformed;
        let pb =
            pb::Control::decode(body).map_err(|_| malformed("a message that is not protobuf"))?;
        Ok(match pb.body.ok_or(malformed("a message of no known kind"))? {
            Body::Accept(pb::Accept { version }) => Message::Accept(version),
            Body::Heartbeat(pb::Heartbeat { bytes }) => Message::Heartbeat(bytes),
            Body::Sent(pb::Sent { bytes }) => Message::Sent(bytes),
            Body::Committed(pb::Committed { files, raw_bytes }) => {
                Message::Committed { files, raw_bytes }
            }
            Body::Confirmed(pb::Confirmed {}) => Message::Confirmed,
            Body::Failed(pb::Failed { reason }) => {
                Message::Failed(printable(&reason, MAX_REASON_BYTES))
            }
        })
    }
}

/// Bytes of the control connection, until they are messages. Never holds more than one message and
/// what was pushed after it.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// Takes bytes as they come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if it is whole. After an error nothing sensible comes any more.
    pub fn pop(&mut self) -> Result<Option<Message>, ProtocolError> {
        let Some((prefix, rest)) = self.bytes.split_first_chunk::<MESSAGE_PREFIX_BYTES>() else {
            return Ok(None);
        };
        let len = Message::body_len(*prefix)?;
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let message = Message::decode(body)?;
        self.bytes.drain(..MESSAGE_PREFIX_BYTES + len);
        Ok(Some(message))
    }
}

fn framed(message: &impl prost::Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    // Every text in a message is cut to some thousand bytes.
    debug_assert!(body.len() <= MAX_MESSAGE_BYTES as usize);
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&len.to_le_bytes()[..], &body].concat()
}

fn checked_len(bytes: [u8; 4]) -> Result<usize, ProtocolError> {
    let len = u32::from_le_bytes(bytes);
    if len > MAX_MESSAGE_BYTES { Err(ProtocolError::TooLong(len)) } else { Ok(len as usize) }
}

/// The longest start of `text` of at most `bytes` bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// A peer's text as one line for a terminal, whatever control sequences are in it.
fn printable(text: &str, bytes: usize) -> String {
    cut(text, bytes).replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode_hello(bytes: &[u8]) -> Result<Hello, ProtocolError> {
        let (prefix, body) = bytes.split_first_chunk().unwrap();
        assert_eq!(Hello::body_len(prefix)?, body.len());
        Hello::decode(body)
    }

    fn hellos() -> impl Strategy<Value = Hello> {
        let role = prop_oneof![
            (1..=MAX_SHARDS, "[ -~]{0,256}")
                .prop_map(|(shards, writer)| Role::Control { shards, writer }),
            (0..MAX_SHARDS).prop_map(Role::Shard),
        ];
        let versions = (0..=VERSION_MAX, VERSION_MIN..);
        (versions, any::<[u8; 16]>(), role).prop_map(|((version_min, version_max), id, role)| {
            Hello { version_min, version_max, image: ImageId(id), role }
        })
    }

    fn messages() -> impl Strategy<Value = Message> {
        prop_oneof![
            any::<u32>().prop_map(Message::Accept),
            any::<u64>().prop_map(Message::Heartbeat),
            any::<u64>().prop_map(Message::Sent),
            any::<(u32, u64)>()
                .prop_map(|(files, raw_bytes)| Message::Committed { files, raw_bytes }),
            Just(Message::Confirmed),
            "[ -~]{0,2048}".prop_map(Message::Failed),
        ]
    }

    proptest! {
        #[test]
        fn hellos_come_back(hello in hellos()) {
            prop_assert_eq!(decode_hello(&hello.encode()), Ok(hello));
        }

        /// In whatever pieces the network delivers them.
        #[test]
        fn messages_come_back(
            sent in prop::collection::vec(messages(), 0..8),
            piece in 1..40usize,
        ) {
            let bytes: Vec<u8> = sent.iter().flat_map(Message::encode).collect();
            let mut inbox = Inbox::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(piece) {
                inbox.push(piece);
                while let Some(message) = inbox.pop().unwrap() {
                    got.push(message);
                }
            }
            prop_assert_eq!(got, sent);
            prop_assert!(inbox.bytes.is_empty());
        }

        #[test]
        fn hostile_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Hello::decode(&bytes);
            let _ = Message::decode(&bytes);
            let mut inbox = Inbox::default();
            inbox.push(&bytes);
            while let Ok(Some(_)) = inbox.pop() {}
            prop_assert!(inbox.bytes.capacity() <= 1024);
        }

        #[test]
        fn an_altered_hello_is_refused_or_read(hello in hellos(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
            let mut bytes = hello.encode();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let (prefix, body) = bytes.split_first_chunk().unwrap();
            if Hello::body_len(prefix) == Ok(body.len()) {
                let _ = Hello::decode(body);
            }
        }
    }

    #[test]
    fn lengths_have_a_limit() {
        let mut prefix = [0; HELLO_PREFIX_BYTES];
        prefix[..8].copy_from_slice(&MAGIC);
        prefix[8..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Hello::body_len(&prefix), Err(ProtocolError::TooLong(u32::MAX)));
        let mut inbox = Inbox::default();
        inbox.push(&(MAX_MESSAGE_BYTES + 1).to_le_bytes());
        assert_eq!(inbox.pop(), Err(ProtocolError::TooLong(MAX_MESSAGE_BYTES + 1)));
    }

    #[test]
    fn another_program_is_told_apart() {
        let error = Hello::body_len(b"GET / HTTP/1").unwrap_err();
        assert_eq!(error, ProtocolError::Magic { found: *b"GET / HT" });
    }

    #[test]
    fn versions_without_overlap_name_both_ranges() {
        let role = Role::Shard(0);
        let mut hello = Hello::new(ImageId([1; 16]), role);
        (hello.version_min, hello.version_max) = (7, 9);
        let text = decode_hello(&hello.encode()).unwrap_err().to_string();
        assert!(text.contains("versions 7 to 9") && text.contains("the receiver 1:"), "{text}");
        (hello.version_min, hello.version_max) = (0, 0);
        assert!(decode_hello(&hello.encode()).is_err());
        (hello.version_min, hello.version_max) = (1, 9);
        assert_eq!(decode_hello(&hello.encode()).unwrap().version(), VERSION_MAX);
    }

    #[test]
    fn shard_numbers_and_counts_have_limits() {
        let refused =
            |role| decode_hello(&Hello::new(ImageId([1; 16]), role).encode()).unwrap_err();
        let control = |shards| Role::Control { shards, writer: String::new() };
        assert_eq!(refused(control(0)), ProtocolError::ShardCount(0));
        assert_eq!(refused(control(MAX_SHARDS + 1)), ProtocolError::ShardCount(MAX_SHARDS + 1));
        assert_eq!(refused(Role::Shard(MAX_SHARDS)), ProtocolError::ShardNumber(MAX_SHARDS));
    }

    #[test]
    fn a_reason_cannot_steer_the_terminal() {
        let mut inbox = Inbox::default();
        inbox.push(&Message::Failed("a\x1b[2Jb\nc".into()).encode());
        assert_eq!(inbox.pop(), Ok(Some(Message::Failed("a [2Jb c".into()))));
    }

    #[test]
    fn long_texts_are_cut() {
        let long = "ä".repeat(MAX_REASON_BYTES);
        let mut inbox = Inbox::default();
        inbox.push(&Message::Failed(long).encode());
        let Ok(Some(Message::Failed(reason))) = inbox.pop() else { panic!("not a Failed") };
        assert_eq!(reason.len(), MAX_REASON_BYTES);
    }
}
