//! What is done to the bytes of a chunk on their way: zero scan first, then the checksum of the
//! raw bytes, then, where asked for, compression; and the inverses.
//!
//! Pure functions on slices: they know of no chunk, no file and no thread, they allocate nothing,
//! and they run on whatever thread calls them.

mod checksum;
mod compress;
mod zero;

pub use checksum::{Crc32, ZeroChecksums, crc32_of_zeros};
pub use compress::{AutoCompress, Compression, Lz4Table, decompress_lz4, lz4_bound};
pub use zero::is_zero;
