//! The door for callers of real device nodes.
//!
//! A kernel module makes `/dev/kfd`, the render nodes and the files of the topology, and relays what
//! processes do with them to a [`Relay`], which answers as the machine: `abi::relay` has the
//! protocol. Callers are any processes at all, CRIU and libraries of ROCm among them, and cannot
//! tell this from a driver but by its age.
//!
//! ```text
//!  mod       the nodes and files, and threads that take requests
//!  requests  a request and its answer
//!  caller    a caller's descriptors and memory
//!  device    /dev/gpu-relay
//! ```
//!
//! What the module says of a request stays in order: an interruption never comes before the request
//! that it is for.

use std::{
    collections::HashMap,
    fmt::Debug,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use nix::errno::Errno;

use self::device::Device;
use super::{
    arena::View,
    host::{FileId, SimHost},
    interrupt::Interrupt,
    remote::Remote,
};
use crate::abi::relay::{RelayRequest, VERSION, kind};

mod caller;
mod device;
mod requests;

/// The most requests at a time. More wait.
const MOST_THREADS: usize = 512;
/// So many threads stay to wait for requests.
const MOST_IDLE: usize = 4;

/// The machine could not be shown through the module.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A call failed.
    #[error("{}: {call} failed: {errno} (is the module loaded, and no other daemon there?)", device.display())]
    Call {
        /// The module's device.
        device: PathBuf,
        /// Which.
        call: &'static str,
        /// The answer.
        errno: Errno,
    },
    /// Module and daemon are of different versions.
    #[error(
        "{}: the module speaks version {version} of the protocol, this is {VERSION}: rebuild it",
        device.display()
    )]
    Version {
        /// The module's device.
        device: PathBuf,
        /// The module's version.
        version: u32,
    },
}

/// A simulated machine behind real device nodes.
#[derive(Debug)]
pub struct Relay {
    host: SimHost,
    device: Arc<Device>,
    /// Open files by the module's cookies.
    files: Mutex<HashMap<u64, Opened>>,
    /// What is mapped somewhere.
    mappings: Mutex<HashMap<u64, View>>,
    next_mapping: AtomicUsize,
    /// Requests that are being answered.
    pending: Mutex<HashMap<u64, Interrupt>>,
    callers: Mutex<HashMap<u32, Arc<Remote>>>,
    /// Held to take a request and to enter it as pending.
    taking: Mutex<()>,
    threads: AtomicUsize,
    idle: AtomicUsize,
}

/// An open file, and what stands for it in this process.
#[derive(Debug)]
struct Opened {
    id: FileId,
    _fd: std::os::fd::OwnedFd,
}

impl Relay {
    /// Makes the nodes and the files of a machine, by the module's device. They are there, and answered, when this returns;
    /// they go with the last reference to the relay, or with this process.
    pub fn start(host: SimHost, device: &Path) -> Result<Arc<Self>, RelayError> {
        let device = Arc::new(Device::open(device)?);
        let version = device.version()?;
        if version != VERSION {
            return Err(RelayError::Version { device: device.path().to_owned(), version });
        }
        // (A machine has one relay: the second cannot open the device.)
        let _ = host.shared.exporter.set(Box::new(Arc::clone(&device)));
        let relay = Arc::new(Relay {
            host,
            device,
            files: Mutex::default(),
            mappings: Mutex::default(),
            next_mapping: AtomicUsize::new(1),
            pending: Mutex::default(),
            callers: Mutex::default(),
            taking: Mutex::default(),
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
        });
        relay.add_thread();
        relay.device.add_node(0)?;
        for file in relay.host.topology_files() {
            let path = format!("topology/{}", file.path);
            relay.device.add_file(&path, &file.text, file.guard.unwrap_or(0))?;
        }
        for gpu in &relay.host.machine().gpus {
            relay.device.add_node(gpu.render_minor)?;
        }
        Ok(relay)
    }

    /// How many files are open.
    pub fn open_files(&self) -> usize {
        lock(&self.files).len()
    }

    /// One more thread, if there can be one.
    fn add_thread(self: &Arc<Self>) {
        if self.threads.fetch_add(1, Ordering::AcqRel) < MOST_THREADS {
            let relay = Arc::clone(self);
            let named = thread::Builder::new().name("relay".to_owned());
            if named.spawn(move || relay.work()).is_ok() {
                return;
            }
        }
        self.threads.fetch_sub(1, Ordering::AcqRel);
    }

    fn work(self: Arc<Self>) {
        let mut buffer = device::buffer();
        while let Some((request, interrupt)) = self.take(&mut buffer) {
            let argument =
                &mut buffer[size_of::<RelayRequest>()..][..request.argument_len as usize];
            self.answer(&request, argument, interrupt);
            if self.idle.load(Ordering::Acquire) >= MOST_IDLE {
                break;
            }
        }
        self.threads.fetch_sub(1, Ordering::AcqRel);
    }

    /// The next request; `None` if there will be none.
    fn take(self: &Arc<Self>, buffer: &mut [u8]) -> Option<(RelayRequest, Interrupt)> {
        self.idle.fetch_add(1, Ordering::AcqRel);
        let taking = lock(&self.taking);
        let request = self.device.read(buffer);
        let interrupt = Interrupt::default();
        if let Ok(request) = &request
            && request.kind == kind::IOCTL
        {
            lock(&self.pending).insert(request.id, interrupt.clone());
        }
        drop(taking);
        if self.idle.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.add_thread();
        }
        Some((request.ok()?, interrupt))
    }
}

fn lock<T: Debug>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
