//! Receives an image from a [`TcpDestination`](super::TcpDestination).

use std::{
    fmt,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Instant,
};

use crossbeam_channel::{Receiver, select};

use super::{
    Timeouts,
    acceptor::{Acceptor, Notice, Taken},
    control::{Control, Watch},
    door::Arrival,
    end::Side,
    protocol::Message,
    socket,
};
use crate::{
    error::{Error, Result},
    transport::{Origin, ShardReader},
};

/// A listening socket that takes one transfer.
///
/// Every shard has to be read to its end before [`Origin::committed`]. A lost sender is noticed
/// within [`Timeouts::silence`] also by readers that are blocked; one that is alive is waited for,
/// however long it sends nothing.
pub struct TcpOrigin {
    at: SocketAddr,
    /// Until it is opened.
    listener: Option<TcpListener>,
    acceptor: Option<Acceptor>,
    times: Timeouts,
    notice: Notice,
    control: Option<Control>,
    peer: String,
}

impl TcpOrigin {
    /// Listens at `listen`, which is HOST:PORT; port 0 lets the kernel choose one.
    pub fn bind(listen: &str, times: Timeouts) -> Result<Self> {
        let doing = || format!("listen at {listen}");
        // Through `resolve` for its words on what is not an address.
        let listener =
            TcpListener::bind(&socket::resolve(listen)?[..]).map_err(Error::io(doing))?;
        let at = listener.local_addr().map_err(Error::io(doing))?;
        Ok(TcpOrigin {
            at,
            listener: Some(listener),
            acceptor: None,
            times,
            notice: Arc::new(|_| {}),
            control: None,
            peer: String::new(),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.at
    }

    /// Calls `notice`, from any thread, with a line for a person whenever a connection was taken or
    /// refused: a receiver that goes on waiting should say whom it sent away.
    #[must_use]
    pub fn with_notice(mut self, notice: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.notice = Arc::new(notice);
        self
    }

    /// Waits for the control connection, and accepts it.
    fn accept_control(&mut self, arrivals: &Receiver<Taken>) -> Result<u32> {
        let stopped = || Error::Panicked("tcp-accept".into());
        let first = match self.times.sender {
            None => arrivals.recv().map_err(|_| stopped())?,
            Some(limit) => arrivals.recv_timeout(limit).map_err(|_| Error::Silent {
                peer: socket::display(self.at),
                seconds: limit.as_secs(),
                doing: "waiting for a sender to connect".into(),
            })?,
        };
        // The door lets nobody in before the control connection.
        let Arrival::Control { connection, peer, shards, version, image } = first else {
            return Err(stopped());
        };
        (&connection)
            .write_all(&Message::Accept(version).encode())
            .map_err(Error::io(|| format!("answer {peer}")))?;
        (self.notice)(&format!("receiving image {image} from {peer} in {shards} shards"));
        self.peer.clone_from(&peer);
        self.control = Some(Control::start(Side::Receiver, peer, connection, self.times)?);
        Ok(shards)
    }

    /// Waits for all shard connections.
    fn accept_shards(
        &self,
        control: &Control,
        shards: u32,
        arrivals: &Receiver<Taken>,
    ) -> Result<Vec<Box<dyn ShardReader>>> {
        let deadline = Instant::now() + self.times.handshake;
        let mut readers: Vec<Box<dyn ShardReader>> = Vec::new();
        while readers.len() < shards as usize {
            let arrival = select! {
                recv(arrivals) -> arrival => arrival.ok(),
                recv(control.ended()) -> _ => None,
                default(deadline.saturating_duration_since(Instant::now())) => None,
            };
            let Some(Arrival::Shard { connection, number }) = arrival else {
                let (have, seconds) = (readers.len(), self.times.handshake.as_secs());
                let what = format!("only {have} of {shards} shard connections came in {seconds} s");
                return Err(control
                    .watch()
                    .failure()
                    .unwrap_or_else(|| Error::Peer { peer: self.peer.clone(), what }));
            };
            let socket = Arc::new(connection);
            control.adopt(Arc::clone(&socket));
            let name = format!("shard {number} from {}", self.peer);
            readers.push(Box::new(TcpReader { name, socket, watch: control.watch() }));
        }
        Ok(readers)
    }
}

impl Origin for TcpOrigin {
    fn open(&mut self) -> Result<Vec<Box<dyn ShardReader>>> {
        let Some(listener) = self.listener.take() else {
            return Err(Error::Usage("a receiver takes one transfer".into()));
        };
        let (acceptor, arrivals) = Acceptor::start(listener, self.times, &self.notice)
            .map_err(Error::io(|| format!("listen at {}", socket::display(self.at))))?;
        self.acceptor = Some(acceptor);
        let shards = self.accept_control(&arrivals)?;
        let Some(control) = &self.control else { return Ok(Vec::new()) };
        let readers = self.accept_shards(control, shards, &arrivals);
        if let Err(error) = &readers {
            // The sender learns why, rather than that a connection was closed.
            self.failed(&error.report().to_string());
        }
        readers
    }

    /// Tells the sender, and returns when it has confirmed. On [`Error::Unconfirmed`] the image
    /// should be kept, but not be used before a person has looked whether its process goes on at
    /// the source; on any other error the process does go on there.
    fn committed(&mut self, files: u32, raw_bytes: u64) -> Result<()> {
        let Some(control) = &mut self.control else {
            return Err(Error::Usage("nothing was received".into()));
        };
        // All shards were read to their ends, but the sender may yet give up.
        let (sent, received) = (control.wait_sent()?, control.watch().bytes());
        if sent != received {
            let what = format!("the sender sent {sent} bytes of shards, {received} were read");
            control.give_up(&what);
            return Err(Error::Peer { peer: self.peer.clone(), what });
        }
        control.tell(&Message::Committed { files, raw_bytes })?;
        if let Err(error) = control.wait_confirmed() {
            if control.peer_gave_up() {
                return Err(error);
            }
            return Err(Error::Unconfirmed { peer: self.peer.clone(), source: Box::new(error) });
        }
        control.goodbye();
        Ok(())
    }

    fn failed(&mut self, reason: &str) {
        if let Some(mut control) = self.control.take() {
            control.give_up(reason);
        }
    }

    fn explain(&mut self, error: Error) -> Error {
        match &self.control {
            Some(control) => control.explain(error),
            None => error,
        }
    }
}

impl fmt::Debug for TcpOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpOrigin").field("at", &self.at).finish_non_exhaustive()
    }
}

struct TcpReader {
    name: String,
    socket: Arc<TcpStream>,
    watch: Watch,
}

impl Read for TcpReader {
    /// Blocks while the sender is slow; the control connection's thread shuts the socket down when
    /// it is gone, which must not look like the end of the shard.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let lost = || self.watch.failure().map(|e| io::Error::other(e.report().to_string()));
        match (&*self.socket).read(buf) {
            Ok(0) if !buf.is_empty() => lost().map_or(Ok(0), Err),
            Ok(n) => {
                self.watch.count(n);
                Ok(n)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => Err(lost().unwrap_or(error)),
        }
    }
}

impl ShardReader for TcpReader {
    fn describe(&self) -> &str {
        &self.name
    }
}
