//! Gives the images of a checkpoint to CRIU, in whatever order it asks.
//!
//! ```text
//!  CRIU ◄──socket──► serve (this thread: requests, replies, small images)
//!       ◄──pipe───── a thread for each larger image that is open
//! ```
//!
//! An image that CRIU opens and does not read, or reads later, holds up nothing else. Images can be
//! asked for any number of times, with one exception: from a source that can be read only once, an
//! image larger than the limit of [`MemoryFiles::new`] leaves memory while CRIU takes it. "Absent" is said
//! only of images that were never captured.
//!
//! # GPUs
//!
//! A CRIU plugin can [hand over](vramstream::handoff) where the contents of a process's GPUs go, for
//! several processes at once. Each GPU has a thread that reads its file of the image and a worker that
//! writes it to the BOs, through a ring that is made when the first plugin comes and is as large as the
//! plugin's `KFD_MAX_BUFFER_SIZE`, or ours, says. The plugin hears that it is done when everything is in
//! the BOs and was found to be what was dumped. A file that was handed over counts as read. When
//! something is wrong with it the restore fails, as below: the BOs may have a part of it by then.
//!
//! # When something is wrong
//!
//! Whatever can be checked is checked before CRIU can connect. From a seekable source that is the
//! index; an image of up to [`WHOLE_BYTES`] is then checked whole before its
//! first byte is given, a larger one piece by piece. When a piece turns out to be damaged, its pipe
//! and all connections are closed at once: CRIU finds an end where none may be, and fails.

use std::{collections::HashMap, os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Duration};

use vramstream::device::Driver;

use crate::{
    criu::{Connection, Listener, Request, SERVE_SOCKET},
    error::{Error, Result},
    fault::Fault,
    format::FileName,
    plugins::Plugins,
    poller::Poller,
    progress::Progress,
    signals::Signals,
};

mod files;
mod gpus;
mod memory;
mod pipe_out;
mod remap;
mod seekable;
mod sender;

pub use files::{ImageFiles, Pieces, Step, Took, WHOLE_BYTES};
use gpus::Restores;
pub use memory::MemoryFiles;
pub use pipe_out::PipeOut;
pub use remap::{PortMap, remap_files_img};
pub use seekable::SeekableFiles;
use sender::Senders;

/// How to serve.
#[derive(Debug)]
pub struct Options {
    /// Where CRIU looks for the socket.
    pub images_dir: PathBuf,
    /// How many programs read the image: CRIU, and perhaps its lazy-pages daemon.
    pub clients: u32,
    /// Files that do not go to CRIU, each to a pipe.
    pub external_files: Vec<(FileName, OwnedFd)>,
    /// Listening ports to change in files.img.
    pub ports: PortMap,
    /// Who answers for the GPUs whose contents are asked for.
    pub driver: Arc<dyn Driver>,
}

/// How long images that are being read may go without a byte after all clients have gone.
const LINGER: Duration = Duration::from_secs(5);

/// The longest wait for a client's next word, after which the signals are looked at all the same.
const CHECK: Duration = Duration::from_secs(1);

/// The image whose ports can be remapped.
const FILES_IMG: &str = "files.img";

const SIGNALS: u64 = 0;
const LISTENER: u64 = 1;
const ALARM: u64 = 2;
const PLUGINS: u64 = 3;
const JOBS: u64 = 4;
const FIRST_CLIENT: u64 = 16;

/// Serves until every client has come and gone. Tells `progress` when CRIU can connect.
pub fn serve(
    options: Options,
    files: Arc<dyn ImageFiles>,
    signals: &Signals,
    progress: &Progress,
) -> Result<()> {
    let files = remapped(files, &options.ports)?;
    let fault = Arc::new(Fault::new()?);
    let senders = Senders::new(&fault, progress);
    for (name, pipe) in options.external_files {
        let pieces = files.open(&name)?.ok_or_else(|| {
            Error::Usage(format!("{name} is not in the image: drop it from --ext-file-fds"))
        })?;
        senders.send_to_the_end(name, pieces, pipe)?;
    }
    // Before CRIU can connect: its plugin looks for this one once.
    let plugins = Plugins::bind(&options.images_dir, &options.driver)?;
    let restores = Arc::new(Restores::new(&files, &fault, &options.driver, progress));
    let listener = Listener::bind(&options.images_dir, SERVE_SOCKET)?;
    let mut server = Server {
        poller: Poller::new()?,
        files,
        senders,
        plugins,
        restores,
        clients: HashMap::new(),
        awaited: options.clients,
        next_client: FIRST_CLIENT,
    };
    server.poller.add(signals, SIGNALS)?;
    server.poller.add(&listener, LISTENER)?;
    server.poller.add(fault.alarm(), ALARM)?;
    server.poller.add(server.plugins.listener(), PLUGINS)?;
    server.poller.add(server.plugins.ended(), JOBS)?;
    progress.line("socket-init");
    let served = server.run(listener, signals, &fault);
    if let Err(error) = &served {
        server.plugins.fail(&error.report().to_string());
        // CRIU's connections and pipes close here.
        server.clients.clear();
        server.plugins.settle();
    }
    served
}

struct Server {
    poller: Poller,
    files: Arc<dyn ImageFiles>,
    senders: Senders,
    plugins: Plugins,
    restores: Arc<Restores>,
    clients: HashMap<u64, Client>,
    /// Clients that have not come yet.
    awaited: u32,
    next_client: u64,
}

/// A program that reads the image.
struct Client {
    connection: Connection,
    /// What it has asked for and not sent a pipe for yet. Opened before it is told that it exists:
    /// what cannot be given must not be promised.
    promised: Option<Box<dyn Pieces>>,
}

impl Server {
    fn run(&mut self, listener: Listener, signals: &Signals, fault: &Fault) -> Result<()> {
        let mut listener = Some(listener);
        while self.awaited > 0 || !self.clients.is_empty() || self.plugins.are_busy() {
            for n in 0..self.poller.wait(CHECK)? {
                let Some(event) = self.poller.ready(n) else { break };
                match event {
                    SIGNALS => signals.check()?,
                    ALARM => fault.check()?,
                    PLUGINS => self.plugins.accept(&self.restores)?,
                    JOBS => self.plugins.seen(),
                    LISTENER => self.accept(&mut listener)?,
                    client => self.client(client)?,
                }
            }
        }
        self.senders.finish(signals, fault, LINGER)
    }

    fn accept(&mut self, listener: &mut Option<Listener>) -> Result<()> {
        let Some(open) = listener else { return Ok(()) };
        let Some(stream) = open.accept()? else { return Ok(()) };
        let connection = Connection::new(stream, open.path().display().to_string());
        self.poller.add(&connection, self.next_client)?;
        self.clients.insert(self.next_client, Client { connection, promised: None });
        self.next_client += 1;
        self.awaited -= 1;
        if self.awaited == 0 {
            *listener = None;
        }
        Ok(())
    }

    fn client(&mut self, number: u64) -> Result<()> {
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        match client.connection.receive()? {
            None => Ok(()),
            Some(Request::Name(name)) => {
                client.promised = self.files.open(&name)?;
                client.connection.reply(client.promised.is_some())
            }
            Some(Request::Pipe(name, pipe)) => match client.promised.take() {
                Some(pieces) => self.senders.send(name, pieces, pipe),
                None => Ok(()),
            },
            Some(Request::Closed) => {
                self.clients.remove(&number);
                Ok(())
            }
        }
    }
}

/// The same files, with other ports in one of them.
fn remapped(files: Arc<dyn ImageFiles>, ports: &PortMap) -> Result<Arc<dyn ImageFiles>> {
    if ports.is_empty() {
        return Ok(files);
    }
    let name = FileName::new(FILES_IMG)?;
    let Some(mut pieces) = files.open(&name)? else { return Ok(files) };
    let mut content = Vec::new();
    pieces.read_all(&mut content)?;
    drop(pieces);
    let content = remap_files_img(&content, ports)?;
    Ok(Arc::new(memory::Replaced::new(files, name, content.into())))
}
