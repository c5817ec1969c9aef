//! Queues of SDMA engines that run.

use std::time::{Duration, Instant};

use super::{cycle::Target, *};
use crate::{
    abi::{amdgpu::FAMILY_AI, sdma},
    device::{
        DeviceMemory, Kfd,
        sim::{QueueProgress, QueueState},
    },
};

const RING: u64 = 0x7000_0000_0000;
const READ: u64 = RING + 0x10_0000;
const WRITE: u64 = READ + 0x1000;
const DATA: u64 = RING + 0x20_0000;
const SLOTS: u64 = RING + 0x30_0000;
const RING_SIZE: u64 = 4096;
const DATA_SIZE: u64 = 64 << 10;
/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process with a queue, and what the process knows of it.
struct Ring {
    bench: Bench,
    queue_id: u32,
    doorbells: DeviceMemory,
    doorbell: usize,
    written: u64,
}

impl Ring {
    fn new() -> Ring {
        let bench = Bench::bound(KernelRelease::V6_12);
        let all = flags::GTT | flags::WRITABLE;
        for (va, size, flags) in [
            (RING, RING_SIZE, all),
            (READ, 4096, all),
            (WRITE, 4096, all),
            (DATA, DATA_SIZE, flags::VRAM | flags::WRITABLE),
            // Only to read.
            (DATA + DATA_SIZE, 4096, flags::GTT),
        ] {
            let handle = bench.alloc(va, size, flags).unwrap();
            assert_eq!(bench.map(handle, &[bench.id(0)]), (Ok(()), 1));
        }
        let args = CreateQueue {
            ring_base_address: RING,
            write_pointer_address: WRITE,
            read_pointer_address: READ,
            ring_size: u32::try_from(RING_SIZE).unwrap(),
            gpu_id: bench.id(0),
            queue_type: queue_type::SDMA,
            queue_percentage: 100,
            queue_priority: 7,
            ..CreateQueue::default()
        };
        let CreateQueue { queue_id, doorbell_offset, .. } = done(&*bench.kfd, &CREATE_QUEUE, args);
        let page = doorbell_offset & !8191;
        let doorbells = bench.kfd.map(page, 8192).unwrap();
        let doorbell = usize::try_from(doorbell_offset & 8191).unwrap();
        Ring { bench, queue_id, doorbells, doorbell, written: 0 }
    }

    /// Writes packets, and where they end.
    fn write(&mut self, words: &[u32]) {
        for word in words {
            let at = self.written % RING_SIZE;
            let pid = self.bench.pid();
            self.bench.host.write_bo(pid, RING, at, &word.to_le_bytes()).unwrap();
            self.written += 4;
        }
        self.put_long(WRITE, self.written);
    }

    fn ring(&self) {
        self.doorbells.write(self.doorbell, &self.written.to_le_bytes());
    }

    /// Writes packets and has them executed.
    fn run(&mut self, words: &[u32]) {
        self.write(words);
        self.ring();
        self.wait();
    }

    /// Waits until all is done.
    fn wait(&self) {
        self.until("the queue is still busy", |ring| ring.long(READ) == ring.written);
    }

    fn until(&self, what: &str, is_so: impl Fn(&Ring) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", self.progress());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn long(&self, va: u64) -> u64 {
        long(&self.bench.host, self.bench.pid(), va)
    }

    fn put_long(&self, va: u64, value: u64) {
        let bytes = value.to_le_bytes();
        self.bench.host.write_bo(self.bench.pid(), va, 0, &bytes).unwrap();
    }

    fn progress(&self) -> QueueProgress {
        self.bench.host.queues(self.bench.pid())[0].progress
    }

    fn event(&self, event_type: u32) -> u32 {
        let args = CreateEvent { event_type, ..CreateEvent::default() };
        done(&*self.bench.kfd, &CREATE_EVENT, args).event_id
    }

    /// Waits for an event: the result, and what it says.
    fn wait_event(&self, event_id: u32, timeout: u32) -> (u32, EventData) {
        let mut data = EventData { event_id, ..EventData::default() };
        let args = WaitEvents {
            events_ptr: std::ptr::from_mut(&mut data).expose_provenance() as u64,
            num_events: 1,
            timeout,
            ..WaitEvents::default()
        };
        (done(&*self.bench.kfd, &WAIT_EVENTS, args).wait_result, data)
    }

    fn complaints(&self) -> Vec<String> {
        self.until("it goes on", |ring| ring.progress().failed);
        self.bench.host.take_complaints().iter().map(ToString::to_string).collect()
    }
}

fn long(host: &SimHost, pid: u32, va: u64) -> u64 {
    let mut bytes = [0; 8];
    host.read_bo(pid, va, 0, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn split(va: u64) -> [u32; 2] {
    [u32::try_from(va & 0xffff_ffff).unwrap(), u32::try_from(va >> 32).unwrap()]
}

fn fence(va: u64, value: u32) -> [u32; 4] {
    let [low, high] = split(va);
    [sdma::OP_FENCE, low, high, value]
}

fn poll(va: u64, compare: u32, value: u32) -> [u32; 6] {
    let [low, high] = split(va);
    let header = sdma::OP_POLL_REGMEM | sdma::POLL_MEMORY | compare << sdma::POLL_COMPARE_SHIFT;
    [header, low, high, value, 0xffff, 0xfff << 16 | 4]
}

fn add_64(va: u64, value: i64) -> [u32; 8] {
    let ([low, high], [value, more]) = (split(va), split(value.cast_unsigned()));
    [sdma::OP_ATOMIC | sdma::ATOMIC_ADD_64 << sdma::ATOMIC_SHIFT, low, high, value, more, 0, 0, 0]
}

#[test]
fn packets_are_executed_in_their_order() {
    let mut ring = Ring::new();
    let (low, high) = (split(DATA)[0], split(DATA)[1]);
    ring.run(
        &[
            &[sdma::OP_CONST_FILL | sdma::FILL_DWORD, low, high, 0x0505_0505, 4095][..],
            &[sdma::OP_WRITE, low, high, 1, 0x1111, 0x2222],
            &sdma::copy(FAMILY_AI, DATA, DATA + 0x1000, 4096),
            &[sdma::OP_TIMESTAMP | sdma::TIMESTAMP_GLOBAL << 8, low + 0x3000, high],
            &add_64(DATA + 0x1000, -0x11),
            &[2 << 16, 9, 9],
            &fence(DATA + 0x2000, 7),
        ]
        .concat(),
    );
    assert_eq!(ring.long(DATA), 0x2222_0000_1111);
    assert_eq!(ring.long(DATA + 0x1000), 0x2222_0000_1100);
    assert_eq!(ring.long(DATA + 0x1ff8), 0x0505_0505_0505_0505);
    assert_eq!(ring.long(DATA + 0x2000), 7);
    assert!(ring.long(DATA + 0x3000) > 0);
    let expected = QueueProgress { read: 144, write: 144, packets: 7, failed: false };
    assert_eq!((ring.written, ring.progress()), (144, expected));
    assert_eq!(ring.bench.host.complaints(), []);
}

#[test]
fn a_ring_is_round_and_a_packet_may_come_in_parts() {
    let mut ring = Ring::new();
    for round in 0..300 {
        ring.run(&add_64(DATA, round));
        ring.run(&[sdma::OP_NOP]);
    }
    assert_eq!(ring.long(DATA), (0..300).sum::<u64>());
    assert!(ring.written > 2 * RING_SIZE);
    let before = ring.long(READ);
    let packet = fence(DATA, 9);
    ring.write(&packet[..3]);
    ring.ring();
    ring.until("it does not look", |ring| ring.progress().write == ring.written);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(ring.long(READ), before);
    ring.run(&packet[3..]);
    assert_eq!(ring.long(DATA) & 0xffff_ffff, 9);
}

#[test]
fn nothing_is_looked_at_before_the_doorbell_rings() {
    let mut ring = Ring::new();
    ring.run(&fence(DATA, 1));
    ring.write(&fence(DATA, 2));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(ring.long(DATA), 1);
    ring.ring();
    ring.wait();
    assert_eq!(ring.long(DATA), 2);
}

#[test]
fn an_interrupt_is_for_the_event_whose_slot_was_written() {
    let mut ring = Ring::new();
    let page = ring.bench.alloc(SLOTS, 32768, flags::GTT | flags::WRITABLE).unwrap();
    assert_eq!(ring.bench.map(page, &[ring.bench.id(0)]), (Ok(()), 1));
    let args = CreateEvent { event_page_offset: page, ..CreateEvent::default() };
    let first = done(&*ring.bench.kfd, &CREATE_EVENT, args).event_id;
    let second = ring.event(event_type::SIGNAL);
    let signaled = |ring: &Ring| {
        let events = ring.bench.host.events(ring.bench.pid());
        [events[0].signaled, events[1].signaled]
    };
    ring.run(&[sdma::OP_TRAP, first]);
    assert_eq!(signaled(&ring), [false; 2], "its slot was not written");
    let slot = |id: u32| SLOTS + u64::from(id) * 8;
    ring.write(&[&fence(slot(second), second)[..], &[sdma::OP_TRAP, second]].concat());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ring.wait_event(second, 60_000).0);
        ring.ring();
        assert_eq!(waiting.join().unwrap(), wait_result::COMPLETE);
    });
    assert_eq!(ring.long(slot(second)), u64::MAX, "the kernel clears it");
    assert_eq!(signaled(&ring), [false, true]);
    // A number that is none: whoever's slot is written.
    ring.wait();
    ring.run(&[&fence(slot(first), 0)[..], &[sdma::OP_TRAP, 4095]].concat());
    assert_eq!(signaled(&ring), [true, true]);
}

#[test]
fn what_no_queue_survives_is_told_to_the_process() {
    let read_only = DATA + DATA_SIZE;
    for (va, read_only) in [(DATA + (1 << 20), false), (read_only, true)] {
        let mut ring = Ring::new();
        let event = ring.event(event_type::MEMORY);
        ring.write(&fence(va, 1));
        ring.ring();
        let (result, data) = ring.wait_event(event, 60_000);
        let [low, high] = split(va);
        assert_eq!((result, &data.data[4..7]), (0, &[low, high, ring.bench.id(0)][..]));
        let complaints = ring.complaints();
        let why = if read_only { "it is not mapped for this" } else { "nothing is mapped there" };
        assert!(complaints[0].contains(&format!("writing {va:#x}: {why}")), "{complaints:?}");
        assert_eq!(ring.long(READ), 0);
    }
    for words in [&[0xff; 2][..], &vec![sdma::OP_NOP; 1025]] {
        let mut ring = Ring::new();
        let event = ring.event(event_type::HW_EXCEPTION);
        ring.write(words);
        ring.ring();
        let (_, data) = ring.wait_event(event, 60_000);
        assert_eq!(data.data[3], ring.bench.id(0));
        assert!(ring.complaints()[0].contains("queue 0 on GPU"));
    }
}

#[test]
fn a_queue_that_is_stopped_goes_on_with_what_came_meanwhile() {
    let mut ring = Ring::new();
    ring.run(&fence(DATA, 1));
    ring.bench.criu(criu_op::PROCESS_INFO).unwrap();
    ring.write(&fence(DATA, 2));
    ring.ring();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(ring.long(DATA), 1, "it runs while it is stopped");
    ring.bench.criu(criu_op::UNPAUSE).unwrap();
    ring.wait();
    assert_eq!(ring.long(DATA), 2);
    // By the process itself as well.
    let update = |percentage| UpdateQueue {
        ring_base_address: RING,
        queue_id: ring.queue_id,
        ring_size: u32::try_from(RING_SIZE).unwrap(),
        queue_percentage: percentage,
        queue_priority: 7,
    };
    done(&*ring.bench.kfd, &UPDATE_QUEUE, update(0));
    let again = update(100);
    ring.write(&fence(DATA, 3));
    ring.ring();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(ring.long(DATA), 2);
    done(&*ring.bench.kfd, &UPDATE_QUEUE, again);
    ring.wait();
    assert_eq!(ring.long(DATA), 3);
}

#[test]
fn a_queue_goes_on_in_the_middle_of_its_work_on_another_machine() {
    let mut ring = Ring::new();
    // It has been round once, does a part, and waits.
    for _ in 0..200 {
        ring.run(&add_64(DATA + 8, 1));
    }
    ring.write(&[&add_64(DATA + 8, 1)[..], &poll(DATA, 3, 5), &add_64(DATA + 8, 1)].concat());
    ring.ring();
    let wait_at = ring.written - 14 * 4;
    ring.until("it does not come to its wait", |ring| ring.long(READ) == wait_at);
    let (host, pid) = (&ring.bench.host, ring.bench.pid());
    let criu = host.process(Credentials::ROOT);
    host.trace(&criu, &ring.bench.process);
    let fd = ring.bench.kfd.as_fd().try_clone_to_owned().unwrap();
    let kfd = Kfd::adopt(&criu, fd).unwrap();
    let checkpoint = kfd.checkpoint(kfd.process_info().unwrap()).unwrap();
    assert_eq!(host.queues(pid)[0].state, QueueState::Evicted);
    kfd.unpause().unwrap();

    let other = SimHost::new(host.machine().clone().moved(140, 0x80)).unwrap();
    let target = Target::new(&other);
    target.restore(&checkpoint).unwrap();
    let task = target.task.pid();
    for (va, size) in [(RING, RING_SIZE), (READ, 4096), (WRITE, 4096), (DATA, DATA_SIZE)] {
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        host.read_bo(pid, va, 0, &mut bytes).unwrap();
        other.write_bo(task, va, 0, &bytes).unwrap();
    }
    Kfd::open(&other.process(Credentials::ROOT)).unwrap().resume(task).unwrap();
    assert!(other.wait_resumed(task, PATIENCE));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(long(&other, task, DATA + 8), 201, "it waits");
    other.write_bo(task, DATA, 0, &[5]).unwrap();
    let begun = Instant::now();
    while long(&other, task, READ) != ring.written {
        assert!(begun.elapsed() < PATIENCE, "{:?}", other.queues(task));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(long(&other, task, DATA + 8), 202);
    assert_eq!(other.queues(task)[0].progress.packets, 2);
    assert_eq!(other.complaints(), []);
    // And where it came from, it goes on too.
    ring.put_long(DATA, 5);
    ring.wait();
    assert_eq!(ring.long(DATA + 8), 202);
}
