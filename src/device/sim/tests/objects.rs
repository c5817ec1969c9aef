//! Objects and the address space: what works and every answer that says why not.

use nix::errno::Errno;

use super::{assert_clean, client::*, complaints_of, host, with_kernel};
use crate::{
    abi::{
        Plain,
        amdgpu::{
            GEM_CREATE, GEM_LIST_HANDLES, GEM_OP, GEM_OP_OLD, GEM_VA, GEM_VA_OLD, GemCreateIn,
            GemListHandles, GemListHandlesEntry, GemOp, GemVa, GemVmEntry, create, domain, gem_op,
            userptr, va_flag, va_op,
        },
    },
    device::sim::{Credentials, KernelRelease},
};

const PAGE: u64 = 4096;

#[test]
fn objects_that_cannot_be_made() {
    let host = host(1);
    let client = Client::open(&host.process(Credentials::USER));
    let make = |bo_size, domains, domain_flags| {
        let mut create = GemCreateIn { bo_size, alignment: 0, domains, domain_flags };
        client.call(&GEM_CREATE, &mut create).map(|()| create.handle())
    };
    for (size, domains, flags) in [
        (0, domain::GTT, 0),
        (u64::MAX, domain::GTT, 0),
        (PAGE, 0x80, 0),
        (PAGE, domain::GDS, 0),
        (PAGE, domain::VRAM | domain::GWS, 0),
        (PAGE, domain::DOORBELL, 0),
        (PAGE, domain::VRAM, create::PREEMPTIBLE),
        (PAGE, domain::VRAM, create::COHERENT),
        (PAGE, domain::VRAM, create::ENCRYPTED),
    ] {
        assert_eq!(make(size, domains, flags), Err(Errno::EINVAL), "{size} {domains:x} {flags:x}");
    }
    let handle = make(1, domain::VRAM, create::NO_CPU_ACCESS).unwrap();
    assert_eq!((handle, client.mmap_offset(handle)), (1, Err(Errno::EPERM)));
    assert_eq!(client.mmap_offset(7), Err(Errno::ENOENT));
    // Numbers that are free are used again, the lowest first.
    assert_eq!(make(PAGE, domain::GTT, 0), Ok(2));
    client.close(1).unwrap();
    assert_eq!((make(PAGE, domain::GTT, 0), make(PAGE, domain::GTT, 0)), (Ok(1), Ok(3)));
}

#[test]
fn what_does_not_fit_into_vram_goes_to_the_host() {
    let host = host(1);
    let client = Client::open(&host.process(Credentials::USER));
    let place = |handle| {
        let mut wait = crate::abi::amdgpu::GemWaitIdleIn { handle, flags: 0, timeout: 0 };
        client.call(&crate::abi::amdgpu::GEM_WAIT_IDLE, &mut wait).unwrap();
        (wait.busy(), u64::from(u32::from_prefix(&wait.as_bytes()[4..])))
    };
    let first = client.create(domain::VRAM, 1 << 30);
    let second = client.create(domain::VRAM, PAGE);
    assert_eq!((place(first), place(second)), ((false, domain::VRAM), (false, domain::GTT)));
    // A closed dma-buf makes room.
    let fd = client.export(first).unwrap();
    client.close(first).unwrap();
    let third = client.create(domain::VRAM, PAGE);
    drop(fd);
    let fourth = client.create(domain::VRAM, PAGE);
    assert_eq!((place(third).1, place(fourth).1), (domain::GTT, domain::VRAM));
}

#[test]
fn userptrs_that_cannot_be() {
    let host = host(1);
    let client = Client::open(&host.process(Credentials::USER));
    let pages = Pages::new(4 * 4096);
    let at = pages.address();
    for (address, size, flags, errno) in [
        (at, PAGE, 0x10, Errno::EINVAL),
        (at, 0, USERPTR, Errno::EINVAL),
        (at, PAGE, userptr::ANONONLY, Errno::EACCES),
        (0x7fff_ffff_f000, PAGE, USERPTR, Errno::EFAULT),
        (u64::MAX - 4095, PAGE, USERPTR, Errno::EFAULT),
        (0x1000, PAGE, USERPTR, Errno::EFAULT),
        // Its end is not mapped.
        (at, 1 << 40, USERPTR, Errno::EFAULT),
    ] {
        assert_eq!(client.userptr(address, size, flags), Err(errno), "{address:x} {size} {flags}");
    }
    let read_only = client.userptr(at, PAGE, userptr::READONLY).unwrap();
    assert_eq!(client.mmap_offset(read_only), Err(Errno::EPERM));
    client.close(read_only).unwrap();
    assert_clean_but_open(&host);
    assert_eq!(client.userptr(at + 8, PAGE, USERPTR), Err(Errno::EINVAL));
    assert_eq!(client.userptr(at, 100, USERPTR), Err(Errno::EINVAL));
    assert_eq!(host.take_complaints().len(), 2, "whoever passes that is wrong");
}

#[track_caller]
fn assert_clean_but_open(host: &crate::device::sim::SimHost) {
    assert_eq!(host.complaints(), []);
}

#[test]
fn memory_of_a_file_is_refused_where_anonymous_memory_was_promised() {
    let host = host(1);
    let mut copier = Copier::new(&host.process(Credentials::USER), PAGE);
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE).unwrap();
    let memory = crate::device::DeviceMemory::map(&file, 0, 4096).unwrap();
    assert_eq!(copier.client.userptr(memory.address(), PAGE, USERPTR), Err(Errno::EPERM));
    let free = USERPTR & !userptr::ANONONLY;
    let handle = copier.client.userptr(memory.address(), PAGE, free).unwrap();
    copier.client.close(handle).unwrap();
    // Without VALIDATE it is found at the first submission.
    let late = USERPTR & !userptr::VALIDATE;
    let handle = copier.client.userptr(memory.address(), PAGE, late).unwrap();
    let handles = [&copier.handles()[..], &[handle]].concat();
    let words = copier.to_host(0, 16);
    assert_eq!(copier.submit_with(0, 0, &words, &handles, &[]), Err(Errno::EPERM));
    copier.client.close(handle).unwrap();
    let nowhere = copier.client.userptr(0x1000, PAGE, late).unwrap();
    let handles = [&copier.handles()[..], &[nowhere]].concat();
    assert_eq!(copier.submit_with(0, 0, &words, &handles, &[]), Err(Errno::EFAULT));
    copier.client.close(nowhere).unwrap();
    copier.run(&words).unwrap();
    assert_eq!(copier.user.bytes()[..16], [0; 16]);
    copier.finish();
    assert_clean(&host);
}

#[test]
fn mappings_that_cannot_be() {
    let host = host(1);
    let client = Client::open(&host.process(Credentials::USER));
    let handle = client.create(domain::VRAM, 4 * PAGE);
    let va = 0x10_0000;
    client.map(handle, va, 2 * PAGE).unwrap();
    let map = va_op::MAP;
    let limit = 0x0000_8000_0000_0000 - (4 << 20) - (64 << 10);
    for (operation, handle, va, offset, size, errno) in [
        (map, handle, 0xf000, 0, PAGE, Errno::EINVAL),
        (map, handle, 0x0000_8000_0000_0000, 0, PAGE, Errno::EINVAL),
        (map, handle, limit, 0, PAGE, Errno::EINVAL),
        (map, handle, u64::MAX - 4095, 0, PAGE, Errno::EINVAL),
        (map, handle, 0x20_0001, 0, PAGE, Errno::EINVAL),
        (map, handle, 0x20_0000, 1, PAGE, Errno::EINVAL),
        (map, handle, 0x20_0000, 0, 1, Errno::EINVAL),
        (map, handle, 0x20_0000, 0, 0, Errno::EINVAL),
        (map, handle, 0x20_0000, PAGE, 4 * PAGE, Errno::EINVAL),
        (map, handle, 0x20_0000, u64::MAX - 4095, 4096, Errno::EINVAL),
        (map, handle, va + PAGE, 0, PAGE, Errno::EINVAL),
        (map, handle, va - PAGE, 0, 2 * PAGE, Errno::EINVAL),
        (va_op::REPLACE, handle, va, PAGE, 4 * PAGE, Errno::EINVAL),
        (0, handle, 0x20_0000, 0, PAGE, Errno::EINVAL),
        (5, handle, 0x20_0000, 0, PAGE, Errno::EINVAL),
        (map, 9, 0x20_0000, 0, PAGE, Errno::ENOENT),
        (va_op::UNMAP, handle, va + PAGE, 0, PAGE, Errno::ENOENT),
        (va_op::UNMAP, 9, va, 0, PAGE, Errno::ENOENT),
    ] {
        let answer = client.va(operation, handle, va, offset, size);
        assert_eq!(answer, Err(errno), "{operation} {handle} {va:x} {offset:x} {size:x}");
    }
    client.map(handle, limit - PAGE, PAGE).unwrap();
    client.unmap(handle, limit - PAGE, PAGE).unwrap();
    // A mapping is known by where it begins; the size says nothing.
    client.unmap(handle, va, PAGE).unwrap();
    let mut flags = GemVa {
        handle,
        operation: map,
        flags: 0x400,
        va_address: va,
        map_size: PAGE,
        ..GemVa::default()
    };
    assert_eq!(client.call(&GEM_VA, &mut flags), Err(Errno::EINVAL));
    flags.flags = va_flag::READABLE | 0x1e0;
    assert_eq!(client.call(&GEM_VA, &mut flags), Ok(()));
    // With its handle closed a mapping is gone.
    client.close(handle).unwrap();
    let other = client.create(domain::VRAM, PAGE);
    client.map(other, va, PAGE).unwrap();
    client.unmap(other, va, PAGE).unwrap();
    client.close(other).unwrap();
    drop(client);
    assert_clean(&host);
}

fn mappings(client: &Client, handle: u32, room: usize) -> (u32, Vec<(u64, u64, u64)>) {
    let mut entries = vec![GemVmEntry::default(); room];
    let mut op = GemOp {
        handle,
        op: gem_op::GET_MAPPING_INFO,
        value: entries.as_mut_ptr().expose_provenance() as u64,
        num_entries: u32::try_from(room).unwrap(),
        pad: 0,
    };
    client.call(&GEM_OP, &mut op).unwrap();
    (op.num_entries, entries.iter().map(|entry| (entry.addr, entry.size, entry.offset)).collect())
}

#[test]
fn clearing_and_replacing_a_part_of_a_mapping() {
    let host = with_kernel(KernelRelease::V7_2);
    let client = Client::open(&host.process(Credentials::USER));
    let (one, two) = (client.create(domain::GTT, 8 * PAGE), client.create(domain::GTT, PAGE));
    let va = 0x10_0000;
    client.map(one, va, 8 * PAGE).unwrap();
    client.va(va_op::REPLACE, two, va + 2 * PAGE, 0, PAGE).unwrap();
    client.va(va_op::CLEAR, 0, va + 6 * PAGE, 0, 4 * PAGE).unwrap();
    let (count, found) = mappings(&client, one, 2);
    let expected = [(va, 2 * PAGE, 0), (va + 3 * PAGE, 3 * PAGE, 3 * PAGE)];
    assert_eq!((count, &found[..]), (2, &expected[..]));
    assert_eq!(mappings(&client, two, 1), (1, vec![(va + 2 * PAGE, PAGE, 0)]));
    // Too little room: only how many there are.
    assert_eq!(mappings(&client, one, 1), (2, vec![(0, 0, 0)]));
}

#[test]
fn old_and_new_sizes_are_the_same_call() {
    for kernel in [KernelRelease::V6_12, KernelRelease::V7_2] {
        let host = with_kernel(kernel);
        let client = Client::open(&host.process(Credentials::USER));
        let handle = client.create(domain::GTT, PAGE);
        let va = GemVa {
            handle,
            operation: va_op::MAP,
            flags: PLAIN,
            va_address: 0x10_0000,
            map_size: PAGE,
            ..GemVa::default()
        };
        let mut old: [u8; 40] = va.as_bytes()[..40].try_into().unwrap();
        client.raw(GEM_VA_OLD, &mut old).unwrap();
        assert_eq!(client.call(&GEM_VA, &mut va.clone()), Err(Errno::EINVAL), "it is mapped");
        let mut sync = GemVa { num_syncobj_handles: 1, operation: va_op::UNMAP, ..va };
        let newer = kernel == KernelRelease::V7_2;
        let answer = if newer { Err(Errno::ENOENT) } else { Ok(()) };
        assert_eq!(client.call(&GEM_VA, &mut sync), answer);

        let mut info = GemCreateIn::default();
        let value = info.as_bytes_mut().as_mut_ptr().expose_provenance() as u64;
        let op = GemOp { handle, value, ..GemOp::default() };
        let mut old: [u8; 16] = op.as_bytes()[..16].try_into().unwrap();
        client.raw(GEM_OP_OLD, &mut old).unwrap();
        assert_eq!((info.bo_size, info.domains), (PAGE, domain::GTT));
        for (op, errno) in [
            (GemOp { op: 3, ..op }, Errno::EINVAL),
            (GemOp { handle: 5, ..op }, Errno::ENOENT),
            (GemOp { value: 8, ..op }, Errno::EFAULT),
        ] {
            assert_eq!(client.call(&GEM_OP, &mut op.clone()), Err(errno));
        }
        let answer = client.call(&GEM_OP, &mut GemOp { pad: 1, ..op });
        assert_eq!(answer.is_err(), newer);
        let answer =
            client.call(&GEM_OP, &mut GemOp { op: gem_op::GET_MAPPING_INFO, value: 0, ..op });
        assert_eq!(answer.is_ok(), newer);
    }
}

#[test]
fn handles_are_listed_by_newer_kernels() {
    let host = with_kernel(KernelRelease::V7_2);
    let client = Client::open(&host.process(Credentials::USER));
    client.create(domain::GTT, PAGE);
    client.create(domain::VRAM, 2 * PAGE);
    let mut entries = [GemListHandlesEntry::default(); 2];
    let mut list = GemListHandles { num_entries: 1, ..GemListHandles::default() };
    list.entries = entries.as_mut_ptr().expose_provenance() as u64;
    client.call(&GEM_LIST_HANDLES, &mut list).unwrap();
    assert_eq!((list.num_entries, entries[0]), (2, GemListHandlesEntry::default()));
    client.call(&GEM_LIST_HANDLES, &mut list).unwrap();
    let found = entries.map(|entry| (entry.gem_handle, entry.size, entry.preferred_domains));
    assert_eq!(found, [(1, PAGE, domain::GTT), (2, 2 * PAGE, domain::VRAM)]);
    list.pad = 1;
    assert_eq!(client.call(&GEM_LIST_HANDLES, &mut list), Err(Errno::EINVAL));
}

#[test]
fn what_is_left_in_a_closed_file_is_named() {
    let host = host(1);
    let process = host.process(Credentials::USER);
    let client = Client::open(&process);
    let (one, _) = (client.create(domain::GTT, PAGE), client.create(domain::GTT, PAGE));
    client.map(one, 0x10_0000, PAGE).unwrap();
    client.new_context();
    drop(client);
    let pid = process.pid();
    let left = |what: &str| format!("process {pid}: renderD128 was closed with {what}");
    assert_eq!(
        complaints_of(&host),
        [
            left("2 handles left: 1, 2"),
            left("1 mappings left: 0x100000"),
            left("1 contexts left: 1")
        ]
    );
    assert_eq!(host.take_complaints().len(), 3);
    // But not of a process that was killed.
    let client = Client::open(&process);
    client.create(domain::GTT, PAGE);
    process.abandon();
    drop(client);
    assert_clean(&host);
}
