//! Sizes as people write them: `64M`, `4096`, `2GiB`.
//!
//! The grammar is digits, then nothing or one of `k K m M g G`, and after such a letter
//! optionally `B` or `iB`. Every suffix is a power of 1024. There are no signs, no fractions, no
//! spaces and no hexadecimal: a value that is not understood is an error, never a guess.

use std::{fmt, str::FromStr};

/// A number of bytes, parsed from and printed as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a size was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ByteSizeError {
    /// The text does not follow the grammar.
    #[error(
        "{0:?} is not a size: write digits, then nothing or k, m or g (for example 4096, 64M, 2GiB)"
    )]
    Malformed(String),
    /// The value does not fit 64 bits.
    #[error("{0:?} is more than 2^64 bytes")]
    TooLarge(String),
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || ByteSizeError::Malformed(text.to_owned());
        let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, suffix) = text.split_at(digits_end);
        if digits.is_empty() {
            return Err(malformed());
        }
        let shift = match suffix {
            "" => 0,
            _ => {
                let (unit, rest) = suffix.split_at_checked(1).ok_or_else(malformed)?;
                if !matches!(rest, "" | "B" | "iB") {
                    return Err(malformed());
                }
                match unit {
                    "k" | "K" => 10,
                    "m" | "M" => 20,
                    "g" | "G" => 30,
                    _ => return Err(malformed()),
                }
            }
        };
        let too_large = || ByteSizeError::TooLarge(text.to_owned());
        let number: u64 = digits.parse().map_err(|_| too_large())?;
        number.checked_mul(1 << shift).map(ByteSize).ok_or_else(too_large)
    }
}

impl fmt::Display for ByteSize {
    /// The largest unit that divides the size, so that what is printed can be parsed again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shift, unit) = match self.0 {
            0 => (0, ""),
            n if n % (1 << 30) == 0 => (30, "G"),
            n if n % (1 << 20) == 0 => (20, "M"),
            n if n % (1 << 10) == 0 => (10, "K"),
            _ => (0, ""),
        };
        write!(f, "{}{unit}", self.0 >> shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_people_type() {
        let good = [
            ("0", 0),
            ("1", 1),
            ("4095", 4095),
            ("1k", 1 << 10),
            ("1K", 1 << 10),
            ("2m", 2 << 20),
            ("2M", 2 << 20),
            ("2g", 2 << 30),
            ("2GB", 2 << 30),
            ("2GiB", 2 << 30),
            ("010M", 10 << 20),
        ];
        for (text, bytes) in good {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        let bad = [
            "", "M", "-1", "+1", " 2G", "2G ", "1.5G", "0x1000", "2Gb", "2GBB", "2T", "2é", "2Gi",
            "1_000",
        ];
        for text in bad {
            assert_eq!(
                text.parse::<ByteSize>(),
                Err(ByteSizeError::Malformed(text.into())),
                "{text}"
            );
        }
        for text in ["99999999999G", "18446744073709551616"] {
            assert_eq!(
                text.parse::<ByteSize>(),
                Err(ByteSizeError::TooLarge(text.into())),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_understood(bytes: u64) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }

        #[test]
        fn any_text_is_an_answer(text: String) {
            let _ = text.parse::<ByteSize>();
        }
    }
}
