//! Events.

use std::time::Duration;

use super::*;
use crate::device::sim::EventInfo;

const VA: u64 = 0x7000_0000_0000;

fn create(bench: &Bench, event_type: u32, auto_reset: bool) -> CreateEvent {
    let args = CreateEvent { event_type, auto_reset: auto_reset.into(), ..CreateEvent::default() };
    done(&*bench.kfd, &CREATE_EVENT, args)
}

/// Waits; the answer, the result, what was told of the events.
fn wait(
    kfd: &dyn DeviceFile,
    ids: &[u32],
    all: bool,
    timeout: u32,
) -> (nix::Result<()>, u32, Vec<EventData>) {
    let (answer, args, events) = wait_args(kfd, ids, all, timeout);
    (answer, args.wait_result, events)
}

/// The same with the whole argument.
fn wait_args(
    kfd: &dyn DeviceFile,
    ids: &[u32],
    all: bool,
    timeout: u32,
) -> (nix::Result<()>, WaitEvents, Vec<EventData>) {
    let event = |&event_id: &u32| EventData { event_id, ..EventData::default() };
    let mut events: Vec<_> = ids.iter().map(event).collect();
    let args = WaitEvents {
        events_ptr: events.as_mut_ptr().expose_provenance() as u64,
        num_events: u32::try_from(ids.len()).unwrap(),
        wait_for_all: all.into(),
        timeout,
        wait_result: 77,
    };
    let (answer, args) = ioctl(kfd, &WAIT_EVENTS, args);
    (answer, args, events)
}

fn set(bench: &Bench, event_id: u32) {
    done(&*bench.kfd, &SET_EVENT, SetEvent { event_id, pad: 0 });
}

#[test]
fn numbers_and_slots() {
    let bench = Bench::bound(KernelRelease::V6_12);
    let page = bench.mapped(VA, 32768);
    bench.host.write_bo(bench.pid(), VA, 0, &[1; 32768]).unwrap();
    let small = bench.mapped(VA + 32768, 4096);
    let with_page = |page| CreateEvent { event_page_offset: page, ..CreateEvent::default() };
    let call = |args| answer(&*bench.kfd, &CREATE_EVENT, args);
    assert_eq!(call(with_page(small)), Err(Errno::EINVAL));
    assert_eq!(call(with_page(page + 9)), Err(Errno::EINVAL));
    let first = done(&*bench.kfd, &CREATE_EVENT, with_page(page));
    assert_eq!((first.event_id, first.event_trigger_data, first.event_slot_index), (1, 1, 1));
    assert_eq!(first.event_page_offset, 0x8000_0000_0000_0000);
    let mut slots = [0; 32768];
    bench.host.read_bo(bench.pid(), VA, 0, &mut slots).unwrap();
    assert!(slots.iter().all(|&byte| byte == 0xff), "the kernel clears the page");
    assert_eq!(call(with_page(page)), Err(Errno::EINVAL), "a second page");
    assert_eq!(bench.free(page), Err(Errno::EPERM));
    let other = create(&bench, event_type::MEMORY, false);
    assert_eq!((other.event_id, other.event_page_offset), (0x4000_0000, 0));
    let debug = create(&bench, event_type::DEBUG_EVENT, false);
    assert_eq!((debug.event_id, debug.event_slot_index), (2, 2));
    let unknown = CreateEvent { event_type: 9, ..CreateEvent::default() };
    assert_eq!(call(unknown), Err(Errno::EINVAL));
    for id in 3..4096 {
        assert_eq!(create(&bench, event_type::SIGNAL, true).event_id, id);
    }
    assert_eq!(call(CreateEvent::default()), Err(Errno::ENOSPC));
    let destroy = |event_id| answer(&*bench.kfd, &DESTROY_EVENT, DestroyEvent { event_id, pad: 0 });
    assert_eq!(destroy(7), Ok(()));
    assert_eq!(destroy(7), Err(Errno::EINVAL));
    assert_eq!(create(&bench, event_type::SIGNAL, true).event_id, 7);
}

#[test]
fn without_a_page_of_its_own_a_process_has_few_signals() {
    let bench = Bench::bound(KernelRelease::V6_12);
    for id in 1..256 {
        assert_eq!(create(&bench, event_type::SIGNAL, true).event_id, id);
    }
    let call = || answer(&*bench.kfd, &CREATE_EVENT, CreateEvent::default());
    assert_eq!(call(), Err(Errno::ENOSPC));
    drop(bench.kfd.map(mmap::TYPE_EVENTS, 32768).unwrap());
    assert_eq!(call(), Ok(()));
    let page = bench.mapped(VA, 32768);
    let late = CreateEvent { event_page_offset: page, ..CreateEvent::default() };
    assert_eq!(answer(&*bench.kfd, &CREATE_EVENT, late), Err(Errno::EINVAL));
}

#[test]
fn setting_and_waiting() {
    let bench = Bench::new(KernelRelease::V6_12);
    let [auto, manual] =
        [true, false].map(|auto| create(&bench, event_type::SIGNAL, auto).event_id);
    let memory = create(&bench, event_type::MEMORY, false).event_id;
    let result = |ids: &[u32], all| {
        let (answer, result, _) = wait(&*bench.kfd, ids, all, 0);
        assert_eq!(answer, Ok(()));
        result
    };
    assert_eq!(result(&[auto, manual], false), wait_result::TIMEOUT);
    set(&bench, auto);
    assert_eq!(result(&[auto, manual], true), wait_result::TIMEOUT);
    set(&bench, auto);
    assert_eq!(result(&[auto, manual], false), wait_result::COMPLETE);
    assert_eq!(result(&[auto], false), wait_result::TIMEOUT, "it was taken");
    set(&bench, manual);
    assert_eq!(result(&[manual], false), wait_result::COMPLETE);
    assert_eq!(result(&[manual], false), wait_result::COMPLETE, "it stays");
    done(&*bench.kfd, &RESET_EVENT, ResetEvent { event_id: manual, pad: 0 });
    assert_eq!(result(&[manual], false), wait_result::TIMEOUT);
    assert_eq!(wait(&*bench.kfd, &[99], false, 0).0, Err(Errno::EINVAL));
    for event_id in [99, memory] {
        let set = SetEvent { event_id, pad: 0 };
        assert_eq!(answer(&*bench.kfd, &SET_EVENT, set), Err(Errno::EINVAL));
        let reset = ResetEvent { event_id, pad: 0 };
        assert_eq!(answer(&*bench.kfd, &RESET_EVENT, reset), Err(Errno::EINVAL));
    }
    let bad = WaitEvents { events_ptr: 8, num_events: 1, ..WaitEvents::default() };
    assert_eq!(answer(&*bench.kfd, &WAIT_EVENTS, bad), Err(Errno::EFAULT));
    let info = |id, kind, auto_reset| EventInfo { id, kind, auto_reset, signaled: false };
    let expected = [
        info(auto, event_type::SIGNAL, true),
        info(manual, event_type::SIGNAL, false),
        info(memory, event_type::MEMORY, false),
    ];
    assert_eq!(bench.host.events(bench.pid()), expected);
}

#[test]
fn who_waits_holds_up_nobody_and_wakes() {
    let bench = Bench::new(KernelRelease::V6_12);
    let [one, two, lost] = [(); 3].map(|()| create(&bench, event_type::SIGNAL, true).event_id);
    let kfd = &*bench.kfd;
    std::thread::scope(|scope| {
        let both = scope.spawn(|| wait(kfd, &[one, two], true, u32::MAX));
        let other = scope.spawn(|| wait(kfd, &[lost], false, u32::MAX));
        std::thread::sleep(Duration::from_millis(20));
        set(&bench, one);
        set(&bench, two);
        let (answer, result, _) = both.join().unwrap();
        assert_eq!((answer, result), (Ok(()), wait_result::COMPLETE));
        done(kfd, &DESTROY_EVENT, DestroyEvent { event_id: lost, pad: 0 });
        let (answer, result, _) = other.join().unwrap();
        assert_eq!((answer, result), (Err(Errno::EIO), wait_result::FAIL));
    });
    assert_eq!(wait(kfd, &[one, two], false, 1).1, wait_result::TIMEOUT, "both were taken");
}

#[test]
fn who_is_interrupted_loses_no_event_and_no_time() {
    const LONG: u32 = 3_600_000;
    let bench = Bench::new(KernelRelease::V6_12);
    let [auto, manual, never] =
        [true, false, true].map(|auto| create(&bench, event_type::SIGNAL, auto).event_id);
    let (kfd, interrupt) = (&*bench.kfd, &bench.process.interrupt);
    for timeout in [LONG, u32::MAX] {
        let ids = [auto, manual, never];
        std::thread::scope(|scope| {
            let waiting = scope.spawn(move || wait_args(kfd, &ids, true, timeout));
            std::thread::sleep(Duration::from_millis(20));
            // It takes the first; the others keep it waiting.
            set(&bench, auto);
            std::thread::sleep(Duration::from_millis(20));
            interrupt.raise();
            let (answer, args, _) = waiting.join().unwrap();
            assert_eq!((answer, args.wait_result), (Err(Errno::EINTR), wait_result::FAIL));
            match timeout {
                LONG => assert!((1..LONG).contains(&args.timeout), "{}", args.timeout),
                _ => assert_eq!(args.timeout, timeout),
            }
        });
        let signaled = bench.host.events(bench.pid()).into_iter().map(|event| event.signaled);
        assert_eq!(signaled.collect::<Vec<_>>(), [true, false, false], "given back");
        // A signal comes before an event, and before a look without waiting.
        let (answer, args, _) = wait_args(kfd, &[auto], false, 0);
        assert_eq!((answer, args.timeout), (Err(Errno::EINTR), 0));
        interrupt.lower();
        assert_eq!(wait(kfd, &[auto], false, 0).1, wait_result::COMPLETE);
        assert_eq!(wait(kfd, &[auto], false, 0).1, wait_result::TIMEOUT);
    }
}
