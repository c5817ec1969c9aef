//! Memory that is shared with a device, which may write it at any time.
//!
//! It is read and written by copying, word by word where the device reads words, and there is never
//! a reference to it.

use std::{num::NonZeroUsize, os::fd::AsFd, ptr::NonNull};

use nix::{
    errno::Errno,
    sys::mman::{MapFlags, ProtFlags, mmap, munmap},
};

/// A shared mapping of a device's memory, unmapped when dropped.
#[derive(Debug)]
pub struct DeviceMemory {
    start: NonNull<u8>,
    len: NonZeroUsize,
}

// SAFETY: the mapping belongs to this value and to no thread.
unsafe impl Send for DeviceMemory {}
// SAFETY: all access is by copying to and from memory that is no Rust object and that others may
// write anyway.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Maps `len` bytes of a file from `offset`.
    pub fn map(fd: impl AsFd, offset: u64, len: usize) -> nix::Result<Self> {
        let len = NonZeroUsize::new(len).ok_or(Errno::EINVAL)?;
        // (An offset of a device has all 64 bits; the kernel does not see them as signed.)
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let start = unsafe {
            mmap(
                None,
                len,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                fd,
                offset.cast_signed(),
            )
        }?;
        Ok(DeviceMemory { start: start.cast(), len })
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // there is no empty mapping
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// The address of the first byte, for a device.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Where the memory is, for those who share it with a device.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Panics
    ///
    /// If they do not fit.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: inside the mapping (just checked), which is not a Rust object.
        let to = unsafe { self.start.add(at) };
        // SAFETY: `bytes` is a slice, so it cannot be this mapping; `to` has room for all of it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }

    /// Copies from `at` into `bytes`.
    ///
    /// # Panics
    ///
    /// If the mapping has fewer.
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        self.check(at, bytes.len());
        // SAFETY: inside the mapping (just checked), which is not a Rust object.
        let from = unsafe { self.start.add(at) };
        // SAFETY: as in `write`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Writes 32-bit words from `at`, in order, as a device reads them.
    ///
    /// # Panics
    ///
    /// If they do not fit, or `at` is not a multiple of 4.
    pub fn write_words(&self, at: usize, words: &[u32]) {
        assert!(at.is_multiple_of(4), "words are aligned");
        self.check(at, size_of_val(words));
        for (index, &word) in words.iter().enumerate() {
            // SAFETY: inside the mapping (just checked).
            let to = unsafe { self.start.add(at + 4 * index) };
            // SAFETY: inside the mapping, and aligned because a mapping starts at a page.
            unsafe { to.cast::<u32>().write_volatile(word.to_le()) };
        }
    }

    fn check(&self, at: usize, len: usize) {
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len.get()), "outside of the mapping");
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and there are no references to it.
        let _ = unsafe { munmap(self.start.cast(), self.len.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let memory = DeviceMemory::map(&file, 0, 4096).unwrap();
        memory.write(1, b"abc");
        memory.write_words(8, &[1, 2]);
        let mut bytes = [0; 16];
        memory.read(0, &mut bytes);
        assert_eq!(bytes, *b"\0abc\0\0\0\0\x01\0\0\0\x02\0\0\0");
        assert_eq!(DeviceMemory::map(&file, 0, 0).err(), Some(Errno::EINVAL));
    }

    #[test]
    #[should_panic(expected = "outside of the mapping")]
    fn the_end_is_the_end() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        DeviceMemory::map(&file, 0, 4096).unwrap().write(4094, b"abc");
    }
}
