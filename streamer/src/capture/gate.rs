//! The capture's end of `commit-gate`: whoever connects here is told, once, what became of the
//! image. The other end is [`crate::commit_gate`].

use std::{
    io::Write,
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
};

use crate::{
    commit_gate::{COMMITTED, FAILED},
    criu::{GATE_SOCKET, Listener},
    error::Result,
};

/// The most gates that wait at once; CRIU runs one action script after the other.
const MAX_GATES: usize = 16;

/// Gates that wait for the end of a capture.
#[derive(Debug)]
pub(super) struct Gates {
    listener: Listener,
    waiting: Vec<UnixStream>,
}

impl Gates {
    pub(super) fn bind(images_dir: &Path) -> Result<Self> {
        Ok(Gates { listener: Listener::bind(images_dir, GATE_SOCKET)?, waiting: Vec::new() })
    }

    pub(super) fn listener(&self) -> impl AsFd + '_ {
        &self.listener
    }

    /// Takes those that have come.
    pub(super) fn accept(&mut self) -> Result<()> {
        while let Some(gate) = self.listener.accept()? {
            if self.waiting.len() < MAX_GATES {
                self.waiting.push(gate);
            }
        }
        Ok(())
    }

    /// Whether CRIU is at its post-dump stage: it will write no more images.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Tells all of them.
    pub(super) fn answer(&mut self, outcome: Result<(), &str>) {
        for mut gate in self.waiting.drain(..) {
            let message = match outcome {
                Ok(()) => COMMITTED.to_owned(),
                Err(reason) => format!("{FAILED}{reason}"),
            };
            // A gate that is gone has let CRIU fail already. A socket has room for one message.
            let _ = gate.write_all(message.as_bytes());
        }
    }
}
