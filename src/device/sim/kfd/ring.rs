//! A user queue of an SDMA engine that runs: a thread that watches its doorbell.
//!
//! The hardware has a queue's read pointer, and takes the write pointer from memory when the queue
//! begins to run, and from the doorbell after that. A process that is stopped in the middle of its
//! work goes on there: the read pointer is part of a checkpoint.
//!
//! # Limits
//!
//! Each queue has an engine of its own, at no particular speed.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use nix::errno::Errno;

use super::{
    super::{
        SimHost,
        arena::Piece,
        caller::UserMemory,
        engine::{Ring, SharedRanges, Step, Trouble, UserEngine},
        host::Shared,
        object::{Object, Store},
    },
    event::Events,
    gate::Gate,
    memory::DOORBELL_SLICE,
    process::{Device, KfdProcess},
    queue::{Properties, Queue},
};
use crate::abi::{amdgpu::GemCreateIn, kfd::event_type};

/// How far a queue is.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    ring: Mutex<(u64, u64)>,
    read: AtomicU64,
    write: AtomicU64,
    packets: AtomicU64,
    failed: AtomicBool,
}

/// How far a queue of an SDMA engine is; all zero for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueProgress {
    /// The bytes of its ring that were executed, ever.
    pub read: u64,
    /// The bytes of its ring that the engine knows of, ever.
    pub write: u64,
    /// The packets that this machine has executed.
    pub packets: u64,
    /// It did something that no queue survives.
    pub failed: bool,
}

/// Where the engine's pointers are in the state of a queue, as GFX9 has it.
const MQD_READ: std::ops::Range<usize> = 12..20;
const MQD_WRITE: std::ops::Range<usize> = 20..28;

impl Cursor {
    /// Of a queue that begins.
    pub(super) fn new(properties: &Properties, mqd: &mut [u8]) -> Arc<Cursor> {
        let cursor = Arc::<Cursor>::default();
        cursor.set_ring(properties);
        if properties.is_sdma() {
            cursor.save(mqd);
        }
        cursor
    }

    pub(super) fn set_ring(&self, properties: &Properties) {
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) =
            (properties.ring_address, properties.ring_size);
    }

    /// Writes the pointers into what the hardware knows of the queue.
    pub(super) fn save(&self, mqd: &mut [u8]) {
        for (range, pointer) in [(MQD_READ, &self.read), (MQD_WRITE, &self.write)] {
            if let Some(field) = mqd.get_mut(range) {
                field.copy_from_slice(&pointer.load(Ordering::Acquire).to_le_bytes());
            }
        }
    }

    /// Goes on where a queue was stopped.
    pub(super) fn load(&self, mqd: &[u8]) {
        for (range, pointer) in [(MQD_READ, &self.read), (MQD_WRITE, &self.write)] {
            let field = mqd.get(range).and_then(|field| field.first_chunk());
            pointer.store(field.map_or(0, |field| u64::from_le_bytes(*field)), Ordering::Release);
        }
    }

    pub(super) fn progress(&self) -> QueueProgress {
        QueueProgress {
            read: self.read.load(Ordering::Acquire),
            write: self.write.load(Ordering::Acquire),
            packets: self.packets.load(Ordering::Acquire),
            failed: self.failed.load(Ordering::Acquire),
        }
    }
}

/// Starts the thread of a queue that has just got its number, if it is one of an SDMA engine.
pub(super) fn start(
    host: &SimHost,
    pid: u32,
    process: &mut KfdProcess,
    id: u32,
    memory: Arc<dyn UserMemory>,
) -> nix::Result<()> {
    let KfdProcess { queues, devices, .. } = process;
    let queue = queues.get(id).filter(|queue| queue.properties.is_sdma());
    let Some(queue) = queue else { return Ok(()) };
    let device = &mut devices[queue.device];
    let vm = Arc::clone(&device.bound(Errno::ESRCH)?.vm);
    let place = queue.device;
    let owner = Arc::clone(&memory);
    let ranges = RangesOf { host: Arc::downgrade(&host.shared), pid, place, memory };
    let runner = Runner {
        host: Arc::downgrade(&host.shared),
        owner,
        pid,
        id,
        gate: Arc::clone(&queue.gate),
        cursor: Arc::clone(&queue.cursor),
        engine: UserEngine::new(&host.shared.engines[device.gpu], &vm, Box::new(ranges)),
        read_pointer: queue.properties.read_pointer,
        write_pointer: queue.properties.write_pointer,
        doorbells: doorbells(host, device)?,
        doorbell: u64::from(queue.doorbell) * 8 % DOORBELL_SLICE,
        opened: 0,
        rung: 0,
    };
    let thread = std::thread::Builder::new().name(format!("queue{id}.{pid}"));
    thread.spawn(move || runner.run()).map(drop).map_err(|_| Errno::ENOMEM)
}

/// The doorbells of a process on a GPU.
pub(super) fn doorbells(host: &SimHost, device: &mut Device) -> nix::Result<Arc<Piece>> {
    let piece = match &device.doorbells {
        Some(piece) => piece,
        None => device.doorbells.insert(Arc::new(host.shared.gtt.piece(DOORBELL_SLICE)?)),
    };
    Ok(Arc::clone(piece))
}

/// The SVM ranges of a process, for one of its devices.
#[derive(Debug)]
struct RangesOf {
    host: Weak<Shared>,
    pid: u32,
    place: usize,
    memory: Arc<dyn UserMemory>,
}

impl SharedRanges for RangesOf {
    fn at(&self, va: u64) -> Option<(Arc<Object>, u64)> {
        let host = SimHost { shared: self.host.upgrade()? };
        let mut state = host.state();
        let process = state.kfd.process(self.pid).ok()?;
        let device = process.devices.get(self.place)?;
        let (start, size) = process.ranges.for_gpu(device.user_id, va)?;
        let (pid, memory) = (self.pid, Arc::clone(&self.memory));
        let create = GemCreateIn { bo_size: size, ..GemCreateIn::default() };
        let store = Store::User { memory, address: start, pid };
        let object = Object { gpu: device.gpu, size, store, create, mmap_offset: 0 };
        Some((Arc::new(object), va - start))
    }
}

struct Runner {
    host: Weak<Shared>,
    owner: Arc<dyn UserMemory>,
    pid: u32,
    id: u32,
    gate: Arc<Gate>,
    cursor: Arc<Cursor>,
    engine: UserEngine,
    read_pointer: u64,
    write_pointer: u64,
    doorbells: Arc<Piece>,
    doorbell: u64,
    /// How often the gate had been opened when the queue began to run.
    opened: u64,
    /// What was in the doorbell.
    rung: u64,
}

/// What came of a look at the queue.
enum Turn {
    Worked,
    Nothing,
    Trap { context: u32, len: u64 },
    Failed(Trouble),
}

impl Runner {
    fn run(mut self) {
        let (gate, never) = (Arc::clone(&self.gate), AtomicBool::new(false));
        let mut idle = Idle::default();
        let mut turn = Turn::Nothing;
        while gate.pass(&never, || turn = self.turn()) {
            if self.host.strong_count() == 0 {
                return;
            }
            match std::mem::replace(&mut turn, Turn::Nothing) {
                Turn::Worked => idle = Idle::default(),
                Turn::Nothing => idle.pause(),
                Turn::Trap { context, len } => {
                    idle = Idle::default();
                    if let Err(trouble) = self.trap(context, len) {
                        return self.fail(&trouble);
                    }
                }
                Turn::Failed(trouble) => return self.fail(&trouble),
            }
        }
    }

    /// Executes a packet, if there is one.
    fn turn(&mut self) -> Turn {
        self.try_turn().unwrap_or_else(Turn::Failed)
    }

    fn try_turn(&mut self) -> Result<Turn, Trouble> {
        let write = self.look()?;
        let (address, size) = *self.cursor.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let read = self.cursor.read.load(Ordering::Acquire);
        if read == write {
            return Ok(Turn::Nothing);
        }
        Ok(match self.engine.step(Ring { address, size, read, write })? {
            Step::NotYet => Turn::Nothing,
            Step::Trap { context, len } => Turn::Trap { context, len },
            Step::Done(len) => {
                self.advance(len)?;
                Turn::Worked
            }
        })
    }

    /// Up to where there are packets.
    fn look(&mut self) -> Result<u64, Trouble> {
        // Before the pointer: who writes the pointer first and rings then is not missed.
        let rung = self.rung();
        let opened = self.gate.opened();
        if opened != self.opened {
            let mut pointer = [0; 8];
            self.engine.read(self.write_pointer, &mut pointer)?;
            self.cursor.write.store(u64::from_le_bytes(pointer), Ordering::Release);
            // The process may have been stopped before it was told.
            self.show(self.cursor.read.load(Ordering::Acquire))?;
        } else if rung != self.rung {
            self.cursor.write.store(rung, Ordering::Release);
        }
        (self.opened, self.rung) = (opened, rung);
        Ok(self.cursor.write.load(Ordering::Acquire))
    }

    fn rung(&self) -> u64 {
        let mut value = [0; 8];
        // SAFETY: the doorbell is inside the piece, and there is room.
        let read = unsafe { self.doorbells.read(self.doorbell, value.as_mut_ptr(), value.len()) };
        read.map_or(self.rung, |()| u64::from_le_bytes(value))
    }

    /// A packet is done, and the process may use its place in the ring again.
    fn advance(&self, len: u64) -> Result<(), Trouble> {
        self.show(self.count(len))
    }

    /// A packet is done: up to where that is.
    fn count(&self, len: u64) -> u64 {
        let read = self.cursor.read.load(Ordering::Acquire).wrapping_add(len);
        self.cursor.read.store(read, Ordering::Release);
        self.cursor.packets.fetch_add(1, Ordering::AcqRel);
        read
    }

    fn show(&self, read: u64) -> Result<(), Trouble> {
        self.engine.write(self.read_pointer, &read.to_le_bytes())
    }

    /// Raises an interrupt. The gate does not do here, since who stops queues has the lock of the
    /// machine: with that lock, the interrupt and the engine's read pointer go together.
    fn trap(&self, context: u32, len: u64) -> Result<(), Trouble> {
        let Some(shared) = self.host.upgrade() else { return Ok(()) };
        let host = SimHost { shared };
        let read = {
            let state = &mut *host.state();
            let Ok(process) = state.kfd.process(self.pid) else { return Ok(()) };
            if !self.is_running(process.queues.get(self.id)) {
                return Ok(());
            }
            let read = self.count(len);
            process.events.interrupt(context);
            process.changed.tell();
            read
        };
        // Memory of a process is not for those who have the lock. Where the queue was stopped since,
        // the process is told when it goes on.
        let (mut shown, never) = (Ok(()), AtomicBool::new(false));
        self.gate.pass(&never, || shown = self.show(read));
        shown
    }

    fn is_running(&self, queue: Option<&Queue>) -> bool {
        queue.is_some_and(|queue| Arc::ptr_eq(&queue.gate, &self.gate) && queue.is_active())
    }

    /// The queue does not go on.
    fn fail(&self, trouble: &Trouble) {
        // A process that ends takes its memory along, and its queues are next.
        if self.owner.is_going() {
            return;
        }
        let Some(shared) = self.host.upgrade() else { return };
        let host = SimHost { shared };
        let state = &mut *host.state();
        let Ok(process) = state.kfd.process(self.pid) else { return };
        let Some(queue) = process.queues.get(self.id) else { return };
        let gpu_id = process.devices[queue.device].user_id;
        self.cursor.failed.store(true, Ordering::Release);
        tell(&mut process.events, gpu_id, trouble);
        process.changed.tell();
        let what = match trouble {
            Trouble::Packet(what) => what.clone(),
            Trouble::Page { va, written, why } => {
                let access = if *written { "writing" } else { "reading" };
                format!("{access} {va:#x}: {why}")
            }
        };
        state.complain(self.pid, format!("queue {} on GPU {gpu_id}: {what}", self.id));
    }
}

/// Tells a process as KFD does.
fn tell(events: &mut Events, gpu_id: u32, trouble: &Trouble) {
    match *trouble {
        Trouble::Page { va, written, .. } => {
            let [low, high] = [va & 0xffff_ffff, va >> 32];
            let word = |half| u32::try_from(half).unwrap_or(u32::MAX);
            // Not present, read only, no execute, imprecise; the address; the GPU; the kind of error.
            let read_only = u32::from(written);
            let data = [1, read_only, 0, 1, word(low), word(high), gpu_id, 0];
            events.exception(event_type::MEMORY, data);
        }
        // A reset of the GPU, because it hung: its kind, its cause, whether memory was lost, the GPU.
        Trouble::Packet(_) => {
            events.exception(event_type::HW_EXCEPTION, [0, 0, 0, gpu_id, 0, 0, 0, 0]);
        }
    }
}

/// How long a queue with nothing to do is left alone.
#[derive(Debug, Default)]
struct Idle {
    turns: u32,
    since: Option<Instant>,
}

impl Idle {
    /// A look that is free, for work that comes at once.
    const SPINS: u32 = 20;
    const SHORT: Duration = Duration::from_micros(100);
    const MEDIUM: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_millis(10);

    fn pause(&mut self) {
        self.turns = self.turns.saturating_add(1);
        if self.turns <= Self::SPINS {
            std::thread::yield_now();
            return;
        }
        let idle = self.since.get_or_insert_with(Instant::now).elapsed();
        std::thread::sleep(match idle {
            _ if idle < 20 * Self::SHORT => Self::SHORT,
            _ if idle < 200 * Self::MEDIUM => Self::MEDIUM,
            _ => Self::LONG,
        });
    }
}
