//! Data to measure with: what images contain, made without a random number generator of its own.
#![forbid(unsafe_code)]

/// Bytes that do not compress.
pub fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Every other page zero.
pub fn half_zero(len: usize, seed: u64) -> Vec<u8> {
    let mut out = random(len, seed);
    out.chunks_mut(4096).step_by(2).for_each(|page| page.fill(0));
    out
}

/// Weights of a model as bfloat16: exponents that are much alike, mantissas that are not.
pub fn bf16(len: usize, seed: u64) -> Vec<u8> {
    let mut out = random(len, seed);
    for pair in out.as_chunks_mut::<2>().0 {
        // Sign from noise, exponent 118 to 125, low mantissa bits from noise.
        let [low, high] = *pair;
        let exponent = 118 + (high & 7);
        *pair = [(exponent << 7) | (low & 0x7f), (high & 0x80) | (exponent >> 1)];
    }
    out
}
