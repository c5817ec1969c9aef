//! What can be wrong with the bytes of one shard.

use super::NameError;

/// Why a shard was refused. Offsets are bytes from the start of the shard.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The first bytes are not those of a shard.
    #[error("this is not a vramstream image: it starts with {found:02x?}")]
    Magic {
        /// The first 8 bytes.
        found: [u8; 8],
    },
    /// A version that this program does not know.
    #[error(
        "image format version {found} is not understood: this program reads version {}",
        super::VERSION
    )]
    Version {
        /// The version in the prologue.
        found: u32,
    },
    /// A checksum does not match.
    #[error("damaged: the checksum of the {what} at byte {at} does not match")]
    Checksum {
        /// What the checksum covers.
        what: &'static str,
        /// Where it starts.
        at: u64,
    },
    /// Bytes that no writer produces.
    #[error("damaged or hostile: {what} at byte {at}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
        /// Where.
        at: u64,
    },
    /// A number past its limit.
    #[error("damaged or hostile: {what} at byte {at} is {value}, the limit is {limit}")]
    Limit {
        /// Which number.
        what: &'static str,
        /// What it says.
        value: u64,
        /// What it may be at most.
        limit: u64,
        /// Where.
        at: u64,
    },
    /// A file name that cannot be one.
    #[error("refused: the file name at byte {at}: {source}")]
    Name {
        /// Where.
        at: u64,
        /// What is wrong with it.
        #[source]
        source: NameError,
    },
    /// A codec that this version does not have.
    #[error(
        "the chunk at byte {at} uses codec {codec}, which this program does not know: use a newer one"
    )]
    Codec {
        /// Its number.
        codec: i32,
        /// Where.
        at: u64,
    },
    /// The writer said that it gave up.
    #[error("the image was not completed: its writer gave up: {reason}")]
    Aborted {
        /// The writer's own words.
        reason: String,
    },
    /// The bytes end too early.
    #[error("truncated: the shard ends at byte {at}, in the middle of {what}")]
    Truncated {
        /// What is cut.
        what: &'static str,
        /// How many bytes there are.
        at: u64,
    },
}
