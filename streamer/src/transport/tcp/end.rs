//! The ways in which a transfer ends, in words.

use std::{io, time::Duration};

use crate::error::Error;

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Sender,
    Receiver,
}

/// Why nothing more comes from the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// All was said that had to be.
    Goodbye,
    /// This end gave up.
    GaveUp(String),
    /// The peer said so.
    Failed(String),
    /// It closed the connection.
    Closed,
    /// The connection broke.
    Lost(String),
    /// No message came for too long.
    Silent,
    /// It said what it may not.
    Protocol(String),
}

impl End {
    /// For the end on `side` of a transfer with `peer`.
    pub(super) fn error(&self, side: Side, peer: &str, silence: Duration) -> Error {
        let other = match side {
            Side::Sender => "the receiver",
            Side::Receiver => "the sender",
        };
        let peer = peer.to_owned();
        let what = match self {
            End::Silent => {
                let doing = format!("waiting for a sign of life from {other}");
                return Error::Silent { peer, seconds: silence.as_secs(), doing };
            }
            End::GaveUp(reason) => format!("the transfer was given up here: {reason}"),
            End::Failed(reason) => format!("{other} gave up: {reason}"),
            End::Closed | End::Goodbye => format!(
                "{other} closed the connection before the transfer was complete: see its messages"
            ),
            End::Lost(error) => format!("the connection with {other} was lost: {error}"),
            End::Protocol(what) => format!("{other} does not keep to the protocol: {what}"),
        };
        Error::Peer { peer, what }
    }
}

/// Errors that a peer's end causes at a shard, as opposed to those that are ours.
pub(super) fn is_effect(error: &Error) -> bool {
    use crate::format::FormatError::{Aborted, Truncated};
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, Other, TimedOut,
        UnexpectedEof,
    };
    match error {
        Error::Io { source, .. } => matches!(
            source.kind(),
            BrokenPipe
                | ConnectionAborted
                | ConnectionReset
                | NotConnected
                | Other
                | TimedOut
                | UnexpectedEof
        ),
        Error::Shard { source, .. } => matches!(source, Truncated { .. } | Aborted { .. }),
        Error::Peer { .. } | Error::Silent { .. } | Error::Empty => true,
        _ => false,
    }
}
