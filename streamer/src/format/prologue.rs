//! The first 64 bytes of a shard.

use std::fmt;

use vramstream::stage::Crc32;

use super::{FormatError, MAX_SHARDS, VERSION};

/// Size of the prologue.
pub const PROLOGUE_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"VRAMSTRM";

/// 16 random bytes that name an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageId(pub [u8; 16]);

impl ImageId {
    /// A new one, from the kernel's random numbers.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
        Ok(ImageId(bytes))
    }
}

impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which shard of which image this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prologue {
    /// The image.
    pub image: ImageId,
    /// Number of this shard, below `shards`.
    pub shard: u32,
    /// Number of shards of the image, at least 1.
    pub shards: u32,
}

impl Prologue {
    /// Whether a stream that begins like this is of the native format; one that ends before the
    /// magic does, and is right so far, is.
    pub fn is_native(first_bytes: &[u8]) -> bool {
        let len = first_bytes.len().min(MAGIC.len());
        len > 0 && first_bytes[..len] == MAGIC[..len]
    }

    /// The 64 bytes.
    pub fn encode(&self) -> [u8; PROLOGUE_BYTES] {
        let mut out = [0; PROLOGUE_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.shard.to_le_bytes());
        out[16..20].copy_from_slice(&self.shards.to_le_bytes());
        out[20..36].copy_from_slice(&self.image.0);
        let crc = Crc32::of(&out[..60]).value;
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads them.
    pub fn decode(bytes: &[u8; PROLOGUE_BYTES]) -> Result<Self, FormatError> {
        let array = |at: usize| {
            let mut out = [0; 4];
            out.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(out)
        };
        if !Self::is_native(bytes) {
            let mut found = [0; 8];
            found.copy_from_slice(&bytes[..8]);
            return Err(FormatError::Magic { found });
        }
        // The version before the checksum: a later version may have another prologue.
        let version = array(8);
        if version != VERSION {
            return Err(FormatError::Version { found: version });
        }
        if array(60) != Crc32::of(&bytes[..60]).value {
            return Err(FormatError::Checksum { what: "prologue", at: 0 });
        }
        let (shard, shards) = (array(12), array(16));
        if shards > MAX_SHARDS {
            let (value, limit) = (shards.into(), MAX_SHARDS.into());
            return Err(FormatError::Limit { what: "number of shards", value, limit, at: 16 });
        }
        if shard >= shards {
            return Err(FormatError::Malformed { what: "shard number past the count", at: 12 });
        }
        if bytes[36..60].iter().any(|&b| b != 0) {
            return Err(FormatError::Malformed {
                what: "prologue bytes that must be zero",
                at: 36,
            });
        }
        let mut image = [0; 16];
        image.copy_from_slice(&bytes[20..36]);
        Ok(Prologue { image: ImageId(image), shard, shards })
    }
}
