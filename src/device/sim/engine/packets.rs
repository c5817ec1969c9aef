//! SDMA packets, as an engine reads them.

use crate::abi::{amdgpu::FAMILY_AI, sdma};

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    /// Nothing.
    Idle,
    /// An interrupt, which says what for.
    Trap {
        context: u32,
    },
    Copy {
        from: u64,
        to: u64,
        len: u64,
    },
    /// Bytes or words, as long as the pattern.
    Fill {
        to: u64,
        len: u64,
        value: [u8; 4],
        unit: usize,
    },
    /// Words that are in the packet.
    Write {
        to: u64,
        words: &'a [[u8; 4]],
    },
    /// Waits for a word.
    Poll {
        at: u64,
        mask: u32,
        value: u32,
        compare: Compare,
    },
    /// Adds to a number of so many bytes.
    Add {
        to: u64,
        value: u64,
        unit: usize,
    },
    /// Writes the time.
    Timestamp {
        to: u64,
    },
}

/// What a word in memory must be, to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    Always,
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    GreaterOrEqual,
    Greater,
}

impl Compare {
    /// By number.
    const ALL: [Compare; 7] = [
        Compare::Always,
        Compare::Less,
        Compare::LessOrEqual,
        Compare::Equal,
        Compare::NotEqual,
        Compare::GreaterOrEqual,
        Compare::Greater,
    ];
}

/// The engine does not understand a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unknown {
    /// Which word of the buffer it begins with.
    pub word: usize,
    pub why: &'static str,
}

const PAST_END: &str = "it goes on past the end of the buffer";
const WORDS_MISSING: &str = "its words are not all there";

impl Unknown {
    /// Whether more words could make a packet of it.
    pub(super) fn is_short(&self) -> bool {
        [PAST_END, WORDS_MISSING].contains(&self.why)
    }
}

/// An engine of a family, as far as the packets differ.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dialect {
    pub family: u32,
    /// The most bytes of one copy.
    pub most: u64,
}

/// Reads the packet that begins at `at`, and where the next one begins.
pub(super) fn next(
    words: &[[u8; 4]],
    at: usize,
    dialect: Dialect,
) -> Result<(Packet<'_>, usize), Unknown> {
    let unknown = |why| Unknown { word: at, why };
    let word = |index: usize| {
        let word = words.get(at + index).ok_or(unknown(PAST_END))?;
        Ok(u32::from_le_bytes(*word))
    };
    let long = |index: usize| Ok(u64::from(word(index)?) | u64::from(word(index + 1)?) << 32);
    // Newer engines count one less.
    let less = u64::from(dialect.family >= FAMILY_AI);
    let header = word(0)?;
    let (op, sub_op) = (header & 0xff, header >> 8 & 0xff);
    if sub_op != 0 && (op, sub_op) != (sdma::OP_TIMESTAMP, sdma::TIMESTAMP_GLOBAL) {
        return Err(unknown("the sub-operation is none that is simulated"));
    }
    let (packet, len) = match op {
        sdma::OP_NOP => (Packet::Idle, 1 + words_of(header >> 16 & 0x3fff)),
        sdma::OP_COPY => {
            let len = u64::from(word(1)?) + less;
            if len > dialect.most {
                return Err(unknown("it copies more bytes than the engine can count"));
            }
            (Packet::Copy { from: long(3)?, to: long(5)?, len }, sdma::COPY_WORDS)
        }
        sdma::OP_CONST_FILL => {
            let unit = if header & 3 << 30 == sdma::FILL_DWORD { 4 } else { 1 };
            let len = u64::from(word(4)?) + less;
            if len > 1 << 22 {
                return Err(unknown("it fills more bytes than the engine can count"));
            }
            // The low bits of both are not looked at.
            if unit == 4 && !(long(1)? | len).is_multiple_of(4) {
                return Err(unknown("it fills words that do not begin, or end, at words"));
            }
            let fill = Packet::Fill { to: long(1)?, len, value: word(3)?.to_le_bytes(), unit };
            (fill, sdma::FILL_WORDS)
        }
        sdma::OP_WRITE => {
            let count = words_of(word(3)?).saturating_add(words_of(u32::from(less == 1)));
            let end = at.saturating_add(4).saturating_add(count);
            let data = words.get(at + 4..end).ok_or(unknown(WORDS_MISSING))?;
            (Packet::Write { to: long(1)?, words: data }, 4 + count)
        }
        sdma::OP_FENCE => {
            word(3)?;
            (Packet::Write { to: long(1)?, words: &words[at + 3..at + 4] }, 4)
        }
        sdma::OP_TRAP => (Packet::Trap { context: word(1)? & 0x0fff_ffff }, 2),
        // Of registers, what is waited for is that caches are written back: there are none.
        sdma::OP_POLL_REGMEM if header & sdma::POLL_MEMORY == 0 => (Packet::Idle, 6),
        sdma::OP_POLL_REGMEM => {
            let compare = header >> sdma::POLL_COMPARE_SHIFT & 7;
            let compare = Compare::ALL.get(words_of(compare));
            let compare = *compare.ok_or(unknown("it compares in no way that there is"))?;
            (Packet::Poll { at: long(1)?, value: word(3)?, mask: word(4)?, compare }, 6)
        }
        sdma::OP_ATOMIC => {
            let unit = match header >> sdma::ATOMIC_SHIFT {
                sdma::ATOMIC_ADD_32 => 4,
                sdma::ATOMIC_ADD_64 => 8,
                _ => return Err(unknown("the atomic operation is none that is simulated")),
            };
            (Packet::Add { to: long(1)?, value: long(3)?, unit }, 8)
        }
        sdma::OP_TIMESTAMP if sub_op != 0 => (Packet::Timestamp { to: long(1)? }, 3),
        _ => return Err(unknown("the operation is none that is simulated")),
    };
    if at + len > words.len() {
        return Err(unknown(PAST_END));
    }
    Ok((packet, at + len))
}

fn words_of(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GFX9: Dialect = Dialect { family: 141, most: 1 << 22 };
    const OLD: Dialect = Dialect { family: 130, most: 0x1f_ffff };

    fn bytes(words: &[u32]) -> Vec<[u8; 4]> {
        words.iter().map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_copy_counts_one_less_on_newer_engines() {
        for dialect in [GFX9, OLD] {
            let words = bytes(&sdma::copy(dialect.family, 0x1_0000_0000, 0x2000, 8192));
            let copy = Packet::Copy { from: 0x1_0000_0000, to: 0x2000, len: 8192 };
            assert_eq!(next(&words, 0, dialect), Ok((copy, 7)));
        }
    }

    #[test]
    fn fills_writes_fences_and_padding() {
        let mut words = bytes(&sdma::fill_zero(141, 0x3000, 64));
        words.extend(bytes(&[2, 0x10, 0, 1, 7, 8, 5, 0x20, 0, 9, 6, 0, 2 << 16, 1, 1]));
        let value = [0; 4];
        let mut at = 0;
        let mut packets = Vec::new();
        while at < words.len() {
            let (packet, after) = next(&words, at, GFX9).unwrap();
            packets.push(packet);
            at = after;
        }
        assert_eq!(
            packets,
            [
                Packet::Fill { to: 0x3000, len: 64, value, unit: 4 },
                Packet::Write { to: 0x10, words: &bytes(&[7, 8]) },
                Packet::Write { to: 0x20, words: &bytes(&[9]) },
                Packet::Trap { context: 0 },
                Packet::Idle,
            ]
        );
    }

    #[test]
    fn what_is_no_packet_says_where_and_why() {
        let fill = sdma::OP_CONST_FILL | sdma::FILL_DWORD;
        let cases: [(&[u32], &str); 8] = [
            (&[0, fill, 2, 0, 0, 7], "it fills words that do not begin, or end, at words"),
            (&[0, fill, 4, 0, 0, 6], "it fills words that do not begin, or end, at words"),
            (&[0, 0xff], "the operation is none that is simulated"),
            (&[0, 0x0101], "the sub-operation is none that is simulated"),
            (&[0, 1, 4095, 0, 0, 0, 0], "it goes on past the end of the buffer"),
            (&[0, 1, 1 << 22, 0, 0, 0, 0, 0], "it copies more bytes than the engine can count"),
            (&[0, 2, 0, 0, 9, 9], "its words are not all there"),
            (&[0, 1 << 16], "it goes on past the end of the buffer"),
        ];
        for (words, why) in cases {
            assert_eq!(next(&bytes(words), 1, GFX9), Err(Unknown { word: 1, why }), "{words:x?}");
        }
    }
}
