//! Accepts connections, hears their Hello, and lets them in or sends them away with a reason.
//!
//! A client that connects and says nothing, or says it slowly, costs a thread for a few seconds and
//! holds up nobody. [`Door`] decides; nothing here knows what a transfer is.

use std::{
    io::{self, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender};
use socket2::SockRef;

use super::{
    Timeouts,
    door::{Arrival, Door},
    protocol::Message,
    socket::{self, NoMessage},
};

/// The most connections that may be about to say Hello at a time; the kernel keeps others waiting.
const MAX_GREETINGS: usize = 64;

/// Told what happens at the door: who was taken or refused, and why.
pub(super) type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// A connection that was let in.
pub(super) type Taken = Arrival<TcpStream>;

/// Takes connections until it is dropped: after the transfer has begun, to say that it has.
pub(super) struct Acceptor {
    listener: TcpListener,
    stopped: Arc<AtomicBool>,
}

/// What every thread that greets a connection needs.
#[derive(Clone)]
struct Greeter {
    door: Arc<Mutex<Door<TcpStream>>>,
    taken: Sender<Taken>,
    times: Timeouts,
    notice: Notice,
}

impl Acceptor {
    /// Takes the listening socket over. What is let in comes from the channel, the control
    /// connection first.
    pub(super) fn start(
        listener: TcpListener,
        times: Timeouts,
        notice: &Notice,
    ) -> io::Result<(Self, Receiver<Taken>)> {
        let (taken, arrivals) = crossbeam_channel::unbounded();
        let door = Arc::new(Mutex::new(Door::new(times.handshake)));
        let greeter = Greeter { door, taken, times, notice: Arc::clone(notice) };
        let stopped = Arc::new(AtomicBool::new(false));
        let acceptor = Acceptor { listener: listener.try_clone()?, stopped: Arc::clone(&stopped) };
        std::thread::Builder::new()
            .name("tcp-accept".into())
            .spawn(move || greeter.accept_all(&listener, &stopped))?;
        Ok((acceptor, arrivals))
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        // Wakes the thread; connections that come from now on are refused by the kernel.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
    }
}

impl Greeter {
    /// Each connection is greeted by a thread of its own, so that one that says nothing holds up
    /// nobody else. A full channel of permits means that there are enough of them.
    fn accept_all(&self, listener: &TcpListener, stopped: &AtomicBool) {
        let (permits, returned) = crossbeam_channel::bounded(MAX_GREETINGS);
        while permits.send(()).is_ok() {
            let accepted = listener.accept();
            if stopped.load(Ordering::Acquire) {
                return;
            }
            let greeting = accepted.and_then(|(stream, at)| {
                let (greeter, permit) = (self.clone(), Permit(returned.clone()));
                std::thread::Builder::new().name("tcp-hello".into()).spawn(move || {
                    let _permit = permit;
                    greeter.greet(stream, &socket::display(at));
                })
            });
            if greeting.is_err() {
                // A connection that was gone again, or no descriptors or threads: none of it is a
                // reason to stop, nor to spin.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn greet(&self, stream: TcpStream, peer: &str) {
        let deadline = Instant::now() + self.times.handshake;
        if socket::tune(&stream, &self.times).is_err() {
            return;
        }
        let hello = match socket::read_hello(&stream, deadline) {
            Ok(hello) => hello,
            Err(NoMessage::Protocol(error)) => {
                return self.refuse(&stream, peer, &error.to_string());
            }
            Err(NoMessage::Io(_)) => return,
        };
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let decision = door.admit(&hello, peer, stream, Instant::now());
        for arrival in decision.taken {
            // Under the lock: the control connection has to come first. If nobody listens any more,
            // the connection is closed.
            let _ = self.taken.send(arrival);
        }
        drop(door);
        for (stream, reason) in decision.refused {
            let peer = stream.peer_addr().map_or_else(|_| peer.to_owned(), socket::display);
            self.refuse(&stream, &peer, &reason);
        }
    }

    fn refuse(&self, mut stream: &TcpStream, peer: &str, reason: &str) {
        (self.notice)(&format!("refused a connection from {peer}: {reason}"));
        let _ = stream.set_write_timeout(Some(self.times.grace));
        let _ = stream.write_all(&Message::Failed(reason.to_owned()).encode());
        let _ = stream.shutdown(Shutdown::Write);
        socket::drain(stream, Instant::now() + self.times.grace);
    }
}

/// Gives a permit back.
struct Permit(Receiver<()>);

impl Drop for Permit {
    fn drop(&mut self) {
        let _ = self.0.try_recv();
    }
}
