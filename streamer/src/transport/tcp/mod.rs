//! Shards over TCP, between the hosts of a migration.
//!
//! | module | what it is |
//! |---|---|
//! | [`protocol`] | what passes on the connections; its page is the specification |

pub mod protocol;
