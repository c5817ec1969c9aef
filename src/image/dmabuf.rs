//! `amdgpu-dmabuf_ID.img`: a dma-buf that a process has open.

use std::io::{Read, Write};

use super::{ImageError, error::File, framing, proto};

/// A dma-buf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmabufNode {
    /// The GEM handle of its BO.
    pub gem_handle: u32,
}

impl DmabufNode {
    /// Reads the image; `file` is for messages.
    pub fn read(file: &str, from: &mut impl Read) -> Result<Self, ImageError> {
        let file = File(file);
        let message = framing::read_message(file, from)?;
        let message: proto::CriuDmabufNode = framing::decode(file, message)?;
        Ok(DmabufNode { gem_handle: file.need(message.gem_handle, "gem_handle")? })
    }

    /// Writes the image.
    pub fn write(&self, file: &str, to: &mut impl Write) -> Result<(), ImageError> {
        let message = proto::CriuDmabufNode { gem_handle: Some(self.gem_handle) };
        framing::write(file, &framing::framed(&message), to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for gem_handle in [0, 1, u32::MAX] {
            let mut bytes = Vec::new();
            DmabufNode { gem_handle }.write("x", &mut bytes).unwrap();
            let read = DmabufNode::read("x", &mut bytes.as_slice()).unwrap();
            assert_eq!(read, DmabufNode { gem_handle });
        }
        let error = DmabufNode::read("x", &mut &[0; 8][..]).unwrap_err();
        assert_eq!(error.to_string(), "x: damaged: gem_handle is missing");
    }
}
