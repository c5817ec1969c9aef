//! The image format of criu-image-streamer 1.0, which this program reads by detection and writes on
//! request.
//!
//! An image is one or more shards, each a stream of *records*:
//!
//! ```text
//! ┌────────┬───────────────────┬──────────────────┐
//! │ u32    │ protobuf `Marker` │ payload          │
//! │ length │ of that length    │ (file_data only) │
//! └────────┴───────────────────┴──────────────────┘
//! ```
//!
//! | marker | meaning |
//! |---|---|
//! | `filename` | what follows is of this file |
//! | `file_data` | so many bytes of the current file follow, in the same shard |
//! | `file_eof` | the current file is whole; there is no current file after it |
//! | `image_eof` | the image is whole; nothing follows in any shard |
//!
//! Every record has a sequence number, from 0, dense over all shards: the image is the records in
//! that order, and a shard may hold any ascending selection of them. Several files may be open at
//! once; `filename` switches between them. There are no checksums and no sizes: a stream that lost
//! bytes in the middle of a payload is noticed only when the next marker is nonsense.
//!
//! [`Marker`] is one record's header, [`MarkerWriter`] makes the headers of an image,
//! [`Sequence`] gives them their meaning. Bytes only: this module does no I/O and holds no payload.

mod marker;
mod sequence;
mod writer;

pub use marker::{Marker, MarkerBody, MarkerError};
pub use sequence::{Sequence, Step};
pub use writer::MarkerWriter;

/// Bytes in front of a marker: its length.
pub const LENGTH_BYTES: usize = 4;
/// A marker has fewer bytes than this; the original program aborts at one that has not.
pub const MARKER_LIMIT: u32 = 10 << 10;
/// What a manifest gives as the writer of such an image, which does not say it itself.
pub const WRITER: &str = "criu-image-streamer";
