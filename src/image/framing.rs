//! The size in front of every file: 8 bytes, little-endian, the number of bytes that follow. A
//! pipe cannot be asked for it. What follows after those is not part of the file: a directory that
//! was used before may have left it.

use std::io::{self, Read, Write};

use super::{ImageError, MOST_MESSAGE_BYTES, error::File};

/// The bytes of a size.
pub const SIZE_BYTES: usize = 8;

/// The bytes in front of so many.
pub fn size_header(size: u64) -> [u8; SIZE_BYTES] {
    size.to_le_bytes()
}

/// Reads the size of a file.
pub fn read_size(file: &str, from: &mut impl Read) -> Result<u64, ImageError> {
    let mut header = Vec::new();
    let read = from.take(SIZE_BYTES as u64).read_to_end(&mut header);
    read.map_err(|source| ImageError::Read { file: file.into(), source })?;
    match <[u8; SIZE_BYTES]>::try_from(header.as_slice()) {
        Ok(header) => Ok(u64::from_le_bytes(header)),
        Err(_) => Err(ImageError::Short {
            file: file.into(),
            expected: SIZE_BYTES as u64,
            found: header.len() as u64,
        }),
    }
}

/// Reads a whole message.
pub(super) fn read_message(file: File, from: &mut impl Read) -> Result<Vec<u8>, ImageError> {
    let size = read_size(file.0, from)?;
    if size > MOST_MESSAGE_BYTES {
        return Err(ImageError::TooLarge { file: file.0.into(), size, most: MOST_MESSAGE_BYTES });
    }
    let mut message = Vec::new();
    let read = from.take(size).read_to_end(&mut message);
    read.map_err(|source| ImageError::Read { file: file.0.into(), source })?;
    let found = message.len() as u64;
    if found < size {
        let header = SIZE_BYTES as u64;
        let (expected, found) = (size + header, found + header);
        return Err(ImageError::Short { file: file.0.into(), expected, found });
    }
    Ok(message)
}

/// A message with its size in front.
pub(super) fn framed(message: &impl prost::Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    [&size_header(message.len() as u64)[..], &message].concat()
}

/// Decodes a message.
pub(super) fn decode<T: prost::Message + Default>(
    file: File,
    message: Vec<u8>,
) -> Result<T, ImageError> {
    T::decode(prost::bytes::Bytes::from(message))
        .map_err(|error| ImageError::Malformed { file: file.0.into(), what: error.to_string() })
}

/// Writes a whole file.
pub(super) fn write(file: &str, bytes: &[u8], to: &mut impl Write) -> Result<(), ImageError> {
    let written: io::Result<()> = to.write_all(bytes).and_then(|()| to.flush());
    written.map_err(|source| ImageError::Write { file: file.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<u8>, String> {
        read_message(File("x.img"), &mut { bytes }).map_err(|error| error.to_string())
    }

    #[test]
    fn what_follows_a_file_is_not_part_of_it() {
        assert_eq!(read(b"\x03\0\0\0\0\0\0\0abc"), Ok(b"abc".to_vec()));
        assert_eq!(read(b"\x03\0\0\0\0\0\0\0abcdef"), Ok(b"abc".to_vec()));
        assert_eq!(read(b"\0\0\0\0\0\0\0\0"), Ok(vec![]));
    }

    #[test]
    fn a_file_that_ends_too_early_is_named_with_its_sizes() {
        for cut in 0..11 {
            let whole = b"\x03\0\0\0\0\0\0\0abc";
            let expected = if cut < 8 { 8 } else { 11 };
            let message = format!("x.img: damaged: it should have {expected} bytes and has {cut}");
            assert_eq!(read(&whole[..cut]), Err(message));
        }
    }

    #[test]
    fn a_size_beyond_the_limit_is_refused_before_anything_is_read() {
        for size in [MOST_MESSAGE_BYTES + 1, 1 << 63, u64::MAX] {
            let error = read(&size_header(size)).unwrap_err();
            assert!(error.starts_with(&format!("x.img: damaged: it claims to have {size}")));
        }
        let error = read(&size_header(MOST_MESSAGE_BYTES)).unwrap_err();
        assert!(error.contains("and has 8"), "{error}");
    }
}
