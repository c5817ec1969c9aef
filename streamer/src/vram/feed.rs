//! From a GPU worker to the stages.

use vramstream::{gpu::Drain, ring::Chunk};

use super::{PagesFile, SIZE_BYTES};
use crate::{
    error::{Error, Result},
    pack::{Feed, FileHandle},
    payload::Payload,
};

/// Takes the contents of one GPU into a file of the image.
pub struct VramFeed {
    feed: Feed,
    file: FileHandle,
    bytes: u64,
}

impl VramFeed {
    /// Begins the file: it is the image's `number`th, and will have `bytes` of contents.
    pub fn begin(mut feed: Feed, number: u32, file: PagesFile, bytes: u64) -> Result<Self> {
        let file = feed.file(number, file.name()?);
        let mut size = feed.take()?;
        let head = bytes.to_le_bytes();
        size.chunk[..head.len()].copy_from_slice(&head);
        size.len = head.len();
        feed.chunk(&file, 0, size)?;
        Ok(VramFeed { feed, file, bytes })
    }

    /// What the file's size will be.
    pub fn file_bytes(&self) -> u64 {
        SIZE_BYTES + self.bytes
    }
}

impl Drain for VramFeed {
    type Error = Error;

    fn chunk(&mut self, offset: u64, chunk: Chunk, len: usize) -> Result<()> {
        self.feed.chunk_later(&self.file, SIZE_BYTES + offset, Payload { chunk, len })
    }

    fn end(&mut self, bytes: u64) -> Result<()> {
        if bytes != self.bytes {
            let promised = self.bytes;
            return Err(Error::DumpIncomplete(format!(
                "a GPU gave {bytes} bytes of contents, and {promised} were promised"
            )));
        }
        self.feed.end(&self.file, self.file_bytes())
    }
}
