//! A connection: records in and out, with limits on time, and who is at the other end.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        socket::{
            getsockopt, setsockopt,
            sockopt::{PeerCredentials, ReceiveTimeout, SendTimeout},
        },
        time::{TimeVal, TimeValLike},
    },
    unistd::geteuid,
};

use super::{
    HandoffError,
    wire::{MOST_BYTES, MOST_DESCRIPTORS},
};
use crate::device::records::{self, Received};

/// How long each side waits for the other during the handover.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    /// What the other side is called.
    who: &'static str,
    patience: Duration,
}

impl Link {
    /// Of a connected socket, whose other end must be trusted.
    pub(super) fn new(socket: OwnedFd, who: &'static str) -> Result<Self, HandoffError> {
        let peer = getsockopt(&socket, PeerCredentials)
            .map_err(system("find out who is at the other end"))?;
        trust(peer.uid(), geteuid().as_raw())?;
        let link = Link { socket, who, patience: PATIENCE };
        link.set_patience(PATIENCE)?;
        Ok(link)
    }

    /// Waits so long for the other side from now on; zero is for ever.
    pub(super) fn set_patience(&self, patience: Duration) -> Result<(), HandoffError> {
        let seconds = i64::try_from(patience.as_secs()).unwrap_or(0);
        let time = TimeVal::seconds(seconds);
        setsockopt(&self.socket, ReceiveTimeout, &time)
            .and_then(|()| setsockopt(&self.socket, SendTimeout, &time))
            .map_err(system("set a time limit"))
    }

    /// Sends a record.
    pub(super) fn send(
        &self,
        record: &[u8],
        descriptors: &[BorrowedFd<'_>],
        doing: &'static str,
    ) -> Result<(), HandoffError> {
        records::send(&self.socket, record, descriptors).map_err(|errno| match errno {
            Errno::EAGAIN => self.silent(doing),
            Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN => self.gone(doing),
            Errno::ETOOMANYREFS => system(
                "pass descriptors: too many of this user's are on their way (raise ulimit -n)",
            )(errno),
            errno => system("pass descriptors")(errno),
        })
    }

    /// Waits for a record; `None` when the other side has closed the connection.
    pub(super) fn receive(
        &self,
        buffer: &mut Buffer,
        doing: &'static str,
    ) -> Result<Option<Received>, HandoffError> {
        match records::receive(&self.socket, &mut buffer.0, MOST_DESCRIPTORS) {
            Ok(received) => Ok(received),
            Err(Errno::EAGAIN) => Err(self.silent(doing)),
            Err(Errno::EMSGSIZE) => Err(self.protocol("a record that is too long")),
            Err(Errno::ECONNRESET) => Ok(None),
            Err(errno) => Err(system("receive a record")(errno)),
        }
    }

    /// Whether a record, or the end, is there to be received.
    pub(super) fn is_readable(&self) -> Result<bool, HandoffError> {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(system("look at a connection")(errno)),
        }
    }

    pub(super) fn gone(&self, doing: &'static str) -> HandoffError {
        HandoffError::Gone { who: self.who, doing }
    }

    pub(super) fn protocol(&self, what: impl Into<String>) -> HandoffError {
        HandoffError::Protocol { who: self.who, what: what.into() }
    }

    fn silent(&self, doing: &'static str) -> HandoffError {
        HandoffError::Silent { who: self.who, doing, seconds: self.patience.as_secs() }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Room for one record.
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    pub(super) fn new() -> Self {
        Buffer(vec![0; MOST_BYTES])
    }

    /// The bytes of what was received last.
    pub(super) fn record(&self, received: &Received) -> &[u8] {
        &self.0[..received.len]
    }
}

pub(super) fn system(doing: &'static str) -> impl FnOnce(Errno) -> HandoffError {
    move |errno| HandoffError::System { doing, errno }
}

/// Root is trusted, and who one is oneself.
fn trust(uid: u32, euid: u32) -> Result<(), HandoffError> {
    if uid == 0 || uid == euid { Ok(()) } else { Err(HandoffError::Stranger { uid, euid }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_same_user_are_trusted() {
        assert!(trust(0, 0).is_ok() && trust(0, 1000).is_ok() && trust(1000, 1000).is_ok());
        for (uid, euid) in [(1000, 0), (1000, 1001), (65534, 0)] {
            let error = trust(uid, euid).unwrap_err().to_string();
            assert!(error.contains(&format!("user {uid}")), "{error}");
        }
    }
}
