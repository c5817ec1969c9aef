//! Which engine does what, and when.

use std::time::{Duration, Instant};

use super::{assert_clean, client::*, copies::pattern, host, machine};
use crate::{
    abi::{
        Plain,
        amdgpu::{CsChunkDep, Fence, chunk_id, hw_ip},
    },
    device::sim::{Credentials, Fault, SimHost, Speed},
};

fn fence(ctx_id: u32, ring: u32, seq_no: u64) -> Fence {
    Fence { ctx_id, ip_type: hw_ip::DMA, ip_instance: 0, ring, seq_no }
}

#[test]
fn many_in_flight_on_both_rings_all_arrive() {
    let host = host(1);
    let mut copier = Copier::new(&host.process(Credentials::USER), 1 << 20);
    let mut sent = vec![0; 1 << 20];
    pattern(&mut sent, 3);
    copier.user.bytes().copy_from_slice(&sent);
    let piece = 1 << 14;
    for (slot, offset) in (0..64).zip((0..).step_by(1 << 14)) {
        copier.submit(slot, slot % 2, &copier.to_device(offset, piece)).unwrap();
    }
    let all = [fence(copier.ctx, 0, 32), fence(copier.ctx, 1, 32)];
    assert_eq!(copier.client.wait_fences(&all, true, LONG), Ok((true, 0)));
    let memory = copier.client.mmap(copier.vram, 1 << 20);
    let mut there = vec![0; 1 << 20];
    memory.read(0, &mut there);
    assert!(there == sent);
    assert_eq!(host.submissions(0).iter().sum::<u64>(), 64);
    drop(memory);
    copier.finish();
    assert_clean(&host);
}

#[test]
fn the_jobs_of_a_ring_are_done_in_their_order() {
    let host = host(1);
    let mut copier = Copier::new(&host.process(Credentials::USER), 1 << 20);
    copier.user.bytes().fill(1);
    let low = |va: u64| u32::try_from(va & 0xffff_ffff).unwrap();
    let high = |va: u64| u32::try_from(va >> 32).unwrap();
    // Each overwrites what the one before wrote, in VRAM.
    for value in 0..100 {
        let words = [2, low(VRAM_VA), high(VRAM_VA), 0, value];
        copier.submit(value % 64, 0, &words).unwrap();
    }
    copier.run(&copier.to_host(0, 4)).unwrap();
    assert_eq!(copier.user.bytes()[..4], 99_u32.to_le_bytes());
    copier.finish();
    assert_clean(&host);
}

#[test]
fn an_idle_ring_goes_to_the_engine_with_the_least_to_do() {
    let mut machine = machine(1);
    machine.gpus[0].profile.sdma_engines = 4;
    let host = SimHost::new(machine).unwrap();
    let copier = Copier::new(&host.process(Credentials::USER), 1 << 20);
    let hang = host.plan(Fault::engine_hangs(0).always());
    let contexts: Vec<u32> = (0..4).map(|_| copier.client.new_context()).collect();
    for (slot, &ctx) in (0..).zip(&contexts) {
        let buffer = copier.write(slot, &copier.to_device(u64::from(slot) * 4096, 4096));
        copier.client.submit(ctx, 0, buffer, &copier.handles(), &[]).unwrap();
    }
    while hang.hits() < 4 {
        std::thread::yield_now();
    }
    assert_eq!(host.submissions(0), [1, 1, 1, 1]);
    hang.release();
    for ctx in contexts {
        assert_eq!(copier.client.wait(ctx, 0, 1, LONG), Ok(false));
        copier.client.free_context(ctx).unwrap();
    }
    copier.finish();
    assert_clean(&host);
}

#[test]
fn a_job_waits_for_what_it_depends_on_and_others_pass_it() {
    let mut machine = machine(1);
    machine.gpus[0].profile.sdma_engines = 2;
    let host = SimHost::new(machine).unwrap();
    let copier = Copier::new(&host.process(Credentials::USER), 1 << 20);
    let [slow, waits, free] = [0; 3].map(|_| copier.client.new_context());
    let hang = host.plan(Fault::engine_hangs(0));
    let submit = |ctx, slot: u32, more: &[(u32, &[u8])]| {
        let buffer = copier.write(slot, &copier.to_device(u64::from(slot) * 4096, 4096));
        copier.client.submit(ctx, 0, buffer, &copier.handles(), more).unwrap()
    };
    submit(slow, 0, &[]);
    submit(slow, 4, &[]);
    while hang.hits() == 0 {
        std::thread::yield_now();
    }
    let dep = CsChunkDep { ip_type: hw_ip::DMA, ctx_id: slow, handle: 1, ..CsChunkDep::default() };
    submit(waits, 1, &[(chunk_id::DEPENDENCIES, dep.as_bytes())]);
    // The first engine has two jobs, so these are behind the one that waits.
    submit(free, 2, &[]);
    submit(free, 3, &[]);
    let fences = [fence(waits, 0, 1), fence(slow, 0, 1), fence(free, 0, 1)];
    assert_eq!(copier.client.wait_fences(&fences, false, LONG), Ok((true, 2)));
    assert_eq!(host.submissions(0)[0], 1);
    assert_eq!(copier.client.wait(waits, 0, 1, 0), Ok(true));
    assert_eq!(copier.client.wait_fences(&fences, true, 1_000_000).map(|found| found.0), Ok(false));
    hang.release();
    assert_eq!(copier.client.wait_fences(&fences, true, LONG), Ok((true, 0)));
    for (ctx, number) in [(free, 2), (slow, 2)] {
        assert_eq!(copier.client.wait(ctx, 0, number, LONG), Ok(false));
    }
    for ctx in [slow, waits, free] {
        copier.client.free_context(ctx).unwrap();
    }
    copier.finish();
    assert_clean(&host);
}

#[test]
fn copies_take_at_least_as_long_as_the_link_needs() {
    let speed = Speed { bytes_per_second: Some(200 << 20), latency: Duration::from_millis(2) };
    let host = SimHost::new(machine(1).speed(speed)).unwrap();
    let copier = Copier::new(&host.process(Credentials::USER), 8 << 20);
    let start = Instant::now();
    // Both engines together: 8 MiB at 200 MiB/s.
    for slot in 0..8 {
        let words = copier.to_device(u64::from(slot) << 20, 1 << 20);
        copier.submit(slot, slot % 2, &words).unwrap();
    }
    let all = [fence(copier.ctx, 0, 4), fence(copier.ctx, 1, 4)];
    assert_eq!(copier.client.wait_fences(&all, true, LONG), Ok((true, 0)));
    assert!(start.elapsed() >= Duration::from_millis(42));
    copier.finish();
    assert_clean(&host);
}
