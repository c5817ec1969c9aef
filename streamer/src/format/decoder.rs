//! Reads one shard as a stream, without doing I/O and without believing anything.

use super::{
    ChunkHeader, FileEnd, FileName, FormatError, Header, ImageEnd, MAX_HEADER_BYTES,
    PROLOGUE_BYTES, Prologue,
    frame::{PREFIX_BYTES, frame_crc},
    index::{self, FileSet, INDEX_PREFIX_BYTES, TRAILER_BYTES, Trailer},
};

/// What a shard says, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Nothing to act on yet.
    More,
    /// Which shard of which image it is.
    Prologue(Prologue),
    /// A number gets its name.
    FileBegin(u32, FileName),
    /// A chunk. Its payload of `stored_len` bytes comes next in the stream; the caller takes it
    /// from there before it feeds the decoder again.
    Chunk(ChunkHeader),
    /// A file is whole.
    FileEnd(FileEnd),
    /// All frames were read; the index is still to come.
    ImageEnd(ImageEnd),
    /// The shard was read to its end and nothing is wrong with it.
    End,
}

/// The decoder: [`wants`](Self::wants) says how many bytes, [`feed`](Self::feed) takes them.
#[derive(Debug)]
pub struct ShardDecoder {
    state: State,
    /// Where the next byte that is fed stands in the shard.
    at: u64,
    named: FileSet,
    chunks: u64,
    stored_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Prologue,
    Prefix,
    Header { frame_at: u64, len: [u8; 4], crc: u32 },
    Pad { chunk: ChunkHeader },
    IndexPrefix,
    Index { index_at: u64, left: u64, hasher: IndexHash },
    Trailer { index_at: u64 },
    End,
}

/// The CRC-32 of the index so far, and what it must become.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IndexHash {
    so_far: vramstream::stage::Crc32,
    expected: u32,
}

/// The most of an index that is asked for at once.
const INDEX_PIECE_BYTES: u64 = 64 << 10;

impl Default for ShardDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl ShardDecoder {
    /// At the first byte of a shard.
    pub fn new() -> Self {
        ShardDecoder {
            state: State::Prologue,
            at: 0,
            named: FileSet::default(),
            chunks: 0,
            stored_bytes: 0,
        }
    }

    /// Exactly how many bytes the next call of [`feed`](Self::feed) takes: at most 64 KiB. 0 when
    /// the shard is over.
    pub fn wants(&self) -> usize {
        match &self.state {
            State::Prologue => PROLOGUE_BYTES,
            State::Prefix => PREFIX_BYTES,
            State::Header { len, .. } => u32::from_le_bytes(*len) as usize,
            State::Pad { chunk } => chunk.pad as usize,
            State::IndexPrefix => INDEX_PREFIX_BYTES,
            State::Index { left, .. } => {
                usize::try_from(*left.min(&INDEX_PIECE_BYTES)).unwrap_or(0)
            }
            State::Trailer { .. } => TRAILER_BYTES,
            State::End => 0,
        }
    }

    /// Where in the shard the next byte stands.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// What to report when the stream ends where it may not.
    pub fn truncated(&self, missing: usize) -> FormatError {
        let what = match &self.state {
            State::Prologue => "the prologue",
            State::Prefix => "the image: its end is missing",
            State::Header { .. } | State::Pad { .. } => "a frame header",
            State::IndexPrefix | State::Index { .. } => "the index",
            State::Trailer { .. } | State::End => "the trailer",
        };
        FormatError::Truncated { what, at: self.at + (self.wants().saturating_sub(missing)) as u64 }
    }

    /// Takes exactly [`wants`](Self::wants) bytes; any other number is refused.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Event, FormatError> {
        let at = self.at;
        if bytes.len() != self.wants() || self.state == State::End {
            return Err(FormatError::Malformed { what: "data after the end of the shard", at });
        }
        self.at += bytes.len() as u64;
        match std::mem::replace(&mut self.state, State::End) {
            State::Prologue => {
                let bytes = array(bytes, at)?;
                self.state = State::Prefix;
                Prologue::decode(&bytes).map(Event::Prologue)
            }
            State::Prefix => {
                let [a, b, c, d, crc @ ..] = array::<PREFIX_BYTES>(bytes, at)?;
                let (len, crc) = ([a, b, c, d], u32::from_le_bytes(crc));
                let value = u32::from_le_bytes(len);
                if value == 0 || value > MAX_HEADER_BYTES {
                    let (value, limit) = (value.into(), MAX_HEADER_BYTES.into());
                    let what = "length of a frame header";
                    return Err(FormatError::Limit { what, value, limit, at });
                }
                self.state = State::Header { frame_at: at, len, crc };
                Ok(Event::More)
            }
            State::Header { frame_at, len, crc } => {
                if frame_crc(len, bytes) != crc {
                    return Err(FormatError::Checksum { what: "frame header", at: frame_at });
                }
                self.state = State::Prefix;
                self.header(Header::decode(bytes, frame_at)?, frame_at)
            }
            State::Pad { chunk } => {
                if bytes.iter().any(|&b| b != 0) {
                    return Err(FormatError::Malformed { what: "padding that is not zero", at });
                }
                self.state = State::Prefix;
                self.at += u64::from(chunk.stored_len);
                Ok(Event::Chunk(chunk))
            }
            State::IndexPrefix => {
                let (left, expected) = index::decode_prefix(&array(bytes, at)?, at)?;
                let hasher = IndexHash { so_far: Default::default(), expected };
                self.state = State::Index { index_at: at, left, hasher };
                self.index_piece(&[])
            }
            State::Index { index_at, left, hasher } => {
                self.state = State::Index { index_at, left, hasher };
                self.index_piece(bytes)
            }
            State::Trailer { index_at } => {
                let trailer = Trailer::decode(&array(bytes, at)?, self.at)?;
                if trailer.index_at != index_at {
                    let what = "a trailer that points elsewhere than to the index";
                    return Err(FormatError::Malformed { what, at });
                }
                Ok(Event::End)
            }
            State::End => Ok(Event::End),
        }
    }

    fn header(&mut self, header: Header, at: u64) -> Result<Event, FormatError> {
        let malformed = |what| Err(FormatError::Malformed { what, at });
        match header {
            Header::FileBegin(file, name) => {
                if !self.named.insert(file) {
                    return malformed("a file that is named twice");
                }
                Ok(Event::FileBegin(file, name))
            }
            Header::Chunk(chunk) => {
                if !self.named.contains(chunk.file) {
                    return malformed("a chunk of a file that was not named");
                }
                self.chunks += 1;
                self.stored_bytes += u64::from(chunk.stored_len);
                if chunk.pad > 0 {
                    self.state = State::Pad { chunk };
                    return Ok(Event::More);
                }
                self.at += u64::from(chunk.stored_len);
                Ok(Event::Chunk(chunk))
            }
            Header::FileEnd(end) => {
                if !self.named.contains(end.file) {
                    return malformed("the end of a file that was not named");
                }
                Ok(Event::FileEnd(end))
            }
            Header::ImageEnd(end) => {
                if (end.shard_chunks, end.shard_stored_bytes) != (self.chunks, self.stored_bytes) {
                    return malformed("totals that are not those of the shard");
                }
                self.state = State::IndexPrefix;
                Ok(Event::ImageEnd(end))
            }
            Header::Abort(reason) => {
                self.state = State::End;
                Err(FormatError::Aborted { reason })
            }
        }
    }

    /// Takes a piece of the index and moves on to the trailer after the last one.
    fn index_piece(&mut self, bytes: &[u8]) -> Result<Event, FormatError> {
        if let State::Index { index_at, left, hasher } = &mut self.state {
            hasher.so_far = hasher.so_far.followed_by(vramstream::stage::Crc32::of(bytes));
            *left -= bytes.len() as u64;
            if *left == 0 {
                let (at, matches) = (*index_at, hasher.so_far.value == hasher.expected);
                self.state = State::Trailer { index_at: at };
                if !matches {
                    return Err(FormatError::Checksum { what: "index", at });
                }
            }
        }
        Ok(Event::More)
    }
}

fn array<const N: usize>(bytes: &[u8], at: u64) -> Result<[u8; N], FormatError> {
    bytes.try_into().map_err(|_| FormatError::Malformed { what: "a piece of the wrong size", at })
}
