//! A destination that stops, and goes on or fails when it is told to.

use std::{
    io,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use vramstream_streamer::{
    Error, Result,
    format::ImageId,
    payload::Payload,
    transport::{Destination, ShardWriter},
};

#[derive(Debug, Default)]
struct Inner {
    reached: bool,
    opened: bool,
    failed: bool,
}

/// Takes some bytes, and then waits.
pub(crate) struct Gated(Gate);

/// The other end of it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<Inner>, Condvar)>);

/// So much is taken at once.
const BEFORE: usize = 64 << 10;

impl Gated {
    pub(crate) fn new() -> (Self, Gate) {
        let gate = Gate::default();
        (Gated(gate.clone()), gate)
    }
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut Inner)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    pub(crate) fn wait_until_reached(&self) {
        let inner = self.0.0.lock().unwrap();
        let wait = self.0.1.wait_timeout_while(inner, Duration::from_secs(30), |i| !i.reached);
        assert!(!wait.unwrap().1.timed_out());
    }

    pub(crate) fn open(&self) {
        self.change(|inner| inner.opened = true);
    }

    pub(crate) fn fail(&self) {
        self.change(|inner| inner.failed = true);
    }

    fn pass(&self) -> Result<()> {
        self.change(|inner| inner.reached = true);
        let inner = self.0.0.lock().unwrap();
        let inner = self.0.1.wait_while(inner, |inner| !inner.opened && !inner.failed).unwrap();
        match inner.failed {
            true => Err(Error::io(|| "write the shard")(io::Error::from_raw_os_error(28))),
            false => Ok(()),
        }
    }
}

struct Shard {
    gate: Gate,
    taken: usize,
}

impl ShardWriter for Shard {
    fn describe(&self) -> &str {
        "a shard"
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.taken += bytes.len();
        if self.taken > BEFORE { self.gate.pass() } else { Ok(()) }
    }

    fn write_chunk(&mut self, head: &[u8], payload: Payload) -> Result<()> {
        self.taken += payload.len;
        self.write(head)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Destination for Gated {
    fn shards(&self) -> u32 {
        1
    }

    fn open(&mut self, _: ImageId) -> Result<Vec<Box<dyn ShardWriter>>> {
        Ok(vec![Box::new(Shard { gate: self.0.clone(), taken: 0 })])
    }

    fn commit(&mut self, _: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn abort(&mut self, _: &str) {}
}
