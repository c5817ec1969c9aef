//! Handing memory to a pipe by reference.

use std::{io::IoSlice, os::fd::AsFd};

use nix::fcntl::{SpliceFFlags, vmsplice};

/// Puts references to the pages of `bytes` into a pipe, waiting for room: how many bytes it took.
///
/// The reader sees the pages as they are when it reads them. So this is for bytes that never change
/// again; freeing them is all right.
pub fn refer_pages(pipe: impl AsFd, bytes: &[u8]) -> nix::Result<usize> {
    let slices = [IoSlice::new(bytes)];
    // SAFETY: without SPLICE_F_GIFT the kernel only reads the pages, and it holds its own
    // references to them: unmapping or freeing `bytes` while the pipe is full leaves them alive.
    unsafe { vmsplice(pipe, &slices, SpliceFFlags::empty()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_pages_outlive_the_mapping() {
        let (mut read, write) = std::io::pipe().unwrap();
        let mut mapping = memmap2::MmapMut::map_anon(10_000).unwrap();
        mapping.iter_mut().zip(0..=255).for_each(|(byte, n)| *byte = n);
        let copy = mapping.to_vec();
        assert_eq!(refer_pages(&write, &mapping), Ok(copy.len()));
        drop((mapping, write));
        let mut got = Vec::new();
        read.read_to_end(&mut got).unwrap();
        assert_eq!(got, copy);
    }
}
