//! Foreign layouts and numbers, and nothing else: what the kernel's headers say, in Rust.
//!
//! Every structure is written with the offset of each field beside it, and the compiler checks
//! both the offsets and the size; `tests/tests/kernel_headers.rs` compares them with the headers
//! that the distribution installs. A [`Request`] carries the type of its argument, so that nobody
//! can pass the wrong one.
//!
//! All structures are [`Plain`]: every field is an integer or an array of integers, every bit
//! pattern is a value, and there are no gaps (what C leaves as padding is a field here). Where C
//! has a union of input and output, the structure is the input, and a method reads the output.
//!
//! Sources: Linux uapi `kfd_ioctl.h`, `drm.h`, `amdgpu_drm.h`; the private records of
//! [`kfd`] come from `kfd_priv.h`. x86-64, little-endian.

use std::{fmt, marker::PhantomData};

pub mod amdgpu;
pub mod criu;
pub mod drm;
pub mod kfd;
pub mod relay;
pub mod sdma;

/// A structure that is nothing but its bytes.
///
/// # Safety
///
/// The type has no padding, no pointers and no invalid bit patterns.
pub unsafe trait Plain: Copy + 'static {
    /// The value with all bytes zero.
    fn zeroed() -> Self {
        // SAFETY: every bit pattern is a value, so zeros are one.
        unsafe { std::mem::zeroed() }
    }

    /// The value that begins `bytes`; bytes that are missing are zero, as the kernel does with a
    /// caller whose structure is shorter than its own.
    fn from_prefix(bytes: &[u8]) -> Self {
        let mut value = Self::zeroed();
        let len = bytes.len().min(size_of::<Self>());
        value.as_bytes_mut()[..len].copy_from_slice(&bytes[..len]);
        value
    }

    /// The bytes of this value.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: the value has no padding, so all of its bytes are initialised.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// The bytes of this value, to be written.
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_bytes`, and whatever is written is a value.
        unsafe { std::slice::from_raw_parts_mut((&raw mut *self).cast(), size_of::<Self>()) }
    }
}

// SAFETY: an integer is its bytes.
unsafe impl Plain for u32 {}
// SAFETY: an integer is its bytes.
unsafe impl Plain for u64 {}

/// The number of an ioctl, with the type of its argument.
pub struct Request<T> {
    number: u32,
    name: &'static str,
    argument: PhantomData<fn(T)>,
}

impl<T: Plain> Request<T> {
    /// `number` as the headers give it; its size field must be that of the argument.
    const fn new(name: &'static str, number: u32) -> Self {
        assert!(request_size(number) == size_of::<T>(), "the argument has another size");
        Request { number, name, argument: PhantomData }
    }

    /// The value that `ioctl(2)` takes.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// What the kernel calls it, without the prefix of its family.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T> fmt::Debug for Request<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:#x})", self.name, self.number)
    }
}

/// The size of a request's argument, in bytes: bits 16 to 29.
pub const fn request_size(number: u32) -> usize {
    (number as usize >> 16) & 0x3fff
}

/// The number of a request within its family: bits 0 to 7.
pub const fn request_nr(number: u32) -> u32 {
    number & 0xff
}

/// The letter of a request's family: bits 8 to 15.
pub const fn request_type(number: u32) -> u8 {
    ((number >> 8) & 0xff) as u8
}

/// Defines structures as C lays them out, with size and offsets checked by the compiler.
macro_rules! layout {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident: $size:literal {
            $($offset:literal $field:ident: $ty:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)] // the headers' names
        pub struct $name {
            $(pub $field: $ty,)*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
            assert!(0 $(+ size_of::<$ty>())* == $size, "there is padding");
        };

        // SAFETY: integers and arrays of them only, and the sizes add up, so there is no padding.
        unsafe impl $crate::abi::Plain for $name {}

        impl Default for $name {
            fn default() -> Self {
                $crate::abi::Plain::zeroed()
            }
        }

        impl $name {
            /// Each field's name, offset and size, for comparison with the headers.
            pub const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), $offset, size_of::<$ty>()),)*];
        }
    )*};
}
use layout;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_structure_is_extended_with_zeros() {
        let short = [1, 0, 0, 0, 8];
        let version = kfd::GetVersion::from_prefix(&short);
        assert_eq!((version.major_version, version.minor_version), (1, 8));
    }

    #[test]
    fn the_parts_of_a_request() {
        let number = kfd::CRIU_OP.number();
        assert_eq!(
            (request_type(number), request_nr(number), request_size(number)),
            (b'K', 0x22, 56)
        );
    }
}
