//! The control connection, of either end: says that this end is alive, notices when the other one
//! is not, and knows what became of the transfer.
//!
//! A thread of its own reads the connection and sends heartbeats, so that neither depends on what
//! the transfer is doing. When the transfer is lost, it shuts all shard connections down: whoever
//! reads or writes one wakes up and asks [`Watch::failure`] why.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
    time::Instant,
};

use crossbeam_channel::Receiver;

use super::{
    Timeouts,
    end::{End, Side, is_effect},
    protocol::{Inbox, Message},
    socket,
};
use crate::error::{Error, Result};

/// How often a wait for the peer's word looks up whether it is still wanted.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What the peer has said.
#[derive(Debug, Default)]
struct State {
    /// This end has said its `Sent` or `Committed`, and may be answered.
    told: bool,
    sent: Option<u64>,
    committed: Option<(u32, u64)>,
    /// By the sender; on its side, that it has said so.
    confirmed: bool,
    end: Option<End>,
    shards: Vec<Arc<TcpStream>>,
}

impl State {
    /// Takes a message that is not the last.
    fn take(&mut self, side: Side, message: Message) -> Result<(), End> {
        match (side, message) {
            (_, Message::Heartbeat(_)) => {}
            (Side::Receiver, Message::Sent(bytes)) if self.sent.is_none() => {
                self.sent = Some(bytes);
            }
            (Side::Receiver, Message::Confirmed) if self.told => self.confirmed = true,
            (Side::Sender, Message::Committed { files, raw_bytes }) if self.told => {
                self.committed = Some((files, raw_bytes));
            }
            (_, message) => return Err(End::Protocol(format!("{message:?} has no place here"))),
        }
        Ok(())
    }
}

struct Shared {
    side: Side,
    peer: String,
    socket: TcpStream,
    times: Timeouts,
    /// Bytes of shards, sent or received.
    bytes: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// Held while a message is written; whether more may be.
    may_write: Mutex<bool>,
}

/// The control connection and its thread. Dropping it without having said goodbye gives up.
pub(super) struct Control {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Becomes disconnected when nothing more comes.
    ended: Receiver<()>,
}

/// What shard connections hold of the control connection.
#[derive(Clone)]
pub(super) struct Watch(Arc<Shared>);

impl Control {
    /// Takes over a connection on which Hello and Accept have passed.
    pub(super) fn start(
        side: Side,
        peer: String,
        socket: TcpStream,
        times: Timeouts,
    ) -> Result<Self> {
        let doing = || format!("set up the connection with {peer}");
        socket::tune_control(&socket, &times).map_err(Error::io(doing))?;
        let shared = Arc::new(Shared {
            side,
            peer,
            socket,
            times,
            bytes: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            may_write: Mutex::new(true),
        });
        let (alive, ended) = crossbeam_channel::bounded(0);
        let watch = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tcp-control".into())
            .spawn(move || {
                let _alive = alive;
                // Also if this thread panics, nobody may wait for it for ever.
                let _guard = EndGuard(&watch);
                let end = watch.listen();
                watch.end(end);
            })
            .map_err(Error::io(|| "start the thread for the control connection"))?;
        Ok(Control { shared, thread: Some(thread), ended })
    }

    pub(super) fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.shared))
    }

    /// A channel that becomes disconnected when nothing more comes from the peer.
    pub(super) fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    /// Shuts this connection down when the transfer is lost, at once if it is already.
    pub(super) fn adopt(&self, shard: Arc<TcpStream>) {
        let mut state = self.shared.state();
        if state.end.is_some() {
            let _ = shard.shutdown(Shutdown::Both);
        }
        state.shards.push(shard);
    }

    /// Says `Sent` or `Committed`.
    pub(super) fn tell(&self, message: &Message) -> Result<()> {
        let mut state = self.shared.state();
        if let Some(end) = &state.end {
            return Err(self.shared.error(end));
        }
        state.told = true;
        drop(state);
        self.say(message)
    }

    fn say(&self, message: &Message) -> Result<()> {
        match self.shared.write(message) {
            Ok(()) => Ok(()),
            // The peer may have said why before it closed.
            Err(error) => Err(self
                .failure_soon()
                .unwrap_or_else(|| self.shared.error(&End::Lost(error.to_string())))),
        }
    }

    /// The number of bytes that the peer says it has sent, once it says so.
    pub(super) fn wait_sent(&self) -> Result<u64> {
        self.wait(|state| state.sent, &mut || Ok(()))
    }

    /// Waits for the receiver's word, asking `check` now and then whether to go on.
    pub(super) fn wait_committed(
        &self,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<(u32, u64)> {
        self.wait(|state| state.committed, check)
    }

    /// Waits for the sender's.
    pub(super) fn wait_confirmed(&self) -> Result<()> {
        self.wait(|state| state.confirmed.then_some(()), &mut || Ok(()))
    }

    /// Says that the receiver may use the image, unless it has gone since it said `Committed`.
    pub(super) fn confirm(&self) -> Result<()> {
        let mut state = self.shared.state();
        if let Some(end) = &state.end {
            return Err(self.shared.error(end));
        }
        state.confirmed = true;
        drop(state);
        self.say(&Message::Confirmed)
    }

    /// Whether the peer itself has said that it gave up.
    pub(super) fn peer_gave_up(&self) -> bool {
        matches!(self.shared.state().end, Some(End::Failed(_)))
    }

    /// No time-out: the thread ends the wait when the peer falls silent.
    fn wait<T>(
        &self,
        said: impl Fn(&State) -> Option<T>,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<T> {
        let mut state = self.shared.state();
        loop {
            if let Some(said) = said(&state) {
                return Ok(said);
            }
            if let Some(end) = &state.end {
                return Err(self.shared.error(end));
            }
            check()?;
            let changed = self.shared.changed.wait_timeout(state, CHECK_INTERVAL);
            state = changed.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Why the transfer was lost, waiting a little for the peer to say.
    pub(super) fn failure_soon(&self) -> Option<Error> {
        let state = self.shared.state();
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, self.shared.times.grace, |state| state.end.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        state.end.as_ref().filter(|end| **end != End::Goodbye).map(|end| self.shared.error(end))
    }

    /// Replaces an error that may only be an effect of the peer's end by its cause.
    pub(super) fn explain(&self, error: Error) -> Error {
        if is_effect(&error) { self.failure_soon().unwrap_or(error) } else { error }
    }

    /// Tells the peer that this end gives up, and ends the transfer.
    pub(super) fn give_up(&mut self, reason: &str) {
        let _ = self.shared.write(&Message::Failed(reason.to_owned()));
        self.close(End::GaveUp(reason.to_owned()));
    }

    /// Ends the transfer when all was said.
    pub(super) fn goodbye(&mut self) {
        self.close(End::Goodbye);
    }

    /// Half-closes, and gives the peer a moment to do the same: closing with something unread would
    /// send a reset, and that can overtake what was said last.
    fn close(&mut self, end: End) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.end(end);
        let _ = self.ended.recv_timeout(self.shared.times.grace);
        let _ = self.shared.socket.shutdown(Shutdown::Both);
        // It reads the end of the connection now; and if it has panicked, that was noticed.
        let _ = thread.join();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.give_up("it ended before the image was complete");
    }
}

impl Watch {
    /// Why the transfer was lost, if it was.
    pub(super) fn failure(&self) -> Option<Error> {
        let state = self.0.state();
        state.end.as_ref().filter(|end| **end != End::Goodbye).map(|end| self.0.error(end))
    }

    /// Counts bytes of shards.
    pub(super) fn count(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes of shards so far.
    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of it is one assignment: a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads and sends heartbeats until nothing more comes.
    fn listen(&self) -> End {
        let mut inbox = Inbox::default();
        let mut buf = [0; 4096];
        let mut heard = Instant::now();
        let mut next_beat = heard;
        loop {
            let now = Instant::now();
            if now >= next_beat {
                // If it fails, reading will tell why; there may be a Failed to be read still.
                let bytes = self.bytes.load(Ordering::Relaxed);
                let _ = self.write(&Message::Heartbeat(bytes));
                next_beat = now + self.times.heartbeat;
            }
            let silent_at = heard + self.times.silence;
            let wait = next_beat.min(silent_at).saturating_duration_since(now);
            match socket::readable(&self.socket, wait) {
                Ok(true) => {}
                // Only after having looked: this process may have been the one that was stopped.
                Ok(false) if now >= silent_at => return End::Silent,
                Ok(false) => continue,
                Err(error) => return End::Lost(error.to_string()),
            }
            match (&self.socket).read(&mut buf) {
                Ok(0) if self.state().confirmed => return End::Goodbye,
                Ok(0) => return End::Closed,
                Ok(n) => inbox.push(&buf[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return End::Lost(error.to_string()),
            }
            match self.take(&mut inbox) {
                Ok(0) => {}
                Ok(_) => heard = Instant::now(),
                Err(end) => return end,
            }
        }
    }

    /// Takes all messages that are there, at once: whoever waits for one of them sees also that the
    /// next one takes it back. The number of them, or the last.
    fn take(&self, inbox: &mut Inbox) -> Result<usize, End> {
        let mut state = self.state();
        let mut count = 0;
        let end = loop {
            match inbox.pop() {
                Ok(Some(Message::Failed(reason))) => break End::Failed(reason),
                Ok(Some(message)) => match state.take(self.side, message) {
                    Ok(()) => count += 1,
                    Err(end) => break end,
                },
                Ok(None) => {
                    self.changed.notify_all();
                    return Ok(count);
                }
                Err(error) => break End::Protocol(error.to_string()),
            }
        };
        state.end.get_or_insert_with(|| end.clone());
        Err(end)
    }

    /// The first end counts. What is done besides may be done again.
    fn end(&self, end: End) {
        // A peer that is wrong, or that wakes up after all, learns why it is alone.
        let farewell = match &end {
            End::Silent => Some("nothing was heard from it for too long".to_owned()),
            End::Protocol(what) => Some(format!("it does not keep to the protocol: {what}")),
            _ => None,
        };
        self.state().end.get_or_insert(end);
        self.changed.notify_all();
        self.wake_shards();
        if let Some(reason) = farewell {
            let _ = self.write(&Message::Failed(reason));
        }
        self.stop_writing();
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn wake_shards(&self) {
        for shard in &self.state().shards {
            let _ = shard.shutdown(Shutdown::Both);
        }
    }

    /// Writes a message whole, or none ever again.
    fn write(&self, message: &Message) -> io::Result<()> {
        let mut may_write = self.may_write.lock().unwrap_or_else(PoisonError::into_inner);
        if !*may_write {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let done = (&self.socket).write_all(&message.encode());
        *may_write = done.is_ok();
        done
    }

    fn stop_writing(&self) {
        *self.may_write.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    fn error(&self, end: &End) -> Error {
        end.error(self.side, &self.peer, self.times.silence)
    }
}

struct EndGuard<'a>(&'a Shared);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(End::Lost("internal error: its thread panicked".into()));
        }
    }
}
