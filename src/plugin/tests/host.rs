//! A CRIU in this process: images in a directory, or through pipes that a streamer would have at
//! its other end; a store of descriptors; messages that are kept.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use nix::{fcntl::OFlag, unistd::pipe2};

use super::super::host::{Access, Beside, Host, Work};
use crate::abi::criu::Level;

/// A CRIU: clones are the same one, in the processes that it forks.
#[derive(Debug, Clone)]
pub(in crate::plugin) struct FakeHost(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    hooks: usize,
    dir: OwnedFd,
    /// Files of the streamer by their names, where there is one.
    streamed: Option<Mutex<BTreeMap<String, Vec<u8>>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    log: Vec<(Level, String)>,
    store: Vec<OwnedFd>,
    restored: u32,
    inventory: u32,
    writers: Vec<JoinHandle<(String, Vec<u8>)>>,
    readers: Vec<JoinHandle<()>>,
}

impl FakeHost {
    /// A CRIU with so many hooks, whose images are in a directory.
    pub(in crate::plugin) fn new(hooks: usize, dir: &Path) -> Self {
        FakeHost::with(hooks, dir, None)
    }

    /// The same with an image streamer.
    pub(in crate::plugin) fn streaming(hooks: usize, dir: &Path) -> Self {
        FakeHost::with(hooks, dir, Some(Mutex::default()))
    }

    fn with(hooks: usize, dir: &Path, streamed: Option<Mutex<BTreeMap<String, Vec<u8>>>>) -> Self {
        let dir = File::open(dir).unwrap().into();
        FakeHost(Arc::new(Inner { hooks, dir, streamed, state: Mutex::default() }))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// What was said so far, at this level.
    pub(in crate::plugin) fn said(&self, level: Level) -> Vec<String> {
        let state = self.state();
        let of_level = state.log.iter().filter(|(of, _)| *of == level);
        of_level.map(|(_, line)| line.clone()).collect()
    }

    /// How often the plugin has entered the inventory.
    pub(in crate::plugin) fn inventory(&self) -> u32 {
        self.state().inventory
    }

    /// The end of CRIU: what it stored is closed.
    pub(in crate::plugin) fn end(&self) {
        self.state().store.clear();
        self.collect();
        let readers = std::mem::take(&mut self.state().readers);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }

    /// Waits until the streamer has all that was written.
    fn collect(&self) {
        let writers = std::mem::take(&mut self.state().writers);
        for writer in writers {
            let (name, bytes) = writer.join().unwrap();
            let mut files = self.0.streamed.as_ref().unwrap().lock().unwrap();
            assert!(files.insert(name.clone(), bytes).is_none(), "{name} was written twice");
        }
    }
}

impl Host for FakeHost {
    fn hooks(&self) -> Option<usize> {
        Some(self.0.hooks)
    }

    fn shows(&self, _: Level) -> bool {
        true
    }

    fn log(&self, level: Level, line: &str) {
        self.state().log.push((level, line.to_owned()));
    }

    fn images_dir(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.0.dir.as_fd())
    }

    fn streams(&self) -> bool {
        self.0.streamed.is_some()
    }

    fn open_stream(&self, name: &str, access: Access) -> io::Result<Option<OwnedFd>> {
        let (from, to) = pipe2(OFlag::O_CLOEXEC)?;
        let name = name.to_owned();
        match access {
            Access::Write => {
                let writer = thread::spawn(move || {
                    let mut bytes = Vec::new();
                    File::from(from).read_to_end(&mut bytes).unwrap();
                    (name, bytes)
                });
                self.state().writers.push(writer);
                Ok(Some(to))
            }
            Access::Read => {
                self.collect();
                // Each file can be read once.
                let bytes = self.0.streamed.as_ref().unwrap().lock().unwrap().remove(&name);
                let Some(bytes) = bytes else { return Ok(None) };
                let reader = thread::spawn(move || drop(File::from(to).write_all(&bytes)));
                self.state().readers.push(reader);
                Ok(Some(from))
            }
        }
    }

    fn add_to_inventory(&self) -> io::Result<()> {
        self.state().inventory += 1;
        Ok(())
    }

    fn take_from_inventory(&self) -> Option<bool> {
        Some(true)
    }

    fn store(&self, fd: BorrowedFd<'_>) -> io::Result<i32> {
        let mut state = self.state();
        state.store.push(fd.try_clone_to_owned()?);
        Ok(i32::try_from(state.store.len() - 1).unwrap())
    }

    fn stored(&self, number: i32) -> io::Result<OwnedFd> {
        self.state().store[usize::try_from(number).unwrap()].try_clone()
    }

    fn restored(&self) -> u32 {
        self.state().restored
    }

    fn count_restored(&self) {
        self.state().restored += 1;
    }

    fn beside(&self, _: Work) -> io::Result<Option<Box<dyn Beside>>> {
        Ok(None)
    }
}
