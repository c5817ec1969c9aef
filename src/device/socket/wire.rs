//! The records of the protocol.
//!
//! A decoder trusts nothing: what does not follow the tables of [`socket`](super) is `None`.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use crate::device::DeviceKind;
pub(in crate::device) use crate::device::records::{receive, send};

/// The version of the protocol.
pub(in crate::device) const VERSION: u32 = 1;
/// The most descriptors of one record; the kernel takes 253.
pub(in crate::device) const MOST_DESCRIPTORS: usize = 250;
/// The longest path.
const MOST_PATH: usize = 4096;
/// The longest argument: an ioctl's number has 14 bits for its length.
const MOST_ARGUMENT: usize = 0x3fff;

const REQUEST_HEADER: usize = 24;
const ANSWER_HEADER: usize = 16;
const SLOT: usize = 16;

const OPEN: u32 = 1;
const CHECK: u32 = 2;
const IOCTL: u32 = 3;
const MAP: u32 = 4;
const STAND_IN: u32 = 5;
const ADOPT: u32 = 6;
const WHAT: u32 = 7;

const DESCRIPTORS: u32 = 1;
const END: u32 = 2;

/// What a client asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Request<'a> {
    Open { version: u32, device: u64, inode: u64, path: &'a Path },
    Check,
    Ioctl { number: u32, argument: &'a [u8] },
    Map { offset: u64, len: u64 },
    StandIn { device: u64, inode: u64 },
    Adopt { version: u32, device: u64, inode: u64 },
    What { version: u32, device: u64, inode: u64 },
}

impl<'a> Request<'a> {
    pub(in crate::device) fn encode(&self) -> Vec<u8> {
        let (kind, number, first, second, bytes) = match *self {
            Request::Open { version, device, inode, path } => {
                (OPEN, version, device, inode, path.as_os_str().as_bytes())
            }
            Request::Check => (CHECK, 0, 0, 0, &[][..]),
            Request::Ioctl { number, argument } => (IOCTL, number, 0, 0, argument),
            Request::Map { offset, len } => (MAP, 0, offset, len, &[][..]),
            Request::StandIn { device, inode } => (STAND_IN, 0, device, inode, &[][..]),
            Request::Adopt { version, device, inode } => (ADOPT, version, device, inode, &[][..]),
            Request::What { version, device, inode } => (WHAT, version, device, inode, &[][..]),
        };
        let mut record = Vec::with_capacity(REQUEST_HEADER + bytes.len());
        record.extend(kind.to_le_bytes());
        record.extend(number.to_le_bytes());
        record.extend(first.to_le_bytes());
        record.extend(second.to_le_bytes());
        record.extend(bytes);
        record
    }

    pub(in crate::device) fn decode(record: &'a [u8]) -> Option<Self> {
        let (header, bytes) = record.split_at_checked(REQUEST_HEADER)?;
        let (kind, number) = (word(header, 0)?, word(header, 4)?);
        let (first, second) = (long(header, 8)?, long(header, 16)?);
        Some(match (kind, number, first, second, bytes) {
            (OPEN, version, device, inode, path) if path.len() <= MOST_PATH => {
                Request::Open { version, device, inode, path: Path::new(OsStr::from_bytes(path)) }
            }
            (CHECK, 0, 0, 0, []) => Request::Check,
            (IOCTL, number, 0, 0, argument) if argument.len() <= MOST_ARGUMENT => {
                Request::Ioctl { number, argument }
            }
            (MAP, 0, offset, len, []) => Request::Map { offset, len },
            (STAND_IN, 0, device, inode, []) => Request::StandIn { device, inode },
            (ADOPT, version, device, inode, []) => Request::Adopt { version, device, inode },
            (WHAT, version, device, inode, []) => Request::What { version, device, inode },
            _ => return None,
        })
    }
}

/// What the answer to a check says of the file.
pub(in crate::device) fn encode_kind(kind: DeviceKind) -> [u8; 8] {
    let (kind, minor) = match kind {
        DeviceKind::Kfd => (1_u32, 0),
        DeviceKind::Render { minor } => (2, minor),
        DeviceKind::DmaBuf => (3, 0),
    };
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[4..].copy_from_slice(&minor.to_le_bytes());
    bytes
}

/// The inverse of [`encode_kind`].
pub(in crate::device) fn decode_kind(bytes: &[u8]) -> Option<DeviceKind> {
    match (word(bytes, 0)?, word(bytes, 4)?, bytes.len()) {
        (1, 0, 8) => Some(DeviceKind::Kfd),
        (2, minor, 8) => Some(DeviceKind::Render { minor }),
        (3, 0, 8) => Some(DeviceKind::DmaBuf),
        _ => None,
    }
}

/// Where the number of a descriptor goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Place {
    /// A byte of the argument.
    Argument(u64),
    /// An address of the caller.
    Memory(u64),
}

/// What belongs to a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) struct Slot {
    pub place: Place,
    pub close_on_exec: bool,
}

impl Slot {
    fn encode(&self) -> [u8; SLOT] {
        let (place, at) = match self.place {
            Place::Argument(at) => (0_u32, at),
            Place::Memory(at) => (1, at),
        };
        let mut bytes = [0; SLOT];
        bytes[..4].copy_from_slice(&place.to_le_bytes());
        bytes[4..8].copy_from_slice(&u32::from(self.close_on_exec).to_le_bytes());
        bytes[8..].copy_from_slice(&at.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let at = long(bytes, 8)?;
        let place = match word(bytes, 0)? {
            0 => Place::Argument(at),
            1 => Place::Memory(at),
            _ => return None,
        };
        let close_on_exec = match word(bytes, 4)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(Slot { place, close_on_exec })
    }
}

/// What the daemon answers.
#[derive(Debug)]
pub(in crate::device) enum Answer<'a> {
    Descriptors(Slots<'a>),
    End { errno: i32, offset: u64, bytes: &'a [u8] },
}

/// The slots of a record of descriptors.
#[derive(Debug, Clone)]
pub(in crate::device) struct Slots<'a>(std::slice::ChunksExact<'a, u8>);

impl Iterator for Slots<'_> {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        Slot::decode(self.0.next()?)
    }
}

impl<'a> Answer<'a> {
    /// The record that says where descriptors go.
    pub(in crate::device) fn encode_descriptors(slots: impl Iterator<Item = Slot>) -> Vec<u8> {
        let mut record = answer_header(DESCRIPTORS, 0, 0);
        slots.for_each(|slot| record.extend(slot.encode()));
        record
    }

    /// The record that ends an answer.
    pub(in crate::device) fn encode_end(errno: i32, offset: u64, bytes: &[u8]) -> Vec<u8> {
        let mut record = answer_header(END, errno, offset);
        record.extend(bytes);
        record
    }

    pub(in crate::device) fn decode(record: &'a [u8]) -> Option<Self> {
        let (header, bytes) = record.split_at_checked(ANSWER_HEADER)?;
        let (kind, errno) = (word(header, 0)?, word(header, 4)?.cast_signed());
        let offset = long(header, 8)?;
        match kind {
            DESCRIPTORS if bytes.len() <= MOST_DESCRIPTORS * SLOT => {
                let slots = Slots(bytes.chunks_exact(SLOT));
                let whole = slots.0.remainder().is_empty();
                let all = slots.clone().count() == slots.0.len();
                (whole && all).then_some(Answer::Descriptors(slots))
            }
            END if bytes.len() <= MOST_ARGUMENT => Some(Answer::End { errno, offset, bytes }),
            _ => None,
        }
    }
}

fn answer_header(kind: u32, errno: i32, offset: u64) -> Vec<u8> {
    let mut record = Vec::with_capacity(ANSWER_HEADER);
    record.extend(kind.to_le_bytes());
    record.extend(errno.to_le_bytes());
    record.extend(offset.to_le_bytes());
    record
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

/// Room for the longest record.
pub(in crate::device) fn buffer() -> Vec<u8> {
    vec![0; REQUEST_HEADER + MOST_ARGUMENT]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_requests_byte_by_byte() {
        let path = Path::new("/dev/kfd");
        let open = Request::Open { version: 1, device: 2, inode: 3, path }.encode();
        assert_eq!(
            open[..24],
            [1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(&open[24..], b"/dev/kfd");
        assert_eq!(Request::Check.encode()[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
        let ioctl = Request::Ioctl { number: 0xc008_6441, argument: &[9; 8] }.encode();
        assert_eq!(
            (&ioctl[..8], &ioctl[24..]),
            (&[3, 0, 0, 0, 0x41, 0x64, 8, 0xc0][..], &[9; 8][..])
        );
        let map = Request::Map { offset: 1 << 62, len: 4096 }.encode();
        let stand_in = Request::StandIn { device: 5, inode: 6 }.encode();
        let adopt = Request::Adopt { version: 1, device: 5, inode: 6 }.encode();
        assert_eq!((stand_in[0], adopt[0], adopt[4], adopt[16]), (5, 6, 1, 6));
        for record in [open, ioctl, map, stand_in, adopt] {
            assert_eq!(Request::decode(&record).unwrap().encode(), record);
        }
    }

    #[test]
    fn the_answers_byte_by_byte() {
        let end = Answer::encode_end(22, 7, &[1, 2]);
        assert_eq!(end, [2, 0, 0, 0, 22, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        let slots = [
            Slot { place: Place::Argument(8), close_on_exec: true },
            Slot { place: Place::Memory(0xffff_0000_0000), close_on_exec: false },
        ];
        let record = Answer::encode_descriptors(slots.into_iter());
        assert_eq!(record.len(), 16 + 32);
        assert_eq!(record[16..32], [0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        let Some(Answer::Descriptors(decoded)) = Answer::decode(&record) else { panic!() };
        assert_eq!(decoded.collect::<Vec<_>>(), slots);
    }

    #[test]
    fn records_that_do_not_follow_the_tables() {
        let path = "x".repeat(4097);
        let long = Request::Open { version: 1, device: 0, inode: 0, path: Path::new(&path) };
        assert_eq!(Request::decode(&long.encode()), None);
        assert_eq!(Request::decode(&[0; 24]), None);
        assert_eq!(Request::decode(&[2; 23]), None);
        let mut check = Request::Check.encode();
        check[23] = 1;
        assert_eq!(Request::decode(&check), None);
        let slot = |place, flags| {
            let mut record = Answer::encode_descriptors(std::iter::empty());
            record.extend([place, 0, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            Answer::decode(&record).is_some()
        };
        assert!(slot(1, 1) && !slot(2, 0) && !slot(0, 2));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..128), kind in 0..6u8) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() { *first = kind; }
            bytes.iter_mut().skip(1).take(3).for_each(|byte| *byte = 0);
            if let Some(request) = Request::decode(&bytes) {
                prop_assert_eq!(request.encode(), &bytes[..]);
            }
            if let Some(Answer::Descriptors(slots)) = Answer::decode(&bytes) {
                prop_assert_eq!(16 + 16 * slots.count(), bytes.len());
            }
        }
    }
}
