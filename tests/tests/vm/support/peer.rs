//! The other one of two machines: `scripts/vm-test --pair` runs a test of the same name on each, and they
//! tell each other, line by line, how far they are.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use vramstream_tests::real::wait_for;

use super::Result;

/// The machine on which the tests `pair::source` run.
pub(crate) const SOURCE: &str = "10.7.0.1";
/// The machine on which the tests `pair::destination` run.
pub(crate) const DESTINATION: &str = "10.7.0.2";

/// Where the tests meet, on the source.
const PORT: u16 = 7;
/// For the other one to get to the same test, and for what it does between two lines.
const PATIENCE: Duration = Duration::from_secs(240);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Peer {
    stream: BufReader<TcpStream>,
}

impl Peer {
    /// Waits, on the source, for the other machine to be at the test `name`.
    pub(crate) fn at_source(name: &str) -> Result<Self> {
        let listener = TcpListener::bind((SOURCE, PORT))?;
        listener.set_nonblocking(true)?;
        let stream = wait_for("the destination", PATIENCE, || Ok(listener.accept().ok()))?.0;
        stream.set_nonblocking(false)?;
        Self::meet(stream, name)
    }

    /// Waits, on the destination, for the other machine to be at the test `name`.
    pub(crate) fn at_destination(name: &str) -> Result<Self> {
        let connect = || Ok(TcpStream::connect((SOURCE, PORT)).ok());
        Self::meet(wait_for("the source", PATIENCE, connect)?, name)
    }

    fn meet(stream: TcpStream, name: &str) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut peer = Self { stream: BufReader::new(stream) };
        peer.say(name)?;
        peer.hear(name)?;
        Ok(peer)
    }

    /// Says a line.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        Ok(self.stream.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    /// Waits for this line, which must be the next.
    pub(crate) fn hear(&mut self, line: &str) -> Result<()> {
        let said = self.listen()?;
        if said == line {
            return Ok(());
        }
        Err(format!("the other machine said {said:?} when {line:?} was due").into())
    }

    /// Waits for the next line.
    pub(crate) fn listen(&mut self) -> Result<String> {
        let mut said = String::new();
        self.stream.read_line(&mut said)?;
        let line = said.strip_suffix('\n');
        Ok(line.ok_or("the test on the other machine has ended")?.to_owned())
    }
}
