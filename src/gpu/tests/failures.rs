//! Whatever fails: the cause is named, nothing is left behind, and a second attempt works.

use nix::errno::Errno;

use super::*;
use crate::device::sim::Fault;

const SIZES: [u64; 3] = [4096, 300 << 10, 8192];

/// The calls of a copier, dump and restore.
const CALLS: [&str; 13] = [
    "open",
    "VERSION",
    "INFO",
    "CTX",
    "GEM_USERPTR",
    "GEM_CREATE",
    "GEM_MMAP",
    "mmap",
    "GEM_VA",
    "PRIME_FD_TO_HANDLE",
    "CS",
    "WAIT_CS",
    "GEM_CLOSE",
];

const LASTING: [Errno; 5] =
    [Errno::ENOMEM, Errno::ENODEV, Errno::EIO, Errno::ECANCELED, Errno::EFAULT];
const PASSING: [Errno; 3] = [Errno::EINTR, Errno::EAGAIN, Errno::EBUSY];

fn ring() -> Ring {
    Ring::new(64 << 10, 8).unwrap()
}

/// A dump, and a restore of what it should have given.
fn attempt(bench: &Bench, ring: &Ring, dumps: bool) -> Result<(), GpuError<Given>> {
    let images: Vec<_> = (0..bench.app.len()).map(|gpu| bench.bytes(gpu)).collect();
    let outcome = if dumps {
        let store = Store::default();
        bench.dump(ring, &store).map(|_| {
            let store = store.lock().unwrap();
            for (id, image) in bench.host.gpu_ids().iter().zip(&images) {
                assert!(store[id].0 == *image);
            }
        })
    } else {
        bench.restore(ring, &images).map(drop)
    };
    for (gpu, image) in images.iter().enumerate() {
        assert!(bench.bytes(gpu) == *image);
    }
    outcome
}

#[test]
fn an_answer_that_passes_is_not_noticed() {
    let bench = Bench::filled(2, &SIZES);
    for call in CALLS {
        for errno in PASSING {
            for dumps in [true, false] {
                let ring = ring();
                let plan = Fault::call(call).on(bench.copier.pid()).times(3).answers(errno);
                let plan = bench.host.plan(plan);
                let outcome = attempt(&bench, &ring, dumps);
                plan.release();
                outcome.unwrap_or_else(|error| panic!("{call} {errno}: {error:?}"));
                bench.assert_tidy(&ring);
            }
        }
    }
}

#[test]
fn an_answer_that_lasts_is_told_and_the_second_attempt_works() {
    let bench = Bench::filled(2, &SIZES);
    for call in CALLS {
        for errno in LASTING {
            for dumps in [true, false] {
                let ring = ring();
                let plan = Fault::call(call).on(bench.copier.pid()).answers(errno);
                let plan = bench.host.plan(plan);
                let error = attempt(&bench, &ring, dumps).expect_err(call);
                plan.release();
                let GpuError::Device { source, .. } = error else { panic!("{call}: {error:?}") };
                let text = source.to_string();
                assert!(text.contains(call) && text.contains("/dev/dri/renderD"), "{text}");
                assert_eq!(ring.free() + ring.condemned(), ring.chunks(), "{call} {errno}");
                // What could not be released is what the fault was about.
                let left = bench.host.take_complaints();
                assert!(
                    left.is_empty() || ["GEM_CLOSE", "GEM_VA", "CTX"].contains(&call),
                    "{call} {errno}: {left:?}"
                );
                attempt(&bench, &self::ring(), dumps).expect(call);
                bench.assert_no_complaint();
            }
        }
    }
}

#[test]
fn an_answer_that_would_pass_and_never_does() {
    let bench = Bench::filled(1, &SIZES);
    for call in ["open", "GEM_VA", "CS", "WAIT_CS"] {
        let ring = ring();
        let plan = Fault::call(call).on(bench.copier.pid()).always().answers(Errno::EAGAIN);
        let plan = bench.host.plan(plan);
        let error = attempt(&bench, &ring, true).expect_err(call);
        plan.release();
        let GpuError::Device { source, .. } = error else { panic!("{call}: {error:?}") };
        assert!(source.to_string().contains("again and again"), "{source}");
        bench.host.take_complaints();
        attempt(&bench, &self::ring(), true).expect(call);
    }
}

#[test]
fn an_engine_that_hangs_has_a_deadline_and_its_chunks_are_not_used_again() {
    for fault in [Fault::engine_hangs(0), Fault::fence_never_signals(0)] {
        let bench = Bench::filled(2, &SIZES);
        let ring = ring();
        let hang = bench.host.plan(fault);
        let jobs = bench.contents().into_iter().map(|contents| {
            let drain = Keep { gpu_id: contents.gpu_id, store: Store::default() };
            DumpJob { contents, drain }
        });
        let options = Options { fence_deadline: Duration::from_millis(300), ..options() };
        let error = dump(&bench.driver(), &ring, jobs.collect(), options, &mut || Ok(()));
        let error = error.unwrap_err();
        let gpu_id = bench.host.gpu_ids()[0];
        assert!(matches!(error, GpuError::Device { gpu_id: id, .. } if id == gpu_id), "{error}");
        assert!(format!("{error:?}").contains("Hung"), "{error:?}");
        assert!(ring.condemned() > 0);
        assert_eq!(ring.free() + ring.condemned(), ring.chunks());
        hang.release();
        bench.host.take_complaints();
        attempt(&bench, &self::ring(), true).unwrap();
    }
}

#[test]
fn a_device_that_vanishes() {
    let bench = Bench::filled(2, &SIZES);
    let ring = ring();
    let (host, plan) = (bench.host.clone(), Arc::new(Mutex::new(None)));
    let planned = Arc::clone(&plan);
    let error = dump_into(&bench, &ring, move |_| {
        planned.lock().unwrap().get_or_insert_with(|| host.plan(Fault::vanished(1)));
        Ok(())
    });
    let error = error.unwrap_err();
    let gpu_id = bench.host.gpu_ids()[1];
    assert!(matches!(error, GpuError::Device { gpu_id: id, .. } if id == gpu_id), "{error}");
    plan.lock().unwrap().take().unwrap().release();
    bench.host.take_complaints();
    attempt(&bench, &self::ring(), true).unwrap();
}

/// Does something else than keeping what it is given.
struct Odd<F>(F);

impl<F: FnMut(u64) -> Result<(), Given> + Send> Drain for Odd<F> {
    type Error = Given;

    fn chunk(&mut self, offset: u64, chunk: Chunk, _: usize) -> Result<(), Given> {
        drop(chunk);
        self.0(offset)
    }

    fn end(&mut self, bytes: u64) -> Result<(), Given> {
        self.0(bytes)
    }
}

fn dump_into(
    bench: &Bench,
    ring: &Ring,
    drain: impl FnMut(u64) -> Result<(), Given> + Send + Clone + 'static,
) -> Result<Vec<GpuStats>, GpuError<Given>> {
    let jobs = bench.contents().into_iter();
    let jobs = jobs.map(|contents| DumpJob { contents, drain: Odd(drain.clone()) });
    dump(&bench.driver(), ring, jobs.collect(), options(), &mut || Ok(()))
}

#[test]
fn a_sink_that_fails_is_the_cause() {
    let bench = Bench::filled(2, &SIZES);
    let ring = ring();
    let error = dump_into(&bench, &ring, |offset| {
        if offset < 100_000 { Ok(()) } else { Err(Given("the disk is full")) }
    });
    assert_eq!(error.unwrap_err().to_string(), "the disk is full");
    bench.assert_tidy(&ring);
    attempt(&bench, &ring, true).unwrap();
}

/// It gets nothing more, and is not told that this was all.
#[test]
fn a_sink_that_has_failed_is_left_alone() {
    let bench = Bench::filled(1, &SIZES);
    let ring = ring();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let error = dump_into(&bench, &ring, move |offset| {
        let mut seen = seen.lock().unwrap();
        seen.push(offset);
        if seen.len() == 2 { Err(Given("the disk is full")) } else { Ok(()) }
    });
    assert_eq!(error.unwrap_err().to_string(), "the disk is full");
    assert_eq!(*calls.lock().unwrap(), [0, 64 << 10]);
    bench.assert_tidy(&ring);
}

/// The others do not go on to their ends.
#[test]
fn a_failure_ends_the_other_workers_soon() {
    let bench = Bench::filled(2, &[16 << 20]);
    let ring = Ring::new(4096, 8).unwrap();
    let (fails, given) = (Arc::new(Mutex::new(true)), Arc::new(Mutex::new(0_u32)));
    let (count, copies) = (Arc::clone(&given), (16 << 20) / 4096);
    let error = dump_into(&bench, &ring, move |_| {
        if std::mem::take(&mut *fails.lock().unwrap()) {
            return Err(Given("the disk is full"));
        }
        *count.lock().unwrap() += 1;
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    });
    assert_eq!(error.unwrap_err().to_string(), "the disk is full");
    assert!(*given.lock().unwrap() < copies, "the other GPU was dumped to its end");
    bench.assert_tidy(&ring);
}

#[test]
fn a_sink_that_panics_is_a_bug_that_is_told() {
    let bench = Bench::filled(2, &SIZES);
    let ring = ring();
    let error = dump_into(&bench, &ring, |_| panic!("on purpose")).unwrap_err();
    assert!(matches!(error, GpuError::Panicked { .. }), "{error}");
    bench.assert_tidy(&ring);
    attempt(&bench, &ring, true).unwrap();
}

#[test]
fn a_sink_that_blocks_does_not_keep_the_caller_from_giving_up() {
    let bench = Bench::filled(2, &SIZES);
    let ring = ring();
    let (release, blocked) = crossbeam_channel::bounded::<()>(0);
    let jobs = bench.contents().into_iter().map(|contents| {
        let blocked = blocked.clone();
        let drain = Odd(move |_| {
            let _ = blocked.recv();
            Ok(())
        });
        DumpJob { contents, drain }
    });
    let options = Options { grace: Duration::from_millis(100), ..options() };
    let error = dump(&bench.driver(), &ring, jobs.collect(), options, &mut || {
        Err(Given("stopped by a signal"))
    });
    assert_eq!(error.unwrap_err().to_string(), "stopped by a signal");
    drop(release);
}

#[test]
fn contents_that_are_not_what_the_bos_have_room_for() {
    let bench = Bench::filled(1, &SIZES);
    let image = bench.bytes(0);
    let attempt = |image: Vec<u8>| {
        let ring = ring();
        let error = bench.restore(&ring, &[image]).unwrap_err();
        bench.assert_tidy(&ring);
        error.to_string()
    };
    let error = attempt(image[..image.len() - 1].to_vec());
    assert!(error.contains("1 bytes of its contents are missing"), "{error}");
    let error = attempt([&image[..], &[1; 4096]].concat());
    assert!(error.contains("past the end of its contents"), "{error}");
}

fn restore_of(bench: &Bench, ring: &Ring, write: Write, options: Options) -> GpuError<Given> {
    let jobs = bench.contents().into_iter().map(|contents| RestoreJob { contents });
    let (restore, senders) =
        Restore::<Given>::start(&bench.driver(), ring, jobs.collect(), options).unwrap();
    senders[0].send(write).unwrap();
    drop(senders);
    restore.finish(&mut || Ok(())).unwrap_err()
}

#[test]
fn zeros_and_bytes_that_are_nowhere() {
    let bench = Bench::filled(1, &SIZES);
    let bytes: u64 = SIZES.iter().sum();
    for (offset, len) in [(0, bytes + 1), (bytes, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let ring = ring();
        let error = restore_of(&bench, &ring, Write::Zeros { offset, len }, options()).to_string();
        assert!(error.contains("past the end of its contents"), "{error}");
        bench.assert_tidy(&ring);
    }
    for (offset, range) in [(bytes - 1, 0..2), (bytes, 4..5), (u64::MAX - 1, 0..4096)] {
        let ring = ring();
        let chunk = ring.try_take().unwrap();
        let error = restore_of(&bench, &ring, Write::Bytes { offset, chunk, range }, options());
        let error = error.to_string();
        assert!(error.contains("past the end of its contents"), "{error}");
        bench.assert_tidy(&ring);
    }
    #[allow(clippy::reversed_empty_ranges)] // on purpose
    for range in [0..(64 << 10) + 1, 2..1] {
        let ring = ring();
        let chunk = ring.try_take().unwrap();
        let error = restore_of(&bench, &ring, Write::Bytes { offset: 0, chunk, range }, options());
        let error = error.to_string();
        assert!(error.contains("a chunk is said to have bytes"), "{error}");
        bench.assert_tidy(&ring);
    }
}

/// Everything was sent, and the last of it is not in the GPU.
#[test]
fn a_last_copy_that_never_ends_fails_the_restore() {
    let bench = Bench::filled(1, &[4096]);
    let ring = ring();
    let hang = bench.host.plan(Fault::engine_hangs(0));
    let options = Options { fence_deadline: Duration::from_millis(200), ..options() };
    let write = Write::Bytes { offset: 0, chunk: ring.try_take().unwrap(), range: 0..4096 };
    let error = restore_of(&bench, &ring, write, options);
    assert!(
        matches!(error, GpuError::Device { source: DeviceError::Hung { .. }, .. }),
        "{error:?}"
    );
    assert_eq!(ring.condemned(), 1);
    hang.release();
    bench.host.take_complaints();
}

#[test]
fn bytes_that_come_twice() {
    let bench = Bench::filled(1, &SIZES);
    let ring = ring();
    let jobs = bench.contents().into_iter().map(|contents| RestoreJob { contents });
    let (restore, senders) =
        Restore::<Given>::start(&bench.driver(), &ring, jobs.collect(), options()).unwrap();
    for _ in 0..2 {
        senders[0].send(Write::Zeros { offset: 0, len: 4096 }).unwrap();
    }
    drop(senders);
    let error = restore.finish(&mut || Ok(())).unwrap_err().to_string();
    assert!(error.contains("come twice"), "{error}");
    bench.assert_tidy(&ring);
}

/// All that is left of such a ring is its size.
#[test]
fn a_ring_whose_chunks_are_all_lost_is_told_and_not_waited_for() {
    let bench = Bench::filled(1, &SIZES);
    let ring = Ring::new(4096, 2).unwrap();
    while let Some(chunk) = ring.try_take() {
        chunk.condemn();
    }
    for dumps in [true, false] {
        let error = attempt(&bench, &ring, dumps).unwrap_err().to_string();
        assert!(error.contains("start the program again"), "{error}");
    }
    bench.assert_no_complaint();
}

/// One GPU hangs and has what is left of the ring: the others, and whoever brings the bytes, wait
/// for chunks that never come.
#[test]
fn an_engine_that_hangs_with_the_last_chunks_of_a_small_ring() {
    for dumps in [true, false] {
        let bench = Bench::filled(3, &SIZES);
        let ring = Ring::new(4096, 2).unwrap();
        let hang = bench.host.plan(Fault::fence_never_signals(1).always());
        let images: Vec<_> = (0..3).map(|gpu| bench.bytes(gpu)).collect();
        let options = Options { fence_deadline: Duration::from_millis(300), ..options() };
        let error = if dumps {
            bench.dump_with(&ring, &Store::default(), options).unwrap_err()
        } else {
            bench.restore_with(&ring, &images, options).unwrap_err()
        };
        let gpu_id = bench.host.gpu_ids()[1];
        assert!(
            matches!(error, GpuError::Device { gpu_id: id, source: DeviceError::Hung { .. } } if id == gpu_id),
            "{error:?}"
        );
        assert!(ring.condemned() > 0);
        assert_eq!(ring.free() + ring.condemned(), ring.chunks());
        hang.release();
        bench.host.take_complaints();
        attempt(&bench, &self::ring(), dumps).unwrap();
        bench.assert_no_complaint();
    }
}

/// What is said is what the caller gave up for, and what the worker has it gives back when the
/// driver lets it go.
#[test]
fn a_call_that_blocks_does_not_keep_the_caller_from_giving_up() {
    let bench = Bench::filled(2, &SIZES);
    for call in CALLS {
        for dumps in [true, false] {
            let ring = ring();
            let plan = Fault::call(call).on(bench.copier.pid()).on_gpu(1).blocks();
            let plan = bench.host.plan(plan);
            let options = Options { grace: Duration::from_millis(50), ..options() };
            let mut check = || {
                if plan.hits() == 0 { Ok(()) } else { Err(Given("stopped by a signal")) }
            };
            let error = if dumps {
                let jobs = bench.contents().into_iter().map(|contents| {
                    let drain = Keep { gpu_id: contents.gpu_id, store: Store::default() };
                    DumpJob { contents, drain }
                });
                dump(&bench.driver(), &ring, jobs.collect(), options, &mut check).unwrap_err()
            } else {
                let jobs = bench.contents().into_iter().map(|contents| RestoreJob { contents });
                let (restore, senders) =
                    Restore::start(&bench.driver(), &ring, jobs.collect(), options).unwrap();
                for sender in &senders {
                    let write = Write::Zeros { offset: 0, len: 4096 };
                    sender.send_timeout(write, Duration::from_secs(5)).unwrap();
                }
                restore.finish(&mut check).unwrap_err()
            };
            assert_eq!(error.to_string(), "stopped by a signal", "{call}");
            plan.release();
            let deadline = std::time::Instant::now() + Duration::from_secs(20);
            while ring.free() < ring.chunks() || !bench.is_tidy() {
                assert!(std::time::Instant::now() < deadline, "{call}: {:?}", bench.host.check());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
