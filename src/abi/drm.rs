//! What every DRM driver answers: Linux uapi `drm.h`.

#![allow(missing_docs)] // the requests have the headers' names

use super::{Request, layout};

/// For [`PRIME_HANDLE_TO_FD`]: close the descriptor on exec.
pub const CLOEXEC: u32 = 0x80000;
/// For [`PRIME_HANDLE_TO_FD`]: the dma-buf may be mapped for writing.
pub const RDWR: u32 = 0x2;

pub const VERSION: Request<Version> = Request::new("VERSION", 0xc040_6400);
pub const GEM_CLOSE: Request<GemClose> = Request::new("GEM_CLOSE", 0x4008_6409);
pub const GET_CAP: Request<GetCap> = Request::new("GET_CAP", 0xc010_640c);
pub const PRIME_HANDLE_TO_FD: Request<PrimeHandle> =
    Request::new("PRIME_HANDLE_TO_FD", 0xc00c_642d);
pub const PRIME_FD_TO_HANDLE: Request<PrimeHandle> =
    Request::new("PRIME_FD_TO_HANDLE", 0xc00c_642e);
pub const GEM_CHANGE_HANDLE: Request<GemChangeHandle> =
    Request::new("GEM_CHANGE_HANDLE", 0xc008_64d2);

layout! {
    /// `drm_version`.
    pub struct Version: 64 {
        0 version_major: i32,
        4 version_minor: i32,
        8 version_patchlevel: i32,
        12 pad1: u32,
        16 name_len: u64,
        24 name: u64,
        32 date_len: u64,
        40 date: u64,
        48 desc_len: u64,
        56 desc: u64,
    }

    /// `drm_get_cap`.
    pub struct GetCap: 16 {
        0 capability: u64,
        8 value: u64,
    }

    /// `drm_gem_close`.
    pub struct GemClose: 8 {
        0 handle: u32,
        4 pad: u32,
    }

    /// `drm_prime_handle`.
    pub struct PrimeHandle: 12 {
        0 handle: u32,
        4 flags: u32,
        8 fd: i32,
    }

    /// `drm_gem_change_handle`.
    pub struct GemChangeHandle: 8 {
        0 handle: u32,
        4 new_handle: u32,
    }
}
