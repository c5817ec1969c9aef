//! Between the kernel module of the simulated machine and its daemon: `/dev/gpu-relay`.
//!
//! The module is the project's own (`tests/vm/module`), and `protocol.h` there says what all of this
//! means: this is the same in Rust.

use super::{Request, layout};

/// The version of the protocol.
pub const VERSION: u32 = 1;
/// The first render minor that can be.
pub const FIRST_MINOR: u32 = 128;
/// How many render minors there can be.
pub const MINORS: u32 = 128;
/// The most descriptors in one answer.
pub const MOST_DESCRIPTORS: usize = 65536;
/// The longest argument of an ioctl.
pub const MOST_ARGUMENT: usize = (1 << 14) - 1;

/// What a request asks for.
#[allow(missing_docs)] // the header's names
pub mod kind {
    pub const OPEN: u32 = 1;
    pub const IOCTL: u32 = 2;
    pub const MMAP: u32 = 3;
    pub const CLOSE: u32 = 4;
    pub const UNMAP: u32 = 5;
    pub const INTERRUPT: u32 = 6;
}

layout! {
    /// `relay_request`.
    pub struct RelayRequest: 72 {
        0 id: u64,
        8 file: u64,
        16 kind: u32,
        20 process: u32,
        24 device: u32,
        28 number: u32,
        32 offset: u64,
        40 len: u64,
        48 allowed: [u64; 2],
        64 argument_len: u32,
        68 reserved: u32,
    }

    /// `relay_answer`.
    pub struct RelayAnswer: 40 {
        0 id: u64,
        8 error: u32,
        12 argument_len: u32,
        16 descriptors: u32,
        20 memory: i32,
        24 memory_offset: u64,
        32 mapping: u64,
    }

    /// `relay_descriptor`.
    pub struct RelayDescriptor: 24 {
        0 fd: i32,
        4 flags: u32,
        8 place: u64,
        16 in_memory: u32,
        20 reserved: u32,
    }

    /// `relay_sysfs`.
    pub struct RelaySysfs: 32 {
        0 path: u64,
        8 data: u64,
        16 path_len: u32,
        20 data_len: u32,
        24 guard: u32,
        28 reserved: u32,
    }

    /// `relay_export`.
    pub struct RelayExport: 16 {
        0 size: u64,
        8 flags: u32,
        12 fd: i32,
    }

    /// `relay_what`.
    pub struct RelayWhat: 16 {
        0 fd: i32,
        4 reserved: u32,
        8 file: u64,
    }
}

/// `RELAY_IOC_VERSION`
pub const IOC_VERSION: Request<u32> = Request::new("VERSION", 0x8004_7600);
/// `RELAY_IOC_SYSFS`
pub const IOC_SYSFS: Request<RelaySysfs> = Request::new("SYSFS", 0x4020_7601);
/// `RELAY_IOC_NODE`
pub const IOC_NODE: Request<u32> = Request::new("NODE", 0x4004_7602);
/// `RELAY_IOC_EXPORT`
pub const IOC_EXPORT: Request<RelayExport> = Request::new("EXPORT", 0xc010_7603);
/// `RELAY_IOC_WHAT`
pub const IOC_WHAT: Request<RelayWhat> = Request::new("WHAT", 0xc010_7604);
