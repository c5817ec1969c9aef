//! Events: numbers, the page of their slots, and who waits for them.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::errno::Errno;

use super::{
    super::{
        arena::Piece,
        host::{SimHost, State},
        object::Object,
    },
    Io,
    memory::{read_array, write_array},
    process::KfdProcess,
    slots::Slots,
};
use crate::abi::kfd::{
    CreateEvent, DestroyEvent, EventData, ResetEvent, SIGNAL_EVENT_LIMIT, SetEvent, WaitEvents,
    event_type, mmap, wait_result,
};

/// The page of all slots, in bytes.
pub(super) const PAGE_SIZE: u64 = SLOTS as u64 * 8;
const SLOTS: usize = SIGNAL_EVENT_LIMIT as usize;
/// Signal events of a process that has no page of its own, before it maps the kernel's.
const FEW_SIGNALS: u32 = 256;
/// Events without a slot have numbers from here.
const FIRST_OTHER: u32 = 1 << 30;
const OTHERS_END: u32 = 1 << 31;
/// What a slot holds whose event has not been signalled.
const UNSIGNALLED: [u8; 8] = [0xff; 8];
/// The most events in one call.
const MOST_AT_ONCE: u32 = 1 << 16;
/// A timeout that never comes.
const FOREVER: u32 = u32::MAX;

/// The events of a process.
#[derive(Debug)]
pub(super) struct Events {
    all: Slots<Event>,
    page: Option<Page>,
    /// How many slots may be used.
    slots: u32,
}

#[derive(Debug)]
enum Page {
    /// A BO of the process.
    User { handle: u64, object: Arc<Object> },
    /// The kernel's, for processes that bring none.
    Kernel(Arc<Piece>),
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub kind: u32,
    pub auto_reset: bool,
    pub signaled: bool,
    /// What is told of a memory or a hardware exception.
    pub exception: [u32; 8],
    /// How often it was set.
    times: u64,
    waiters: u32,
}

impl Event {
    pub(super) fn new(kind: u32, auto_reset: bool) -> Self {
        Event { kind, auto_reset, signaled: false, exception: [0; 8], times: 0, waiters: 0 }
    }

    fn set(&mut self) {
        self.times += 1;
        // Those who wait take it all at once; then nothing is left for who comes later.
        self.signaled = !self.auto_reset || self.waiters == 0;
    }

    fn has_slot(&self) -> bool {
        matches!(self.kind, event_type::SIGNAL | event_type::DEBUG_EVENT)
    }
}

impl Default for Events {
    fn default() -> Self {
        Events { all: Slots::default(), page: None, slots: FEW_SIGNALS }
    }
}

impl Events {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Event)> {
        self.all.iter()
    }

    /// The handle of the BO with the slots.
    pub(super) fn page_handle(&self) -> Option<u64> {
        match self.page {
            Some(Page::User { handle, .. }) => Some(handle),
            _ => None,
        }
    }

    /// The kernel's own page, for mmap; all of its slots can be used from then on.
    pub(super) fn map_kernel_page(&mut self, len: u64) -> Option<&Arc<Piece>> {
        let Some(Page::Kernel(piece)) = &self.page else { return None };
        self.slots = u32::try_from(len / 8).unwrap_or(SIGNAL_EVENT_LIMIT);
        Some(piece)
    }

    /// Gives all up: those who wait find that their events are gone.
    pub(super) fn end(&mut self) {
        *self = Events::default();
    }

    /// Enters an event, under a number that it had elsewhere where there is one.
    pub(super) fn add(
        &mut self,
        host: &SimHost,
        event: Event,
        wanted: Option<u32>,
    ) -> nix::Result<u32> {
        if event.has_slot() && self.page.is_none() {
            let piece = host.shared.gtt.piece(PAGE_SIZE)?;
            piece.memory()?.write(0, &[0xff; SLOTS * 8]);
            self.page = Some(Page::Kernel(Arc::new(piece)));
        }
        let id = match wanted {
            Some(id) => {
                self.all.insert_at(id, event).map_err(|_| Errno::ENOSPC)?;
                id
            }
            None if event.has_slot() => {
                self.all.insert(1, self.slots, event).ok_or(Errno::ENOSPC)?
            }
            None => self.all.insert(FIRST_OTHER, OTHERS_END, event).ok_or(Errno::ENOSPC)?,
        };
        if event.has_slot() {
            self.clear_slot(id)?;
        }
        Ok(id)
    }

    /// The interrupt of an engine, for an event whose slot has been written. Where it has not, the
    /// number is taken to be wrong, and every event is signalled whose slot has been.
    pub(super) fn interrupt(&mut self, id: u32) {
        let named = Some(id).filter(|&id| self.is_written(id));
        let ids = match named {
            Some(id) => vec![id],
            None => self.all.iter().map(|(id, _)| id).filter(|&id| self.is_written(id)).collect(),
        };
        for id in ids {
            let Some(event) = self.all.get_mut(id).filter(|event| event.has_slot()) else {
                continue;
            };
            event.set();
            let _ = self.clear_slot(id);
        }
    }

    /// Signals every event of a kind of exceptions.
    pub(super) fn exception(&mut self, kind: u32, data: [u32; 8]) {
        for (_, event) in self.all.iter_mut().filter(|(_, event)| event.kind == kind) {
            event.exception = data;
            event.set();
        }
    }

    fn slots_piece(&self) -> Option<&Piece> {
        match &self.page {
            Some(Page::User { object, .. }) => object.piece(),
            Some(Page::Kernel(piece)) => Some(&**piece),
            None => None,
        }
    }

    fn is_written(&self, id: u32) -> bool {
        let piece = self.slots_piece().filter(|_| id < SIGNAL_EVENT_LIMIT);
        let Some(Ok(memory)) = piece.map(Piece::memory) else { return false };
        let mut slot = UNSIGNALLED;
        memory.read(id as usize * 8, &mut slot);
        slot != UNSIGNALLED
    }

    fn clear_slot(&self, id: u32) -> nix::Result<()> {
        if let Some(piece) = self.slots_piece().filter(|_| id < SIGNAL_EVENT_LIMIT) {
            piece.memory()?.write(id as usize * 8, &UNSIGNALLED);
        }
        Ok(())
    }
}

/// Makes a BO of the process the page of the slots.
pub(super) fn set_page(process: &mut KfdProcess, handle: u64) -> nix::Result<()> {
    if process.events.page.is_some() {
        return Err(Errno::EINVAL);
    }
    let (place, number) = process.locate(handle).ok_or(Errno::EINVAL)?;
    process.devices[place].bound(Errno::EINVAL)?;
    let bo = process.devices[place].bos.get(number).ok_or(Errno::EINVAL)?;
    if bo.object.size < PAGE_SIZE {
        return Err(Errno::EINVAL);
    }
    let object = Arc::clone(&bo.object);
    let memory = object.piece().ok_or(Errno::EINVAL)?.memory()?;
    memory.write(0, &[0xff; SLOTS * 8]);
    process.events.page = Some(Page::User { handle, object });
    process.events.slots = SIGNAL_EVENT_LIMIT;
    Ok(())
}

pub(super) fn create(io: &mut Io<'_, '_>, args: &mut CreateEvent) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    if args.event_page_offset != 0 {
        set_page(process, args.event_page_offset)?;
    }
    if args.event_type > event_type::MEMORY {
        return Err(Errno::EINVAL);
    }
    let event = Event::new(args.event_type, args.auto_reset != 0);
    let id = process.events.add(io.host, event, None)?;
    args.event_id = id;
    args.event_trigger_data = id;
    args.event_page_offset = 0;
    if event.has_slot() {
        args.event_slot_index = id;
        args.event_page_offset = mmap::TYPE_EVENTS;
    }
    Ok(())
}

pub(super) fn destroy(io: &mut Io<'_, '_>, args: &mut DestroyEvent) -> nix::Result<()> {
    let state = &mut *io.host.state();
    let process = state.kfd.process(io.pid)?;
    let event = process.events.all.remove(args.event_id).ok_or(Errno::EINVAL)?;
    if event.has_slot() {
        process.events.clear_slot(args.event_id)?;
    }
    process.changed.tell();
    Ok(())
}

pub(super) fn set(io: &mut Io<'_, '_>, args: &mut SetEvent) -> nix::Result<()> {
    with_signal(&mut io.host.state(), io.pid, args.event_id, Event::set)
}

pub(super) fn reset(io: &mut Io<'_, '_>, args: &mut ResetEvent) -> nix::Result<()> {
    with_signal(&mut io.host.state(), io.pid, args.event_id, |event| event.signaled = false)
}

/// Only signal events can be set and reset by the CPU.
fn with_signal(
    state: &mut State,
    pid: u32,
    id: u32,
    change: impl FnOnce(&mut Event),
) -> nix::Result<()> {
    let process = state.kfd.process(pid)?;
    let event = process.events.all.get_mut(id).filter(|event| event.kind == event_type::SIGNAL);
    change(event.ok_or(Errno::EINVAL)?);
    process.changed.tell();
    Ok(())
}

pub(super) fn wait(io: &mut Io<'_, '_>, args: &mut WaitEvents) -> nix::Result<()> {
    if args.num_events > MOST_AT_ONCE {
        return Err(Errno::ENOMEM);
    }
    let mut wanted: Vec<EventData> = read_array(io, args.events_ptr, args.num_events)?;
    let deadline = (args.timeout != FOREVER)
        .then(|| Instant::now() + Duration::from_millis(args.timeout.into()));
    let mut watch = Watch::begin(&mut io.host.state(), io.pid, &wanted)?;
    let answer = loop {
        if io.call.interrupt.is_raised() {
            return Err(interrupted(io, args, &watch, deadline));
        }
        let (times, changed) = {
            let state = &mut *io.host.state();
            let Ok(process) = state.kfd.process(io.pid) else {
                args.wait_result = wait_result::FAIL;
                return Err(Errno::EIO);
            };
            let answer = watch.look(process, args.wait_for_all != 0);
            if let Some(answer) = answer {
                watch.end(process, &mut wanted);
                break answer;
            }
            (process.changed.times(), Arc::clone(&process.changed))
        };
        // Whatever changes from here on also changes `times`.
        let in_time = changed.wait(times, deadline, &io.call.interrupt);
        if in_time == Ok(false) {
            if let Ok(process) = io.host.state().kfd.process(io.pid) {
                watch.end(process, &mut wanted);
            }
            break wait_result::TIMEOUT;
        }
    };
    args.wait_result = answer;
    match answer {
        wait_result::FAIL => Err(Errno::EIO),
        wait_result::COMPLETE => write_array(io, args.events_ptr, &wanted),
        _ => Ok(()),
    }
}

/// Gives up for a signal: the caller is to call again, for as long as was left.
fn interrupted(
    io: &Io<'_, '_>,
    args: &mut WaitEvents,
    watch: &Watch,
    deadline: Option<Instant>,
) -> Errno {
    if let Ok(process) = io.host.state().kfd.process(io.pid) {
        watch.give_back(process);
        process.changed.tell();
    }
    if let Some(deadline) = deadline.filter(|_| args.timeout != 0) {
        let left = deadline.saturating_duration_since(Instant::now());
        args.timeout = u32::try_from(left.as_millis()).unwrap_or(FOREVER - 1);
    }
    args.wait_result = wait_result::FAIL;
    Errno::EINTR
}

/// What one call waits for.
#[derive(Debug)]
struct Watch {
    /// How often each event had been set, and whether it has been signalled for us.
    events: BTreeMap<u32, (u64, bool)>,
}

impl Watch {
    fn begin(state: &mut State, pid: u32, wanted: &[EventData]) -> nix::Result<Watch> {
        let all = &mut state.kfd.process(pid)?.events.all;
        if wanted.iter().any(|data| all.get(data.event_id).is_none()) {
            return Err(Errno::EINVAL);
        }
        let mut events = BTreeMap::new();
        for data in wanted {
            let Some(event) = all.get_mut(data.event_id) else { continue };
            events.entry(data.event_id).or_insert_with(|| {
                event.waiters += 1;
                let signaled = event.signaled;
                event.signaled &= !event.auto_reset;
                (event.times, signaled)
            });
        }
        Ok(Watch { events })
    }

    /// The result, if there is one.
    fn look(&mut self, process: &KfdProcess, all: bool) -> Option<u32> {
        for (&id, (times, signaled)) in &mut self.events {
            let Some(event) = process.events.all.get(id) else { return Some(wait_result::FAIL) };
            *signaled |= event.times != *times;
        }
        let mut signaled = self.events.values().map(|&(_, signaled)| signaled);
        let done = if all { signaled.all(|one| one) } else { signaled.any(|one| one) };
        (done || self.events.is_empty()).then_some(wait_result::COMPLETE)
    }

    /// Ends it as if nothing had been waited for: what resets itself is signalled again.
    fn give_back(&self, process: &mut KfdProcess) {
        for (&id, &(times, signaled)) in &self.events {
            let Some(event) = process.events.all.get_mut(id) else { continue };
            event.waiters = event.waiters.saturating_sub(1);
            if event.auto_reset && (signaled || event.times != times) {
                event.set();
            }
        }
    }

    fn end(&self, process: &mut KfdProcess, wanted: &mut [EventData]) {
        for &id in self.events.keys() {
            if let Some(event) = process.events.all.get_mut(id) {
                event.waiters = event.waiters.saturating_sub(1);
            }
        }
        for data in wanted {
            let signaled = self.events.get(&data.event_id).is_some_and(|&(_, signaled)| signaled);
            let event = process.events.all.get(data.event_id).filter(|_| signaled);
            if let Some(event) =
                event.filter(|e| matches!(e.kind, event_type::MEMORY | event_type::HW_EXCEPTION))
            {
                data.data = event.exception;
            }
        }
    }
}

impl KfdProcess {
    /// An event as a checkpoint has it.
    pub(super) fn restore_event(
        &mut self,
        host: &SimHost,
        id: u32,
        (kind, auto_reset, signaled): (u32, bool, bool),
        exception: [u32; 8],
    ) -> nix::Result<()> {
        let event = Event { signaled, exception, ..Event::new(kind, auto_reset) };
        self.events.add(host, event, Some(id)).map(drop)
    }
}
