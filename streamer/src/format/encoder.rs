//! Turns what happens to an image into the bytes of one shard.

use bytes::{BufMut, BytesMut};
use prost::Message;

use super::{
    ChunkHeader, FileEnd, FileName, FormatError, Header, ImageEnd, MAX_PAD, Prologue,
    frame::PREFIX_BYTES, index::IndexBuilder,
};

/// The least padding for each size that its field in a header can have: not there, and varints of
/// one to three bytes.
const LEAST_PADS: [u32; 4] = [0, 1, 1 << 7, 1 << 14];

/// Encodes one shard. Every method appends to `out`, which the caller then writes, in order; after
/// [`chunk`](Self::chunk) the caller writes the payload itself. [`position`](Self::position) counts
/// both.
#[derive(Debug)]
pub struct ShardEncoder {
    position: u64,
    index: IndexBuilder,
}

impl ShardEncoder {
    /// Starts a shard.
    pub fn new(prologue: &Prologue, out: &mut BytesMut) -> Self {
        let bytes = prologue.encode();
        out.put_slice(&bytes);
        ShardEncoder { position: bytes.len() as u64, index: IndexBuilder::default() }
    }

    /// Bytes of the shard so far, payloads included.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of memory that the index takes so far.
    pub fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Whether this shard has given that file its name.
    pub fn knows(&self, file: u32) -> bool {
        self.index.knows(file)
    }

    /// Gives a file number its name.
    pub fn file_begin(&mut self, file: u32, name: &FileName, out: &mut BytesMut) {
        self.index.file_begin(file, name);
        self.frame(&Header::FileBegin(file, name.clone()), out);
    }

    /// Announces a chunk, whose payload of `stored_len` bytes the caller writes next. With `align`
    /// (a power of two, at most half of [`MAX_PAD`]) the payload starts at a multiple of it.
    pub fn chunk(
        &mut self,
        mut chunk: ChunkHeader,
        align: Option<u32>,
        out: &mut BytesMut,
    ) -> Result<(), FormatError> {
        let align = align.filter(|align| align.is_power_of_two());
        chunk.pad = align.map_or(0, |align| self.pad_to(chunk, align));
        let chunk = chunk.checked(self.position)?;
        let frame_at = self.position;
        self.frame(&Header::Chunk(chunk), out);
        out.put_bytes(0, chunk.pad as usize);
        self.index.chunk(&chunk, frame_at, self.position - frame_at)?;
        self.position += u64::from(chunk.pad) + u64::from(chunk.stored_len);
        Ok(())
    }

    /// A file is whole.
    pub fn file_end(&mut self, end: FileEnd, out: &mut BytesMut) {
        self.index.file_end(end);
        self.frame(&Header::FileEnd(end), out);
    }

    /// The image is whole: the last frame, the index and the trailer. The shard's own totals in
    /// `end` are filled in here.
    pub fn image_end(mut self, mut end: ImageEnd, out: &mut BytesMut) {
        end.shard_chunks = self.index.chunks();
        end.shard_stored_bytes = self.index.stored_bytes();
        self.frame(&Header::ImageEnd(end.clone()), out);
        self.index.finish(&end, self.position, out);
    }

    /// The image will never be whole.
    pub fn abort(mut self, reason: &str, out: &mut BytesMut) {
        self.frame(&Header::Abort(reason.to_owned()), out);
    }

    fn frame(&mut self, header: &Header, out: &mut BytesMut) {
        let start = out.len();
        header.encode(out);
        self.position += (out.len() - start) as u64;
    }

    /// The padding that brings the payload to a multiple of `align`. The padding's own length is in
    /// the header, whose size depends on it, so each size that the field can have is tried with the
    /// least padding that has it.
    fn pad_to(&self, chunk: ChunkHeader, align: u32) -> u32 {
        let frame_len = |pad| {
            let chunk = ChunkHeader { pad, ..chunk }.to_pb();
            let body = Some(crate::proto::format::frame_header::Body::Chunk(chunk));
            let header = crate::proto::format::FrameHeader { body };
            (PREFIX_BYTES + header.encoded_len()) as u64
        };
        let align_u64 = u64::from(align);
        let fits =
            |pad: u32| (self.position + frame_len(pad) + u64::from(pad)).is_multiple_of(align_u64);
        let guess = |least: u32| {
            let end = self.position + frame_len(least) + u64::from(least);
            least + u32::try_from(end.next_multiple_of(align_u64) - end).unwrap_or(0)
        };
        LEAST_PADS.into_iter().map(guess).find(|&pad| pad <= MAX_PAD && fits(pad)).unwrap_or(0)
    }
}
