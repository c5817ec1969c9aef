//! Memory that goes into pipes by reference.
//!
//! CRIU moves the memory of processes with `vmsplice` and `splice`: a pipe gets references to
//! pages, not copies. `splice` from a file in memory does the same, needs no `unsafe`, and lets a
//! terabyte be sent from a few pages by sending them again and again.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::images::random_bytes;

/// Bytes in memory that can be sent any number of times.
#[derive(Debug)]
pub struct Pages {
    file: File,
    length: u64,
}

impl Pages {
    /// These bytes, once; they are copied here and never again.
    pub fn new(bytes: &[u8]) -> io::Result<Self> {
        let mut file = File::from(memfd_create("pages", MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok(Pages { file, length: bytes.len() as u64 })
    }

    /// So many bytes that no codec shrinks.
    pub fn random(seed: u64, length: usize) -> io::Result<Self> {
        Self::new(&random_bytes(seed, length))
    }

    /// How many bytes there are.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl AsFd for Pages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
