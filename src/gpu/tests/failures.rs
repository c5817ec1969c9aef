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
