//! An image streamer that knows nothing of GPUs, as criu-image-streamer is: it keeps what it gets
//! in memory, and serves one file after the other, each once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, IoSliceMut, Read, Write},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::fake_criu::wire::{
    CAPTURE_SOCKET, Reply, Request, SERVE_SOCKET, receive_message, send_message,
};

/// Images by name.
pub type Images = BTreeMap<String, Vec<u8>>;

/// A streamer at work on one connection.
#[derive(Debug)]
pub struct StockStreamer {
    socket: PathBuf,
    thread: JoinHandle<io::Result<Images>>,
}

impl StockStreamer {
    /// Takes the images of a dump.
    pub fn capture(dir: &Path) -> io::Result<Self> {
        Self::start(dir.join(CAPTURE_SOCKET), |stream| {
            let mut readers = Vec::new();
            while let Some(name) = request(&stream)? {
                let mut pipe = File::from(receive_fd(&stream)?);
                let read = thread::spawn(move || {
                    let mut bytes = Vec::new();
                    pipe.read_to_end(&mut bytes).map(|_| bytes)
                });
                readers.push((name, read));
            }
            let mut images = Images::new();
            for (name, read) in readers {
                let bytes = read.join().map_err(|_| io::Error::other("a reader panicked"))??;
                if images.insert(name.clone(), bytes).is_some() {
                    return Err(io::Error::other(format!("{name} was written twice")));
                }
            }
            Ok(images)
        })
    }

    /// Gives them to a restore: what was never asked for comes back.
    pub fn serve(dir: &Path, mut images: Images) -> io::Result<Self> {
        Self::start(dir.join(SERVE_SOCKET), move |stream| {
            let mut served = BTreeSet::new();
            while let Some(name) = request(&stream)? {
                if served.contains(&name) {
                    return Err(io::Error::other(format!("{name} was asked for twice")));
                }
                let image = images.remove(&name);
                send_message(&stream, &Reply { exists: image.is_some() })?;
                let Some(image) = image else { continue };
                served.insert(name);
                // The whole file, before the next request is read.
                File::from(receive_fd(&stream)?).write_all(&image)?;
            }
            Ok(images)
        })
    }

    fn start(
        socket: PathBuf,
        work: impl FnOnce(UnixStream) -> io::Result<Images> + Send + 'static,
    ) -> io::Result<Self> {
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        let thread = thread::spawn(move || work(listener.accept()?.0));
        Ok(StockStreamer { socket, thread })
    }

    /// What it has when CRIU is done with it.
    pub fn end(self) -> io::Result<Images> {
        let images = self.thread.join().map_err(|_| io::Error::other("the streamer panicked"))?;
        let _ = std::fs::remove_file(&self.socket);
        images
    }
}

/// The name of the next file; `None` at the end.
fn request(stream: &UnixStream) -> io::Result<Option<String>> {
    match receive_message::<Request>(stream) {
        Ok(request) => Ok(Some(String::from_utf8(request.filename).map_err(io::Error::other)?)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn receive_fd(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fd.ok_or_else(|| io::Error::other("no descriptor"))
}
