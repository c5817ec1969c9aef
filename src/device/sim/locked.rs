//! The lock of a machine, and what nobody does who has it.
//!
//! A caller that maps memory of ours holds its own locks while it waits for the machine's; looking at a
//! caller's memory waits for the caller's locks. So no handler looks at a caller's memory while it has
//! the machine's lock, nor waits for an engine, which may be looking: that is done once it is unlocked.

use std::{
    cell::{Cell, RefCell},
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    sync::MutexGuard,
};

use super::host::State;

thread_local! {
    static LOCKED: Cell<bool> = const { Cell::new(false) };
    static FOR_LATER: RefCell<Vec<Later>> = const { RefCell::new(Vec::new()) };
}

type Later = Box<dyn FnOnce()>;

/// The state of a machine, locked by this thread.
#[derive(Debug)]
pub(super) struct Locked<'a>(ManuallyDrop<MutexGuard<'a, State>>);

impl<'a> Locked<'a> {
    pub(super) fn new(state: MutexGuard<'a, State>) -> Self {
        LOCKED.set(true);
        Locked(ManuallyDrop::new(state))
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody uses it from here on.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        LOCKED.set(false);
        FOR_LATER.take().into_iter().for_each(|later| later());
    }
}

/// Does something now, or if this thread has locked the state, right after it has unlocked it.
pub(super) fn once_unlocked(what: impl FnOnce() + 'static) {
    if LOCKED.get() {
        FOR_LATER.with_borrow_mut(|later| later.push(Box::new(what)));
    } else {
        what();
    }
}

/// To be called where a caller's memory is looked at.
pub(super) fn not_locked() {
    debug_assert!(!LOCKED.get(), "a caller's memory is asked for under the lock");
}
