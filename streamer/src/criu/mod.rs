//! CRIU's side of the world: the sockets where it looks for an image streamer, and the messages it
//! sends there (CRIU's criu/img-streamer.c and images/img-streamer.proto).
//!
//! CRIU connects once. To write an image it sends a request with the name, makes a pipe, and sends
//! the read end; to read one it sends a request, gets a reply whether the image exists, and if so
//! makes a pipe and sends the write end. Requests and replies are protobuf with a 32-bit
//! little-endian length in front; a descriptor travels with one byte of data.
//!
//! There are no error messages in this protocol: CRIU sees that something is wrong when the socket
//! or a pipe is closed too early.

mod connection;
mod inventory;
mod socket;

pub use connection::{Connection, MAX_REQUEST_BYTES, Request};
pub use inventory::{INVENTORY, InventoryCheck};
pub use socket::{CAPTURE_SOCKET, GATE_SOCKET, Listener, SERVE_SOCKET};
