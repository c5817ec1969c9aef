//! Shards over TCP, between the hosts of a migration.
//!
//! [`TcpDestination`] sends, [`TcpOrigin`] receives. Both promise that a peer which disappears,
//! stops or stalls is noticed in bounded time ([`Timeouts`]) wherever it does so, that every error
//! names the peer, and that a peer which is alive and merely slow is waited for.
//!
//! | module | what it is | what it must not know |
//! |---|---|---|
//! | [`protocol`] | what passes on the connections; its page is the specification | sockets, time |
//! | `socket` | connecting, options, reading with a deadline | the protocol's meaning |
//! | `control` | the control connection of either end: heartbeats, who is alive, who gave up | shards' bytes |
//! | `end` | the ways in which a transfer ends, in words | sockets |
//! | `acceptor` | hears the Hello on new connections | what a transfer is |
//! | `door` | which connection is taken and which refused | sockets |
//! | `sender`, `receiver` | the two ends | what is in a shard |

use std::time::Duration;

mod acceptor;
mod control;
mod door;
mod end;
pub mod protocol;
mod receiver;
mod sender;
mod socket;
#[cfg(test)]
mod tests;

pub use receiver::TcpOrigin;
pub use sender::TcpDestination;

/// How long to wait for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection to be made, to each address that a name resolves to.
    pub connect: Duration,
    /// For a Hello on a new connection, for the answer to it, and for all shard connections to
    /// follow the control connection.
    pub handshake: Duration,
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// Without a message, until the peer counts as dead.
    pub silence: Duration,
    /// For the peer's reason after a connection was lost, and for its goodbye.
    pub grace: Duration,
    /// For a sender to come at all; `None` waits for ever.
    pub sender: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(5),
            handshake: Duration::from_secs(8),
            heartbeat: Duration::from_secs(1),
            silence: Duration::from_secs(8),
            grace: Duration::from_secs(1),
            sender: None,
        }
    }
}
