//! Copies by SDMA.

use super::{assert_clean, client::*, host};
use crate::device::sim::{Copied, Credentials};

/// Bytes that differ everywhere.
pub(super) fn pattern(bytes: &mut [u8], seed: u32) {
    for (index, word) in (seed..).zip(bytes.chunks_mut(4)) {
        word.copy_from_slice(&index.wrapping_mul(2_654_435_761).to_le_bytes()[..word.len()]);
    }
}

#[test]
fn bytes_go_to_vram_and_come_back() {
    let host = host(1);
    let mut copier = Copier::new(&host.process(Credentials::USER), 1 << 20);
    let mut sent = vec![0; 1 << 20];
    pattern(&mut sent, 1);
    copier.user.bytes().copy_from_slice(&sent);
    copier.run(&copier.to_device(0, 1 << 20)).unwrap();
    copier.user.bytes().fill(0);
    copier.run(&copier.to_host(0, 1 << 20)).unwrap();
    assert!(copier.user.bytes() == sent);
    copier.finish();
    assert_clean(&host);
    let each = 1 << 20;
    assert_eq!(host.copied(), Copied { to_host: each, to_device: each, ..Copied::default() });
}
