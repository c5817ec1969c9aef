//! Sends an image to a [`TcpOrigin`](super::TcpOrigin).

use std::{
    fmt,
    io::{self, IoSlice, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

use super::{
    Timeouts,
    control::{Control, Watch},
    end::Side,
    protocol::{Hello, Message, Role, VERSION_MAX, VERSION_MIN},
    socket::{self, NoMessage},
};
use crate::{
    error::{Error, Result},
    format::{ImageId, MAX_SHARDS},
    payload::Payload,
    transport::{Destination, ShardWriter},
};

/// Sends the shards of an image to a receiver, each over a connection of its own.
///
/// A lost receiver is noticed within [`Timeouts::silence`] also by writers that are blocked. One
/// that is alive is waited for, however slowly it reads.
pub struct TcpDestination {
    addr: String,
    connections: u32,
    times: Timeouts,
    control: Option<Control>,
    /// Shards that were finished.
    finished: Arc<AtomicU32>,
}

impl TcpDestination {
    /// Will connect to `addr`, which is HOST:PORT, with that many shards.
    pub fn new(addr: &str, connections: u32, times: Timeouts) -> Result<Self> {
        if connections == 0 || connections > MAX_SHARDS {
            return Err(Error::Usage(format!(
                "{connections} connections: there can be 1 to {MAX_SHARDS}"
            )));
        }
        Ok(TcpDestination {
            addr: addr.to_owned(),
            connections,
            times,
            control: None,
            finished: Arc::default(),
        })
    }

    /// The name of the receiver in messages: as it was given, and where that was.
    fn peer(&self, at: SocketAddr) -> String {
        let at = socket::display(at);
        if at == self.addr { at } else { format!("{} ({at})", self.addr) }
    }

    /// Says Hello on the control connection and waits for the receiver to accept.
    fn introduce(&self, mut stream: &TcpStream, peer: &str, image: ImageId) -> Result<()> {
        let shards = self.connections;
        let writer = concat!("vramstream ", env!("CARGO_PKG_VERSION")).to_owned();
        let hello = Hello::new(image, Role::Control { shards, writer });
        let answered = stream
            .write_all(&hello.encode())
            .map_err(NoMessage::from)
            .and_then(|()| socket::read_message(stream, Instant::now() + self.times.handshake));
        let refused = |what| Err(Error::Peer { peer: peer.to_owned(), what });
        match answered {
            Ok(Message::Accept(version)) if (VERSION_MIN..=VERSION_MAX).contains(&version) => {
                Ok(())
            }
            Ok(Message::Failed(reason)) => {
                refused(format!("the receiver refused the transfer: {reason}"))
            }
            Ok(message) => refused(format!("not the answer of a receiver: {message:?}")),
            Err(NoMessage::Protocol(error)) => {
                refused(format!("this is not a vramstream receiver: {error}"))
            }
            Err(NoMessage::Io(error)) if error.kind() == io::ErrorKind::TimedOut => {
                Err(Error::Silent {
                    peer: peer.to_owned(),
                    seconds: self.times.handshake.as_secs(),
                    doing: "waiting for the receiver to accept the transfer".to_owned(),
                })
            }
            Err(NoMessage::Io(error)) => refused(format!(
                "the receiver closed the connection without accepting the transfer: {error}"
            )),
        }
    }

    /// Opens all shard connections at the same time: on a long way each takes its time.
    fn connect_shards(&self, at: SocketAddr, image: ImageId) -> io::Result<Vec<TcpStream>> {
        let open = |shard| {
            let mut stream = socket::connect_to(at, &self.times)?;
            stream.write_all(&Hello::new(image, Role::Shard(shard)).encode())?;
            Ok(stream)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.connections).map(|shard| scope.spawn(move || open(shard))).collect();
            let joined = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
            });
            joined.collect()
        })
    }
}

impl Destination for TcpDestination {
    fn shards(&self) -> u32 {
        self.connections
    }

    fn open(&mut self, image: ImageId) -> Result<Vec<Box<dyn ShardWriter>>> {
        let (stream, at) = socket::connect(&self.addr, &socket::resolve(&self.addr)?, &self.times)?;
        let peer = self.peer(at);
        self.introduce(&stream, &peer, image)?;
        let control = Control::start(Side::Sender, peer.clone(), stream, self.times)?;
        let shards = self
            .connect_shards(at, image)
            .map_err(Error::io(|| format!("open a shard connection to {peer}")))
            .map_err(|error| control.explain(error))?;
        let mut writers: Vec<Box<dyn ShardWriter>> = Vec::with_capacity(shards.len());
        for (number, socket) in shards.into_iter().enumerate() {
            let socket = Arc::new(socket);
            control.adopt(Arc::clone(&socket));
            writers.push(Box::new(TcpWriter {
                name: format!("shard {number} to {peer}"),
                socket,
                watch: control.watch(),
                finished: Arc::clone(&self.finished),
            }));
        }
        self.control = Some(control);
        Ok(writers)
    }

    fn health(&mut self) -> Result<()> {
        match self.control.as_ref().and_then(|control| control.watch().failure()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Returns when the receiver has said that it has the image, and has been told that we know.
    fn commit(&mut self, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let finished = self.finished.load(Ordering::Acquire);
        let control = match &mut self.control {
            Some(control) if finished == self.connections => control,
            _ => {
                let count = self.connections;
                let what = format!("only {finished} of {count} shards were sent whole");
                return Err(Error::Peer { peer: self.addr.clone(), what });
            }
        };
        control.tell(&Message::Sent(control.watch().bytes()))?;
        control.wait_committed(check)?;
        control.confirm()?;
        control.goodbye();
        Ok(())
    }

    fn abort(&mut self, reason: &str) {
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

impl fmt::Debug for TcpDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpDestination").field("addr", &self.addr).finish_non_exhaustive()
    }
}

struct TcpWriter {
    name: String,
    socket: Arc<TcpStream>,
    watch: Watch,
    finished: Arc<AtomicU32>,
}

impl TcpWriter {
    /// Blocks while the receiver is slow; the control connection's thread shuts the socket down
    /// when it is gone.
    fn write_all(&self, slices: &mut [IoSlice<'_>]) -> Result<()> {
        let written = write_slices(&*self.socket, slices, |bytes| self.watch.count(bytes));
        written.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Error {
        let io = Error::io(|| format!("write {}", self.name));
        self.watch.failure().unwrap_or_else(|| io(error))
    }
}

impl ShardWriter for TcpWriter {
    fn describe(&self) -> &str {
        &self.name
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.write_all(&mut [IoSlice::new(bytes)])
    }

    fn write_chunk(&mut self, head: &[u8], payload: Payload) -> Result<()> {
        self.write_all(&mut [IoSlice::new(head), IoSlice::new(payload.bytes())])
    }

    fn finish(&mut self) -> Result<()> {
        self.socket.shutdown(Shutdown::Write).map_err(|error| self.failed(error))?;
        if let Some(error) = self.watch.failure() {
            return Err(error);
        }
        self.finished.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

/// Writes all slices, with as few calls as the kernel needs.
fn write_slices(
    mut to: impl Write,
    mut slices: &mut [IoSlice<'_>],
    written: impl Fn(usize),
) -> io::Result<()> {
    // Without the empty ones, of which the kernel would write nothing.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match to.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                written(n);
                IoSlice::advance_slices(&mut slices, n);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Takes three bytes at a time, and is interrupted between.
    struct Stingy(Vec<u8>, bool);

    impl Write for Stingy {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let n = buf.len().min(3);
            self.0.extend_from_slice(&buf[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn short_writes_lose_nothing() {
        for (head, payload) in [("head", "payload"), ("", "payload"), ("head", ""), ("", "")] {
            let (mut to, count) = (Stingy(Vec::new(), false), Cell::new(0));
            let mut slices = [IoSlice::new(head.as_bytes()), IoSlice::new(payload.as_bytes())];
            write_slices(&mut to, &mut slices, |n| count.set(count.get() + n)).unwrap();
            assert_eq!(to.0, [head, payload].concat().as_bytes());
            assert_eq!(count.get(), to.0.len());
        }
    }
}
