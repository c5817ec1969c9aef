//! Writes native images step by step, as a capture would, into memory.

use bytes::BytesMut;
use vramstream::stage::{
    AutoCompress, Compression, Crc32, Lz4Table, crc32_of_zeros, is_zero, lz4_bound,
};
use vramstream_streamer::format::{
    ChunkHeader, Codec, FileEnd, FileName, ImageEnd, ImageId, Prologue, ShardEncoder,
};

use crate::support::name;

/// When every image of these tests was made.
pub(crate) const CREATED: u64 = 1_700_000_000_123;
/// What wrote them.
pub(crate) const WRITER: &str = "vramstream tests";

pub(crate) struct NativeImage {
    shards: Vec<(ShardEncoder, BytesMut)>,
    names: Vec<FileName>,
}

impl NativeImage {
    /// An image of so many shards, whose files have these names and are numbered in their order.
    pub(crate) fn new(image: u8, shards: u32, names: &[&str]) -> Self {
        let image = ImageId([image; 16]);
        let shard = |shard| {
            let mut out = BytesMut::new();
            (ShardEncoder::new(&Prologue { image, shard, shards }, &mut out), out)
        };
        let names = names.iter().copied().map(name).collect();
        NativeImage { shards: (0..shards).map(shard).collect(), names }
    }

    /// A chunk: zero if it is, compressed if asked for and smaller, otherwise raw.
    pub(crate) fn chunk(
        &mut self,
        shard: usize,
        file: u32,
        offset: u64,
        bytes: &[u8],
        compression: Compression,
        align: Option<u32>,
    ) {
        let mut packed = vec![0; lz4_bound(bytes.len())];
        let packed_len = AutoCompress::default().compress(
            compression,
            bytes,
            &mut packed,
            &mut Lz4Table::default(),
        );
        let (codec, stored) = match packed_len {
            _ if is_zero(bytes) => (Codec::Zero, &[][..]),
            Some(len) => (Codec::Lz4, &packed[..len]),
            None => (Codec::Raw, bytes),
        };
        let align = align.filter(|_| codec == Codec::Raw);
        self.put(shard, file, offset, (codec, bytes.len(), stored), Crc32::of(bytes), align);
    }

    /// A run of zeros that nobody has in memory.
    pub(crate) fn zeros(&mut self, shard: usize, file: u32, offset: u64, len: u32) {
        let crc = crc32_of_zeros(len.into());
        self.put(shard, file, offset, (Codec::Zero, len as usize, &[]), crc, None);
    }

    /// A chunk whose payload is given.
    pub(crate) fn put(
        &mut self,
        shard: usize,
        file: u32,
        offset: u64,
        (codec, raw_len, stored): (Codec, usize, &[u8]),
        crc: Crc32,
        align: Option<u32>,
    ) {
        self.begin(shard, file);
        let (encoder, out) = &mut self.shards[shard];
        let (raw_len, stored_len) = (raw_len as u32, stored.len() as u32);
        let crc = crc.value;
        let header = ChunkHeader { file, offset, raw_len, stored_len, codec, crc, pad: 0 };
        encoder.chunk(header, align, out).unwrap();
        out.extend_from_slice(stored);
        assert_eq!(encoder.position(), out.len() as u64);
    }

    /// The end of a file with these contents.
    pub(crate) fn end(&mut self, shard: usize, file: u32, checksum: Crc32) {
        self.begin(shard, file);
        let (encoder, out) = &mut self.shards[shard];
        encoder.file_end(FileEnd { file, checksum }, out);
    }

    fn begin(&mut self, shard: usize, file: u32) {
        let (encoder, out) = &mut self.shards[shard];
        if !encoder.knows(file) {
            encoder.file_begin(file, &self.names[file as usize], out);
        }
    }

    /// The shards of the image, which has so many files and bytes, not counting the superseded.
    pub(crate) fn finish(self, files: u32, raw_bytes: u64, superseded: &[u32]) -> Vec<Vec<u8>> {
        let end = ImageEnd {
            files,
            raw_bytes,
            superseded: superseded.to_vec(),
            created_unix_ms: CREATED,
            writer: WRITER.to_owned(),
            shard_chunks: 0,
            shard_stored_bytes: 0,
        };
        let finish = |(encoder, mut out): (ShardEncoder, BytesMut)| {
            encoder.image_end(end.clone(), &mut out);
            out.to_vec()
        };
        self.shards.into_iter().map(finish).collect()
    }

    /// The shards of an image whose writer gives up.
    pub(crate) fn abort(self, reason: &str) -> Vec<Vec<u8>> {
        let abort = |(encoder, mut out): (ShardEncoder, BytesMut)| {
            encoder.abort(reason, &mut out);
            out.to_vec()
        };
        self.shards.into_iter().map(abort).collect()
    }
}
