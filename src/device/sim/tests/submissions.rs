//! Contexts, lists, CS and waiting: every answer that says why not.

use std::time::Duration;

use nix::errno::Errno;

use super::{assert_clean, client::*, complaints_of, host};
use crate::{
    abi::{
        Plain, Request,
        amdgpu::{
            BO_LIST, BoListIn, CS, CTX, CsChunkDep, CsChunkFence, CsChunkIb, CsIn, CtxIn, Fence,
            GEM_WAIT_IDLE, GemWaitIdleIn, LAST_SUBMISSION, WAIT_CS, WAIT_FENCES, WaitCsIn,
            WaitFencesIn, bo_list_op, chunk_id, ctx_op, domain, hw_ip,
        },
    },
    device::sim::{Credentials, Fault, interrupt::Interrupt},
};

#[test]
fn contexts_and_their_priorities() {
    let host = host(1);
    let (user, root) = (host.process(Credentials::USER), host.process(Credentials::ROOT));
    let (user, root) = (Client::open(&user), Client::open(&root));
    let make = |client: &Client, priority| {
        let mut ctx = CtxIn { op: ctx_op::ALLOC_CTX, priority, ..CtxIn::default() };
        client.call(&CTX, &mut ctx).map(|()| ctx.allocated())
    };
    assert_eq!((make(&user, 0), make(&user, -512), make(&user, 7)), (Ok(1), Ok(2), Ok(3)));
    assert_eq!((make(&user, 512), make(&root, 512)), (Err(Errno::EACCES), Ok(1)));
    for ctx_id in 1..4 {
        user.free_context(ctx_id).unwrap();
    }
    root.free_context(1).unwrap();
    assert_eq!(user.free_context(1), Err(Errno::EINVAL));
    let mut unknown = CtxIn { op: 9, ..CtxIn::default() };
    assert_eq!(user.call(&CTX, &mut unknown), Err(Errno::EINVAL));
    let mut none = CtxIn { op: ctx_op::QUERY_STATE2, ctx_id: 1, ..CtxIn::default() };
    assert_eq!(user.call(&CTX, &mut none), Err(Errno::EINVAL));
    drop((user, root));
    assert_clean(&host);
}

#[test]
fn chunks_that_make_no_submission() {
    let host = host(1);
    let copier = Copier::new(&host.process(Credentials::USER), 8192);
    let (va_start, ib_bytes) = copier.write(0, &copier.to_host(0, 16));
    let ib = CsChunkIb { va_start, ib_bytes, ip_type: hw_ip::DMA, ..CsChunkIb::default() };
    let (_entries, good) = list(&copier.handles());
    let (_bad_entries, bad) = list(&[99]);
    let page = copier.client.create(domain::GTT, 4096);
    let dep =
        CsChunkDep { ip_type: hw_ip::DMA, ctx_id: copier.ctx, handle: 1, ..CsChunkDep::default() };
    let chunk = |id: u32, data: &[u8]| (id, data.to_vec());
    let buffer = |ib: CsChunkIb| chunk(chunk_id::IB, ib.as_bytes());
    let handles = || chunk(chunk_id::BO_HANDLES, good.as_bytes());
    let fence = |handle, offset| {
        let fence = CsChunkFence { handle, offset };
        vec![buffer(ib), handles(), chunk(chunk_id::FENCE, fence.as_bytes())]
    };
    let and = |id, data: &[u8]| vec![buffer(ib), handles(), chunk(id, data)];
    let ctx = copier.ctx;
    let cases = [
        (ctx, 0, vec![], Errno::EINVAL),
        (ctx, 0, vec![handles()], Errno::EINVAL),
        (9, 0, vec![buffer(ib), handles()], Errno::EINVAL),
        (ctx, 0, and(99, &[]), Errno::EINVAL),
        (ctx, 0, vec![chunk(chunk_id::IB, &ib.as_bytes()[..28])], Errno::EINVAL),
        (ctx, 0, and(chunk_id::BO_HANDLES, good.as_bytes()), Errno::EINVAL),
        (ctx, 0, vec![buffer(ib), chunk(6, &good.as_bytes()[..20])], Errno::EINVAL),
        (ctx, 0, vec![buffer(ib), chunk(6, bad.as_bytes())], Errno::ENOENT),
        (ctx, 7, vec![buffer(ib)], Errno::ENOENT),
        (ctx, 7, vec![buffer(ib), handles()], Errno::EINVAL),
        (ctx, 0, vec![buffer(CsChunkIb { ring: 2, ..ib })], Errno::EINVAL),
        (ctx, 0, vec![buffer(CsChunkIb { ip_instance: 1, ..ib })], Errno::EINVAL),
        (ctx, 0, vec![buffer(CsChunkIb { ip_type: hw_ip::GFX, ..ib })], Errno::EINVAL),
        (ctx, 0, vec![buffer(CsChunkIb { ib_bytes: 1 << 22, ..ib })], Errno::EINVAL),
        (ctx, 0, vec![buffer(ib); 50], Errno::EINVAL),
        (ctx, 0, fence(99, 0), Errno::EINVAL),
        (ctx, 0, fence(copier.ib, 0), Errno::EINVAL),
        (ctx, 0, fence(copier.user_handle, 0), Errno::EINVAL),
        (ctx, 0, fence(page, 4089), Errno::EINVAL),
        (ctx, 0, and(chunk_id::DEPENDENCIES, dep.as_bytes()), Errno::EINVAL),
        (ctx, 0, and(chunk_id::SYNCOBJ_IN, &[0; 4]), Errno::ENOENT),
    ];
    let submit = |ctx, list, chunks: &[(u32, Vec<u8>)]| {
        let chunks: Vec<(u32, &[u8])> = chunks.iter().map(|(id, data)| (*id, &data[..])).collect();
        copier.client.submit_chunks(ctx, list, &chunks)
    };
    for (index, (ctx, list, chunks, errno)) in cases.iter().enumerate() {
        assert_eq!(submit(*ctx, *list, chunks), Err(*errno), "case {index}");
    }
    let mut cs = CsIn { ctx_id: copier.ctx, num_chunks: 0, ..CsIn::default() };
    assert_eq!(copier.client.call(&CS, &mut cs), Err(Errno::EINVAL));
    // None of them counted.
    assert_eq!(submit(ctx, 0, &[buffer(ib), handles()]), Ok(1));
    assert_eq!(copier.client.wait(copier.ctx, 0, 1, LONG), Ok(false));
    copier.client.close(page).unwrap();
    copier.finish();
    assert_clean(&host);
}

#[test]
fn a_list_that_was_made_before() {
    let host = host(1);
    let copier = Copier::new(&host.process(Credentials::USER), 8192);
    let make = |operation, list_handle, handles: &[u32]| {
        let (_entries, list) = list(handles);
        let mut list = BoListIn { operation, list_handle, ..list };
        copier.client.call(&BO_LIST, &mut list).map(|()| list.created())
    };
    assert_eq!(make(bo_list_op::CREATE, 0, &[99]), Err(Errno::ENOENT));
    assert_eq!(make(7, 0, &[]), Err(Errno::EINVAL));
    assert_eq!(make(bo_list_op::UPDATE, 1, &[]), Err(Errno::ENOENT));
    let list = make(bo_list_op::CREATE, 0, &[copier.ib]).unwrap();
    make(bo_list_op::UPDATE, list, &copier.handles()).unwrap();
    let mut huge = BoListIn { bo_number: 1 << 20, bo_info_size: 8, ..BoListIn::default() };
    assert_eq!(copier.client.call(&BO_LIST, &mut huge), Err(Errno::EINVAL));
    let (va_start, ib_bytes) = copier.write(0, &copier.to_host(0, 16));
    let ib = CsChunkIb { va_start, ib_bytes, ip_type: hw_ip::DMA, ..CsChunkIb::default() };
    let chunks = [(chunk_id::IB, ib.as_bytes())];
    let number = copier.client.submit_chunks(copier.ctx, list, &chunks).unwrap();
    assert_eq!(copier.client.wait(copier.ctx, 0, number, LONG), Ok(false));
    make(bo_list_op::DESTROY, list, &[]).unwrap();
    copier.finish();
    assert_clean(&host);
}

#[test]
fn waiting_for_what_there_is_and_what_there_is_not() {
    let host = host(1);
    let copier = Copier::new(&host.process(Credentials::USER), 8192);
    let wait = |ctx_id, ip_type, ip_instance, ring, handle| {
        let mut wait = WaitCsIn { handle, timeout: u64::MAX, ip_type, ip_instance, ring, ctx_id };
        copier.client.call(&WAIT_CS, &mut wait).map(|()| wait.busy())
    };
    let dma = hw_ip::DMA;
    assert_eq!(wait(copier.ctx, dma, 0, 0, 1), Err(Errno::EINVAL), "not yet");
    for _ in 0..40 {
        copier.run(&copier.to_host(0, 16)).unwrap();
    }
    assert_eq!(wait(copier.ctx, dma, 0, 0, 40), Ok(false));
    assert_eq!(wait(copier.ctx, dma, 0, 0, 1), Ok(false), "long done");
    assert_eq!(wait(copier.ctx, dma, 0, 0, LAST_SUBMISSION), Ok(false));
    for (ctx, ip, instance, ring, handle) in [
        (copier.ctx, dma, 0, 0, 41),
        (copier.ctx, dma, 0, 1, 1),
        (copier.ctx, dma, 0, 2, 1),
        (copier.ctx, dma, 1, 0, 1),
        (copier.ctx, hw_ip::NUM, 0, 0, 1),
        (9, dma, 0, 0, 1),
    ] {
        assert_eq!(wait(ctx, ip, instance, ring, handle), Err(Errno::EINVAL), "{ctx} {ring}");
    }
    copier.finish();
    assert_clean(&host);
}

#[test]
fn a_submission_that_fails_makes_its_context_guilty() {
    let host = host(1);
    let process = host.process(Credentials::USER);
    let copier = Copier::new(&process, 8192);
    let state = |ctx_id| {
        let mut ctx = CtxIn { op: ctx_op::QUERY_STATE2, ctx_id, ..CtxIn::default() };
        copier.client.call(&CTX, &mut ctx).unwrap();
        u64::from_prefix(ctx.as_bytes())
    };
    assert_eq!(state(copier.ctx), 0);
    // One byte past the end of both mappings.
    assert_eq!(copier.run(&copier.to_host(0, 8193)), Err(Errno::ECANCELED));
    let pid = process.pid();
    let (from, to) = (VRAM_VA, USER_VA);
    let expected = format!(
        "process {pid}: submission 1 on ring 0 of context 1 on /dev/dri/renderD128: copying 8193 \
         bytes from {from:#x} to {to:#x}: nothing is mapped at {:#x}",
        from + 8192
    );
    assert_eq!(complaints_of(&host)[0], expected);
    assert_eq!(state(copier.ctx), 5);
    assert_eq!(copier.submit(0, 1, &copier.to_host(0, 16)), Err(Errno::ECANCELED));
    // Another context is as good as ever.
    let other = copier.client.new_context();
    let buffer = copier.write(0, &copier.to_host(0, 8192));
    let number = copier.client.submit(other, 0, buffer, &copier.handles(), &[]).unwrap();
    assert_eq!(copier.client.wait(other, 0, number, LONG), Ok(false));
    copier.client.free_context(other).unwrap();
    copier.finish();
    assert_eq!(host.take_complaints().len(), 1);
    assert_clean(&host);
}

#[test]
fn memory_of_another_process_is_refused() {
    let host = host(1);
    let owner = host.process(Credentials::USER);
    let copier = Copier::new(&owner, 8192);
    // The same open file in the hands of another process.
    let other = host.process(Credentials::USER);
    let fd = std::os::fd::AsFd::as_fd(&copier.client.node).try_clone_to_owned().unwrap();
    let file = crate::device::Driver::adopt(&other, fd).unwrap();
    let (va_start, ib_bytes) = copier.write(0, &copier.to_host(0, 16));
    let ib = CsChunkIb { va_start, ib_bytes, ip_type: hw_ip::DMA, ..CsChunkIb::default() };
    let (_entries, list) = list(&copier.handles());
    let chunk = |id, data: &[u8]| crate::abi::amdgpu::CsChunk {
        chunk_id: id,
        length_dw: u32::try_from(data.len() / 4).unwrap(),
        chunk_data: address(data),
    };
    let chunks = [chunk(chunk_id::IB, ib.as_bytes()), chunk(chunk_id::BO_HANDLES, list.as_bytes())];
    let pointers = chunks.each_ref().map(|chunk| address(chunk.as_bytes()));
    let mut cs = CsIn {
        ctx_id: copier.ctx,
        num_chunks: 2,
        chunks: pointers.as_ptr().expose_provenance() as u64,
        ..CsIn::default()
    };
    // SAFETY: the addresses are of values that live until the call has returned.
    let answer = unsafe { file.ioctl(CS.number(), cs.as_bytes_mut()) };
    assert_eq!(answer, Err(Errno::EPERM));
    drop(file);
    copier.finish();
    assert_clean(&host);
}

/// Issues a call that waits, and interrupts it: what it has written.
fn interrupted<T: Plain + Send>(
    client: &Client,
    interrupt: &Interrupt,
    request: &Request<T>,
    mut args: T,
) {
    interrupt.lower();
    let before = args.as_bytes().to_vec();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let answer = client.raw(request.number(), args.as_bytes_mut());
            (answer, args.as_bytes().to_vec())
        });
        std::thread::sleep(Duration::from_millis(20));
        interrupt.raise();
        // The argument is as it was: the caller calls again with the same.
        assert_eq!(waiting.join().unwrap(), (Err(Errno::EINTR), before), "{request:?}");
    });
}

#[test]
fn waits_end_when_their_caller_has_a_signal_to_handle() {
    let host = host(1);
    let process = host.process(Credentials::USER);
    let copier = Copier::new(&process, 8192);
    let hang = host.plan(Fault::engine_hangs(0));
    let handle = copier.submit(0, 0, &copier.to_device(0, 8192)).unwrap();
    let ctx_id = copier.ctx;
    let cs =
        WaitCsIn { handle, timeout: u64::MAX, ip_type: hw_ip::DMA, ctx_id, ..WaitCsIn::default() };
    let fence = Fence { ctx_id, ip_type: hw_ip::DMA, seq_no: handle, ..Fence::default() };
    let fences = WaitFencesIn {
        fences: std::ptr::from_ref(&fence).expose_provenance() as u64,
        fence_count: 1,
        wait_all: 0,
        timeout_ns: u64::MAX,
    };
    let idle = GemWaitIdleIn { handle: copier.vram, flags: 0, timeout: u64::MAX };
    let interrupt = &process.interrupt;
    interrupted(&copier.client, interrupt, &WAIT_CS, cs);
    interrupted(&copier.client, interrupt, &WAIT_FENCES, fences);
    interrupted(&copier.client, interrupt, &WAIT_FENCES, WaitFencesIn { wait_all: 1, ..fences });
    interrupted(&copier.client, interrupt, &GEM_WAIT_IDLE, idle);
    hang.release();
    interrupt.lower();
    assert_eq!(copier.client.wait(ctx_id, 0, handle, LONG), Ok(false));
    copier.finish();
    assert_clean(&host);
}
