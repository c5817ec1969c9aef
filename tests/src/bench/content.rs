//! What is dumped: a few hundred MiB in memory, sent again and again.

use std::{fmt, io};

use crate::{fake_criu::Pages, images::random_bytes};

/// How much is prepared.
const PREPARED: usize = 256 << 20;

/// Kinds of memory contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Content {
    /// Bytes that no codec shrinks.
    Random,
    /// Only zeros.
    Zeros,
    /// 64 KiB of random bytes and 64 KiB of zeros in turn.
    HalfZeros,
    /// Weights of a neural network, as bfloat16.
    Bf16,
}

impl fmt::Display for Content {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Content::Random => "random",
            Content::Zeros => "zeros",
            Content::HalfZeros => "half-zeros",
            Content::Bf16 => "bf16",
        })
    }
}

impl Content {
    /// Makes it.
    pub fn pages(self) -> io::Result<Pages> {
        let mut bytes = match self {
            Content::Zeros => vec![0; PREPARED],
            _ => random_bytes(1, PREPARED),
        };
        match self {
            Content::Random | Content::Zeros => {}
            Content::HalfZeros => {
                bytes.chunks_mut(64 << 10).step_by(2).for_each(|piece| piece.fill(0));
            }
            Content::Bf16 => {
                for word in bytes.as_chunks_mut::<2>().0 {
                    *word = bf16_weight(u16::from_le_bytes(*word));
                }
            }
        }
        Pages::new(&bytes)
    }
}

/// A weight from 16 random bits: the sum of four small dice is close enough to a normal
/// distribution, and its width is that of a layer with some thousand inputs. The lowest mantissa
/// bits stay random, as they are in trained weights.
fn bf16_weight(random: u16) -> [u8; 2] {
    let [low, high] = random.to_le_bytes();
    let dice = [low & 15, low >> 4, high & 15, high >> 4];
    let sum: u16 = dice.iter().map(|&die| u16::from(die)).sum();
    let fine = f32::from(random.wrapping_mul(40_503)) / 65_536.0;
    let value = (f32::from(sum) - 30.0 + fine) / 9.2 * 0.02;
    let [_, _, low, high] = value.to_le_bytes();
    [low, high]
}
