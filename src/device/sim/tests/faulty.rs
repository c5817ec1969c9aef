//! Faults by plan.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::{assert_clean, client::*, complaints_of, host};
use crate::{
    abi::amdgpu::{GEM_WAIT_IDLE, GemWaitIdleIn, domain},
    device::sim::{Credentials, Fault},
};

#[test]
fn the_nth_call_answers_what_was_planned_and_has_done_nothing() {
    let host = host(1);
    let copier = Copier::new(&host.process(Credentials::USER), 8192);
    host.plan(Fault::call("CS").nth(2).answers(Errno::ENOMEM));
    let words = copier.to_host(0, 16);
    let answers: Vec<_> = (0..3).map(|_| copier.run(&words)).collect();
    assert_eq!(answers, [Ok(()), Err(Errno::ENOMEM), Ok(())]);
    assert_eq!((host.calls("CS"), host.submissions(0).iter().sum::<u64>()), (3, 2));
    // What is repeated by the typed call succeeds in the end.
    let again = host.plan(Fault::call("WAIT_CS").times(30).answers(Errno::EINTR));
    copier.run(&words).unwrap();
    assert_eq!(again.hits(), 30);
    copier.finish();
    assert_clean(&host);
}

#[test]
fn opening_and_mapping_can_fail_on_one_gpu() {
    let host = host(2);
    let process = host.process(Credentials::USER);
    host.plan(Fault::call("open").on_gpu(1).always().answers(Errno::EMFILE));
    host.plan(Fault::call("mmap").answers(Errno::ENOMEM));
    assert_eq!(open(&process, "/dev/dri/renderD129").err(), Some(Errno::EMFILE));
    let client = Client::open(&process);
    let handle = client.create(domain::GTT, 4096);
    let offset = client.mmap_offset(handle).unwrap();
    assert!(client.node.map(offset, 4096).is_err());
    assert!(client.node.map(offset, 4096).is_ok());
    client.close(handle).unwrap();
    drop(client);
    assert_clean(&host);
}

#[test]
fn a_hanging_engine_holds_its_submission_until_it_is_released() {
    let host = host(1);
    let mut copier = Copier::new(&host.process(Credentials::USER), 8192);
    copier.user.bytes().fill(5);
    let hang = host.plan(Fault::engine_hangs(0));
    let number = copier.submit(0, 0, &copier.to_device(0, 8192)).unwrap();
    assert_eq!(copier.client.wait(copier.ctx, 0, number, 20_000_000), Ok(true));
    let mut idle = GemWaitIdleIn { handle: copier.vram, flags: 0, timeout: 0 };
    copier.client.call(&GEM_WAIT_IDLE, &mut idle).unwrap();
    assert!(idle.busy());
    hang.release();
    assert_eq!(copier.client.wait(copier.ctx, 0, number, LONG), Ok(false));
    let mut byte = [0];
    let memory = copier.client.mmap(copier.vram, 8192);
    memory.read(8191, &mut byte);
    assert_eq!(byte, [5]);
    drop(memory);
    copier.finish();
    assert_clean(&host);
}

#[test]
fn a_file_with_a_hanging_submission_can_be_closed() {
    let host = host(1);
    let mut copier = Copier::new(&host.process(Credentials::USER), 8192);
    let hang = host.plan(Fault::engine_hangs(0).always());
    for slot in 0..3 {
        copier.submit(slot, 0, &copier.to_host(0, 8192)).unwrap();
    }
    while hang.hits() == 0 {
        std::thread::yield_now();
    }
    // Once the file is closed nothing is written any more, even if the engine recovers.
    let memory = std::mem::replace(&mut copier.user, Pages::new(4096));
    copier.finish();
    drop(memory);
    hang.release();
    assert_eq!(host.copied().to_host, 0);
    // (Three writers of one range at the same time are a complaint, of course.)
    assert_eq!(host.take_complaints().len(), 2);
    assert_clean(&host);
}

#[test]
fn a_fence_that_never_signals_though_the_copy_is_done() {
    let host = host(1);
    let mut copier = Copier::new(&host.process(Credentials::USER), 8192);
    copier.user.bytes().fill(9);
    let lost = host.plan(Fault::fence_never_signals(0));
    let number = copier.submit(0, 0, &copier.to_device(0, 8192)).unwrap();
    while lost.hits() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(host.copied().to_device, 8192);
    assert_eq!(copier.client.wait(copier.ctx, 0, number, 5_000_000), Ok(true));
    lost.release();
    assert_eq!(copier.client.wait(copier.ctx, 0, number, LONG), Ok(false));
    copier.finish();
    assert_clean(&host);
}

#[test]
fn full_vram_is_made_up_for_with_memory_of_the_host() {
    let host = host(2);
    let process = host.process(Credentials::USER);
    let full = host.plan(Fault::vram_full(0));
    let place = |gpu| {
        let client = Client::of_gpu(&process, gpu);
        let handle = client.create(domain::VRAM, 4096);
        let mut wait = GemWaitIdleIn { handle, flags: 0, timeout: 0 };
        client.call(&GEM_WAIT_IDLE, &mut wait).unwrap();
        client.close(handle).unwrap();
        crate::abi::Plain::as_bytes(&wait)[4]
    };
    assert_eq!((place(0), place(1)), (2, 4));
    full.release();
    assert_eq!(place(0), 4);
    assert_clean(&host);
}

#[test]
fn a_gpu_that_vanishes_answers_enodev_and_cancels_its_work() {
    let host = host(2);
    let process = host.process(Credentials::USER);
    let copier = Copier::new(&process, 8192);
    let hang = host.plan(Fault::engine_hangs(0));
    let number = copier.submit(0, 0, &copier.to_host(0, 16)).unwrap();
    while hang.hits() == 0 {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| copier.client.wait(copier.ctx, 0, number, LONG));
        while host.calls("WAIT_CS") == 0 {
            std::thread::yield_now();
        }
        let gone = host.plan(Fault::vanished(0));
        // It may have been about to begin its wait.
        let answer = waiting.join().unwrap();
        assert!(matches!(answer, Err(Errno::ECANCELED | Errno::ENODEV)), "{answer:?}");
        assert_eq!(copier.run(&copier.to_host(0, 16)), Err(Errno::ENODEV));
        assert_eq!(copier.client.close(copier.vram), Err(Errno::ENODEV));
        assert_eq!(open(&process, "/dev/dri/renderD128").err(), Some(Errno::ENODEV));
        assert!(open(&process, "/dev/dri/renderD129").is_ok());
        gone.release();
    });
    copier.finish();
    assert_clean(&host);
}

#[test]
fn a_slow_call_takes_its_time() {
    let host = host(1);
    let client = Client::open(&host.process(Credentials::USER));
    host.plan(Fault::call("CTX").takes(Duration::from_millis(20)));
    let start = Instant::now();
    let ctx = client.new_context();
    assert!(start.elapsed() >= Duration::from_millis(20));
    client.free_context(ctx).unwrap();
}

#[test]
fn a_plan_for_a_call_that_there_is_not() {
    let host = host(1);
    host.plan(Fault::call("GEM_CREAT"));
    assert!(complaints_of(&host)[0].contains("GEM_CREAT"), "{:?}", complaints_of(&host));
}
