//! Copies by SDMA.

use nix::errno::Errno;

use super::{assert_clean, client::*, host, machine};
use crate::{
    abi::{
        Plain,
        amdgpu::{CsChunkFence, FAMILY_AI, chunk_id, domain, va_op},
        sdma,
    },
    device::sim::{Copied, Credentials, SimHost},
};

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

#[test]
fn another_process_copies_what_a_dma_buf_stands_for() {
    let host = host(1);
    let (owner, criu) = (host.process(Credentials::USER), host.process(Credentials::ROOT));
    let owner = Client::open(&owner);
    let vram = owner.create(domain::VRAM, 1 << 16);
    owner.mmap(vram, 1 << 16).write(5000, b"contents");
    let fd = owner.export(vram).unwrap();
    owner.close(vram).unwrap();
    drop(owner);
    let client = Client::open(&criu);
    let handle = client.import(&fd).unwrap();
    drop(fd);
    let mut copier = Copier::with(client, Some(handle), 1 << 16);
    copier.run(&copier.to_host(0, 1 << 16)).unwrap();
    assert_eq!(&copier.user.bytes()[4998..5010], b"\0\0contents\0\0");
    copier.finish();
    assert_clean(&host);
}

#[test]
fn single_bytes_at_any_address_across_mappings_and_between_objects_of_vram() {
    let host = host(1);
    let mut copier = Copier::new(&host.process(Credentials::USER), 1 << 16);
    let mut sent = vec![0; 1 << 16];
    pattern(&mut sent, 7);
    copier.user.bytes().copy_from_slice(&sent);
    // A second object, the two halves of which are mapped the other way round.
    let (other, va) = (copier.client.create(domain::VRAM, 1 << 13), 0x3_0000_0000);
    copier.client.va(va_op::MAP, other, va, 4096, 4096).unwrap();
    copier.client.va(va_op::MAP, other, va + 4096, 0, 4096).unwrap();
    let packets = [
        sdma::copy(FAMILY_AI, USER_VA + 3, VRAM_VA + 8190, 4099),
        sdma::copy(FAMILY_AI, VRAM_VA + 8190, va + 4093, 4099),
        sdma::copy(FAMILY_AI, va + 4093, USER_VA + 20001, 4099),
    ]
    .concat();
    let handles = [&copier.handles()[..], &[other]].concat();
    let number = copier.submit_with(0, 0, &packets, &handles, &[]).unwrap();
    assert_eq!(copier.client.wait(copier.ctx, 0, number, LONG), Ok(false));
    assert!(copier.user.bytes()[20001..24100] == sent[3..4102]);
    assert!(copier.user.bytes()[24100..] == sent[24100..]);
    let memory = copier.client.mmap(other, 1 << 13);
    let mut three = [0; 3];
    memory.read(8189, &mut three);
    assert!(three == sent[3..6]);
    drop(memory);
    copier.client.unmap(other, va, 4096).unwrap();
    copier.client.unmap(other, va + 4096, 4096).unwrap();
    copier.client.close(other).unwrap();
    copier.finish();
    assert_clean(&host);
    assert_eq!(host.copied().within_device, 4099);
}

#[test]
fn fills_writes_and_fences_in_memory() {
    let host = host(1);
    let mut copier = Copier::new(&host.process(Credentials::USER), 1 << 14);
    copier.user.bytes().fill(0xff);
    let page = copier.client.create(domain::GTT, 4096);
    let memory = copier.client.mmap(page, 4096);
    let low = |va: u64| u32::try_from(va & 0xffff_ffff).unwrap();
    let high = |va: u64| u32::try_from(va >> 32).unwrap();
    let at = USER_VA + 64;
    let packets = [
        &sdma::fill_zero(FAMILY_AI, USER_VA + 4096, 8192)[..],
        &[sdma::OP_WRITE, low(at), high(at), 1, 0x1122_3344, 0x5566_7788],
        &[sdma::OP_FENCE, low(at + 8), high(at + 8), 9, sdma::OP_TRAP, 0],
    ]
    .concat();
    let fence = CsChunkFence { handle: page, offset: 4088 };
    let handles = [&copier.handles()[..], &[page]].concat();
    let more = [(chunk_id::FENCE, fence.as_bytes())];
    for expected in 1..3 {
        let number = copier.submit_with(0, 1, &packets, &handles, &more).unwrap();
        assert_eq!(number, expected);
        assert_eq!(copier.client.wait(copier.ctx, 1, number, LONG), Ok(false));
        let mut written = [0; 8];
        memory.read(4088, &mut written);
        assert_eq!(u64::from_le_bytes(written), number);
    }
    let bytes = copier.user.bytes();
    assert_eq!(
        &bytes[60..80],
        b"\xff\xff\xff\xff\x44\x33\x22\x11\x88\x77\x66\x55\x09\0\0\0\xff\xff\xff\xff"
    );
    assert!(bytes[4096..12288].iter().all(|&byte| byte == 0));
    assert_eq!((bytes[4095], bytes[12288]), (0xff, 0xff));
    drop(memory);
    copier.client.close(page).unwrap();
    copier.finish();
    assert_clean(&host);
}

#[test]
fn an_object_larger_than_4_gib_that_is_mostly_never_written() {
    let size = (4 << 30) + 4096;
    let host = SimHost::new(machine(1).vram_bytes(8 << 30)).unwrap();
    let client = Client::open(&host.process(Credentials::USER));
    let vram = client.create(domain::VRAM, size);
    let mut copier = Copier::new(&host.process(Credentials::USER), 1 << 16);
    let fd = client.export(vram).unwrap();
    let handle = copier.client.import(&fd).unwrap();
    drop(fd);
    let va = 0x10_0000_0000;
    copier.client.map(handle, va, size).unwrap();
    copier.user.bytes()[..4].copy_from_slice(b"last");
    let words = [
        sdma::copy(FAMILY_AI, USER_VA, va + size - 4, 4),
        sdma::copy(FAMILY_AI, va + size - 4096, USER_VA + 4096, 4096),
        sdma::copy(FAMILY_AI, va + (2 << 30), USER_VA, 4096),
    ]
    .concat();
    let handles = [&copier.handles()[..], &[handle]].concat();
    let number = copier.submit_with(0, 0, &words, &handles, &[]).unwrap();
    assert_eq!(copier.client.wait(copier.ctx, 0, number, LONG), Ok(false));
    assert_eq!(&copier.user.bytes()[8188..8193], b"last\0");
    assert_eq!(&copier.user.bytes()[..4], [0; 4]);
    copier.client.unmap(handle, va, size).unwrap();
    copier.client.close(handle).unwrap();
    copier.finish();
    client.close(vram).unwrap();
    drop(client);
    assert_clean(&host);
}

#[test]
fn older_engines_count_bytes() {
    let mut machine = machine(1);
    machine.gpus[0].profile.family = 130;
    machine.gpus[0].profile.sdma_version = (3, 0);
    let host = SimHost::new(machine).unwrap();
    let mut copier = Copier::new(&host.process(Credentials::USER), 4096);
    copier.user.bytes().fill(7);
    copier.run(&sdma::copy(130, USER_VA, VRAM_VA, 100)).unwrap();
    let memory = copier.client.mmap(copier.vram, 4096);
    let mut bytes = [9; 101];
    memory.read(0, &mut bytes);
    assert_eq!((bytes[99], bytes[100]), (7, 0));
    // Counted the other way, a copy of a whole page is one byte too long.
    let wrong = sdma::copy(130, USER_VA, VRAM_VA, 4097);
    assert_eq!(copier.run(&wrong), Err(Errno::ECANCELED));
    drop(memory);
    copier.finish();
    assert_eq!(host.take_complaints().len(), 1);
}
