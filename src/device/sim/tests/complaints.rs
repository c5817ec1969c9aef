//! What a kernel lets pass, and the simulation names.

use nix::errno::Errno;

use super::{assert_clean, client::*, host, machine};
use crate::{
    abi::amdgpu::{GEM_VA, GemVa, va_flag, va_op},
    device::sim::{Credentials, Fault, SimHost, Speed},
};

/// The only complaint, without the process.
#[track_caller]
fn only(host: &SimHost) -> String {
    let complaints = host.take_complaints();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    complaints[0].what.clone()
}

#[test]
fn an_object_that_is_not_in_the_list() {
    let host = host(1);
    let copier = Copier::new(&host.process(Credentials::USER), 8192);
    let words = copier.to_host(0, 16);
    let number = copier.submit_with(0, 0, &words, &[copier.user_handle, copier.ib], &[]).unwrap();
    assert_eq!(copier.client.wait(copier.ctx, 0, number, LONG), Err(Errno::ECANCELED));
    assert!(only(&host).contains("the object with handle 1 at 0x100000000 is not in the list"));
    // Even the buffer itself.
    let ctx = copier.client.new_context();
    let buffer = copier.write(0, &words);
    let number =
        copier.client.submit(ctx, 0, buffer, &[copier.vram, copier.user_handle], &[]).unwrap();
    assert_eq!(copier.client.wait(ctx, 0, number, LONG), Err(Errno::ECANCELED));
    assert!(only(&host).contains("reading the buffer of 32 bytes at 0x100000"));
    copier.client.free_context(ctx).unwrap();
    copier.finish();
    assert_clean(&host);
}

#[test]
fn a_mapping_that_may_not_be_written() {
    let host = host(1);
    let copier = Copier::new(&host.process(Credentials::USER), 8192);
    copier.client.unmap(copier.vram, VRAM_VA, 8192).unwrap();
    let mut va = GemVa {
        handle: copier.vram,
        operation: va_op::MAP,
        flags: va_flag::READABLE,
        va_address: VRAM_VA,
        map_size: 8192,
        ..GemVa::default()
    };
    copier.client.call(&GEM_VA, &mut va).unwrap();
    copier.run(&copier.to_host(0, 8192)).unwrap();
    assert_eq!(copier.run(&copier.to_device(0, 8192)), Err(Errno::ECANCELED));
    assert!(only(&host).contains("is not mapped for this access (Write)"));
    copier.finish();
    assert_clean(&host);
}

#[test]
fn packets_that_are_none() {
    let host = host(1);
    let copier = Copier::new(&host.process(Credentials::USER), 8192);
    let cases: [(&[u32], &str); 3] = [
        (&[0xee], "the packet at word 0: the operation is none"),
        (&[1, 1 << 30, 0, 0, 0, 0, 0], "more bytes than the engine can count"),
        (&[0, 0, 0, 0, 0, 0, 0, 1], "it goes on past the end of the buffer"),
    ];
    for (words, what) in cases {
        let ctx = copier.client.new_context();
        let buffer = copier.write(0, words);
        let number = copier.client.submit(ctx, 0, buffer, &copier.handles(), &[]).unwrap();
        assert_eq!(copier.client.wait(ctx, 0, number, LONG), Err(Errno::ECANCELED));
        let complaint = only(&host);
        assert!(complaint.contains(what), "{complaint}");
        copier.client.free_context(ctx).unwrap();
    }
    let mut odd = copier.write(0, &copier.to_host(0, 16));
    odd.1 -= 4;
    copier.client.submit(copier.ctx, 0, odd, &copier.handles(), &[]).unwrap();
    assert_eq!(copier.client.wait(copier.ctx, 0, 1, LONG), Ok(false));
    assert!(only(&host).contains("engines want multiples of 32"));
    copier.finish();
    assert_clean(&host);
}

#[test]
fn memory_that_is_written_while_another_submission_uses_it() {
    let host = host(1);
    let copier = Copier::new(&host.process(Credentials::USER), 1 << 16);
    let hang = host.plan(Fault::engine_hangs(0).always());
    copier.submit(0, 0, &copier.to_device(0, 8192)).unwrap();
    // After it on the same ring, and into other memory at the same time: both are fine.
    copier.submit(1, 0, &copier.to_host(4096, 4096)).unwrap();
    copier.submit(2, 1, &copier.to_host(8192, 4096)).unwrap();
    assert_eq!(host.complaints(), []);
    copier.submit(3, 1, &copier.to_host(0, 4096)).unwrap();
    let start = copier.user.address();
    let expected = format!(
        "submission 2 on ring 1 of context 1 on /dev/dri/renderD128 writes memory at \
         {start:#x}..{:#x} that another uses",
        start + 4096
    );
    assert_eq!(only(&host), expected);
    // Twice into the same memory on one ring: the first was never looked at.
    copier.submit(4, 0, &copier.to_host(4100, 1)).unwrap();
    assert!(only(&host).contains("submission 3 on ring 0"));
    hang.release();
    for (ring, number) in [(0, 3), (1, 2)] {
        assert_eq!(copier.client.wait(copier.ctx, ring, number, LONG), Ok(false));
    }
    copier.finish();
    assert_clean(&host);
}

#[test]
fn what_is_unmapped_or_closed_too_early() {
    // A link so slow that nothing is done before it is cancelled.
    let speed = Speed { bytes_per_second: Some(1024), ..Speed::default() };
    let host = SimHost::new(machine(1).speed(speed)).unwrap();
    let copier = Copier::new(&host.process(Credentials::USER), 1 << 16);
    copier.submit(0, 0, &copier.to_device(0, 1 << 16)).unwrap();
    copier.client.unmap(copier.vram, VRAM_VA, 1 << 16).unwrap();
    let job = "submission 1 on ring 0 of context 1";
    assert_eq!(only(&host), format!("handle 1 was unmapped from {VRAM_VA:#x} while {job} uses it"));
    copier.client.close(copier.user_handle).unwrap();
    assert_eq!(only(&host), format!("handle 2 was closed while {job} uses it"));
    drop(copier);
    let left: Vec<_> = host.take_complaints().into_iter().map(|complaint| complaint.what).collect();
    let submissions = format!("renderD128 was closed with 1 submissions left: {job}");
    assert_eq!(left.last(), Some(&submissions), "{left:?}");
}
