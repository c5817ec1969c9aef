//! What is in memory, and who writes it.

use std::time::{Duration, Instant};

use super::{
    cycle::{PATIENCE, Source},
    *,
};
use crate::device::sim::{Application, BoPlan, Fill};

fn machine(gpus: u32) -> Machine {
    Machine::new(&Profile::gfx90a(), gpus)
}

#[test]
fn memory_is_filled_and_read_from_outside() {
    let plan = [BoPlan::vram(0, 80 << 20), BoPlan::gtt(0, 1 << 20), BoPlan::userptr(0, 1 << 20)];
    let source = Source::new(machine(1), &plan);
    let (host, pid) = (&source.host, source.pid());
    for bo in source.app.bos() {
        for fill in [Fill::Random(4), Fill::Bf16(5), Fill::Offsets, Fill::HalfZeros(6), Fill::Zeros]
        {
            host.fill_bo(pid, bo.va, fill).unwrap();
            for at in [0, bo.size / 2 - 8, bo.size - 4096] {
                let (mut there, mut expected) = ([1; 4096], [2; 4096]);
                host.read_bo(pid, bo.va, at, &mut there).unwrap();
                fill.write(at, &mut expected);
                assert!(there == expected, "{fill:?} at {at} of {bo:?}");
            }
        }
        host.fill_bo_range(pid, bo.va, 8192..8200, Fill::Offsets).unwrap();
        host.write_bo(pid, bo.va, 3, b"x").unwrap();
        let mut expected = vec![0; 1 << 20];
        expected[3] = b'x';
        expected[8192..8200].copy_from_slice(&8192_u64.to_le_bytes());
        let mut there = vec![1; 1 << 20];
        host.read_bo(pid, bo.va, 0, &mut there).unwrap();
        assert!(there == expected);
        expected.resize(usize::try_from(bo.size).unwrap(), 0);
        assert_eq!(host.checksum_bo(pid, bo.va), Ok(crc32fast::hash(&expected)));
        assert_eq!(host.write_bo(pid, bo.va, bo.size, b"x"), Err(Errno::EINVAL));
        assert_eq!(host.fill_bo_range(pid, bo.va, 4..8, Fill::Zeros), Err(Errno::EINVAL));
    }
    assert_eq!(host.fill_bo(pid, 0x1000, Fill::Zeros), Err(Errno::ENOENT));
    assert_eq!(host.fill_bo(1, 0x1000, Fill::Zeros), Err(Errno::EBADF));
}

/// The first and the last word.
fn ends(host: &SimHost, pid: u32, va: u64, size: u64) -> (u64, u64) {
    let word = |at| {
        let mut bytes = [0; 8];
        host.read_bo(pid, va, at, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    (word(0), word(size - 8))
}

#[test]
fn shaders_write_until_their_queue_is_stopped() {
    let source = Source::new(machine(1), &[BoPlan::vram(0, 1 << 20)]);
    let (host, pid, va) = (&source.host, source.pid(), source.app.bos()[0].va);
    let scribble = host.scribble(pid, source.app.queues()[0].id, va).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let moves_on_from = |old: (u64, u64)| {
        while ends(host, pid, va, 1 << 20) == old {
            assert!(Instant::now() < deadline, "nobody writes");
        }
    };
    moves_on_from((0, 0));
    let kfd = source.kfd();
    for _ in 0..20 {
        kfd.process_info().unwrap();
        let stopped = ends(host, pid, va, 1 << 20);
        assert_eq!(stopped.0, stopped.1, "stopped in the middle of a round");
        let sum = host.checksum_bo(pid, va);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(host.checksum_bo(pid, va), sum);
        kfd.unpause().unwrap();
        moves_on_from(stopped);
    }
    drop(scribble);
    let after = ends(host, pid, va, 1 << 20);
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(ends(host, pid, va, 1 << 20), after);
    assert_eq!(host.scribble(pid, 9, va).err(), Some(Errno::ESRCH));
    assert_eq!(host.scribble(pid, 0, 1).err(), Some(Errno::ENOENT));
}

#[test]
fn shaders_end_with_their_process_also_while_it_is_stopped() {
    let source = Source::new(machine(1), &[BoPlan::vram(0, 4096)]);
    let (host, pid) = (source.host.clone(), source.pid());
    let scribble = host.scribble(pid, 0, source.app.bos()[0].va).unwrap();
    source.kfd().process_info().unwrap();
    drop(source);
    assert_eq!(host.bos(pid), []);
    drop(scribble);
}

#[test]
fn ten_thousand_small_bos_and_a_huge_one() {
    let mut plan = vec![BoPlan::vram(0, 4096); 10_000];
    plan.push(BoPlan::vram(0, (48 << 30) + 4096));
    let source = Source::new(machine(1), &plan);
    let (host, pid) = (&source.host, source.pid());
    for (n, bo) in (0..).zip(&source.app.bos()[..10_000]) {
        host.fill_bo(pid, bo.va, Fill::Random(n)).unwrap();
    }
    let huge = &source.app.bos()[10_000];
    let end = huge.size - 8..huge.size;
    host.fill_bo_range(pid, huge.va, end, Fill::Offsets).unwrap();
    assert_eq!(ends(host, pid, huge.va, huge.size), (0, huge.size - 8));
    let checkpoint = source.checkpoint();
    assert!(checkpoint.bos.len() > 10_000);
    let unique: std::collections::BTreeSet<_> =
        checkpoint.bos.iter().map(|bo| bo.bucket.addr).collect();
    assert_eq!(unique.len(), checkpoint.bos.len());
}

#[test]
fn applications_of_several_processes_do_not_meet() {
    let host = SimHost::new(machine(2)).unwrap();
    let plan = [BoPlan::vram(0, 4096), BoPlan { all_gpus: true, ..BoPlan::vram(1, 4096) }];
    let [one, two] = [1, 2].map(|seed| {
        let app = Application::start(&host.process(Credentials::USER), &plan).unwrap();
        app.fill(|n| Fill::Random(seed * 100 + n)).unwrap();
        app
    });
    let sum = |app: &Application, n: usize| {
        host.checksum_bo(app.process().pid(), app.bos()[n].va).unwrap()
    };
    let sums: std::collections::BTreeSet<_> =
        [sum(&one, 0), sum(&one, 1), sum(&two, 0), sum(&two, 1)].into();
    assert_eq!(sums.len(), 4);
    assert_eq!(host.bos(one.process().pid())[1].mapped.len(), 1);
}

#[test]
fn memory_that_the_cpu_has_mapped_is_the_same_memory() {
    let visible = |plan| BoPlan { host_visible: true, ..plan };
    let plan = [
        visible(BoPlan::vram(0, 8192)),
        visible(BoPlan::gtt(1, 8192)),
        BoPlan { flags: flags::DOORBELL, ..visible(BoPlan::vram(1, 8192)) },
    ];
    let source = Source::new(machine(2), &plan);
    let (host, pid) = (&source.host, source.pid());
    for bo in &source.app.bos()[..2] {
        bo.memory.as_ref().unwrap().write(4096, b"by the CPU");
        let mut there = [0; 10];
        host.read_bo(pid, bo.va, 4096, &mut there).unwrap();
        assert_eq!(&there, b"by the CPU");
        host.write_bo(pid, bo.va, 5000, b"from outside").unwrap();
        let mut there = [0; 12];
        bo.memory.as_ref().unwrap().read(5000, &mut there);
        assert_eq!(&there, b"from outside");
    }
    assert_ne!(source.app.bos()[0].flags & flags::PUBLIC, 0);
    assert!(source.app.bos()[2].memory.is_some());
    let private =
        Application::start(&host.process(Credentials::USER), &[BoPlan::vram(0, 4096)]).unwrap();
    // Not public, and the kernel lets the CPU have it all the same.
    private.renders().next().unwrap().map(private.bos()[0].mmap_offset, 4096).unwrap();
    let other = private.renders().next().unwrap().map(source.app.bos()[0].mmap_offset, 8192);
    assert_eq!(errno(&other.unwrap_err()), Errno::EACCES);
}
