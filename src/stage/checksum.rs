//! CRC-32 (IEEE 802.3, as zlib, gzip and crc32fast compute it), with the length it covers, so that
//! the CRC of a whole file comes from those of its pieces without a second pass.

/// The CRC-32 of a run of bytes, and how long the run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Crc32 {
    /// The CRC-32 of the bytes; 0 for none.
    pub value: u32,
    /// How many bytes it covers.
    pub len: u64,
}

impl Crc32 {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Crc32 { value: crc32fast::hash(bytes), len: bytes.len() as u64 }
    }

    /// Of these bytes with `next` after them.
    #[must_use]
    pub fn followed_by(self, next: Crc32) -> Self {
        let mut hasher = crc32fast::Hasher::new_with_initial_len(self.value, self.len);
        hasher.combine(&crc32fast::Hasher::new_with_initial_len(next.value, next.len));
        Crc32 { value: hasher.finalize(), len: self.len + next.len }
    }
}

/// The CRC-32 of `len` zero bytes, in time logarithmic in `len`.
pub fn crc32_of_zeros(len: u64) -> Crc32 {
    let mut all = Crc32::default();
    let mut run = Crc32::of(&[0]);
    let mut left = len;
    while left > 0 {
        if left & 1 == 1 {
            all = all.followed_by(run);
        }
        left >>= 1;
        if left > 0 {
            run = run.followed_by(run);
        }
    }
    all
}

/// The CRC-32 of runs of zeros, remembering the last: almost all runs of an image have one length.
#[derive(Debug, Default)]
pub struct ZeroChecksums(Option<(u32, u32)>);

impl ZeroChecksums {
    /// Of `len` zero bytes.
    pub fn of(&mut self, len: u32) -> u32 {
        match self.0 {
            Some((known, crc)) if known == len => crc,
            _ => {
                let crc = crc32_of_zeros(len.into()).value;
                self.0 = Some((len, crc));
                crc
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_value() {
        // The check value of CRC-32/ISO-HDLC in the catalogue of parametrised CRC algorithms.
        assert_eq!(Crc32::of(b"123456789").value, 0xcbf4_3926);
        assert_eq!(Crc32::of(b""), Crc32::default());
    }

    proptest! {
        #[test]
        fn pieces_make_the_whole(bytes: Vec<u8>, cut: prop::sample::Index) {
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(Crc32::of(head).followed_by(Crc32::of(tail)), Crc32::of(&bytes));
        }

        #[test]
        fn zeros_by_length(len in 0usize..100_000) {
            prop_assert_eq!(crc32_of_zeros(len as u64), Crc32::of(&vec![0; len]));
        }
    }
}
