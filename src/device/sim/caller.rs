//! Who issues an ioctl, and how its memory and descriptors are reached.

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use super::{host::FileId, interrupt::Interrupt};

/// What a process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    /// CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN, in the initial user namespace.
    pub checkpoint: bool,
    /// CAP_SYS_NICE.
    pub nice: bool,
}

impl Credentials {
    /// Of root.
    pub const ROOT: Credentials = Credentials { checkpoint: true, nice: true };
    /// Of an ordinary user in the group `render`.
    pub const USER: Credentials = Credentials { checkpoint: false, nice: false };
}

/// An open file's identity in the machine that we run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Inode {
    pub device: u64,
    pub number: u64,
}

/// The memory and the descriptors of a caller.
pub(super) trait CallerMemory: fmt::Debug + Send + Sync {
    /// Copies from the caller's memory; EFAULT where there is none.
    fn read(&self, address: u64, into: &mut [u8]) -> nix::Result<()>;

    /// Copies to the caller's memory; EFAULT where there is none.
    fn write(&self, address: u64, bytes: &[u8]) -> nix::Result<()>;

    /// What a descriptor of the caller is; EBADF if it is none.
    fn inode(&self, fd: i32) -> nix::Result<Inode>;

    /// Memory that a device may use until the caller unmaps it: EFAULT where nothing is mapped at
    /// `address`, EPERM where that is a file's and `anonymous` was asked for.
    fn user_memory(
        &self,
        address: u64,
        len: u64,
        anonymous: bool,
    ) -> nix::Result<Arc<dyn UserMemory>>;

    /// The same, before anybody has looked whether there is memory.
    fn promised_memory(&self) -> Arc<dyn UserMemory>;

    /// What a process calls itself: its number in its own pid namespace.
    fn own_number(&self, pid: u32) -> u32 {
        pid
    }

    /// The process, of some, that has a number in the caller's pid namespace.
    fn find_number(&self, number: u32, among: &[u32]) -> Option<u32> {
        among.iter().copied().find(|&pid| pid == number)
    }
}

/// Memory of a caller that engines read and write by address.
pub(super) trait UserMemory: fmt::Debug + Send + Sync {
    /// Copies `len` bytes from `address` of the caller.
    ///
    /// # Safety
    ///
    /// `to` has room for them, and nobody else uses that room.
    unsafe fn read(&self, address: u64, to: *mut u8, len: usize) -> nix::Result<()>;

    /// Copies `len` bytes to `address` of the caller.
    ///
    /// # Safety
    ///
    /// `from` has that many bytes.
    unsafe fn write(&self, address: u64, from: *const u8, len: usize) -> nix::Result<()>;

    /// EFAULT where not all of a range is mapped.
    fn check(&self, address: u64, len: u64) -> nix::Result<()>;

    /// Whether whose memory it is ends: it goes before all that uses it has noticed.
    fn is_going(&self) -> bool {
        false
    }

    /// Where an address of the caller is for us, if its memory is ours too.
    fn local(&self, address: u64) -> Option<*mut u8> {
        let _ = address;
        None
    }
}

/// Where the number of a new descriptor goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// The byte of the ioctl's argument where its field begins.
    Argument(usize),
    /// An address of the caller.
    Memory(u64),
}

/// One call of an ioctl.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// The calling process.
    pub pid: u32,
    pub credentials: Credentials,
    pub file: FileId,
    pub request: u32,
    pub memory: &'a dyn CallerMemory,
    /// Raised when the caller has a signal to handle: then calls that wait answer EINTR.
    pub interrupt: Interrupt,
    /// Descriptors that the caller gets when the handler has succeeded.
    pub descriptors: Vec<(Slot, OwnedFd)>,
    /// Whether it gets them although the handler fails, which is what the kernel does in places.
    pub keep_descriptors: bool,
}
