//! Which format an image has: what the first shard that says something begins with.
//!
//! Every shard is looked at on the thread that will read it, and none waits for another one as long
//! as it has bytes itself: a writer may fill one shard before it begins the next.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{ImageFormat, Shard};
use crate::{
    error::{Error, Result},
    format::Prologue,
};

/// What the shards of one image have said.
#[derive(Debug)]
pub(super) struct Detection {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    format: Option<ImageFormat>,
    /// Shards that have not said anything and may still.
    silent: usize,
}

impl Detection {
    /// Of an image of so many shards.
    pub(super) fn new(shards: usize) -> Self {
        let state = Mutex::new(State { format: None, silent: shards });
        Detection { state, changed: Condvar::new() }
    }

    /// The format of the image that this shard is of. A shard without a byte waits until another
    /// one has said something.
    pub(super) fn format(&self, shard: &mut Shard) -> Result<ImageFormat> {
        let first = match shard.peek() {
            Ok([]) => None,
            Ok(bytes) if Prologue::is_native(bytes) => Some(ImageFormat::Native),
            Ok(_) => Some(ImageFormat::CriuImageStreamer),
            Err(error) => {
                drop(self.heard(None));
                return Err(error);
            }
        };
        let state = self.heard(first);
        let state = self
            .changed
            .wait_while(state, |state| state.format.is_none() && state.silent > 0)
            .unwrap_or_else(PoisonError::into_inner);
        // A shard whose first bytes are of the other format is refused by the reader of this one.
        state.format.ok_or(Error::Empty)
    }

    /// The format of the image, once a shard has said it.
    pub(super) fn decided(&self) -> Option<ImageFormat> {
        self.lock().format
    }

    fn heard(&self, format: Option<ImageFormat>) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.silent = state.silent.saturating_sub(1);
        state.format = state.format.or(format);
        self.changed.notify_all();
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Two plain fields: a panic elsewhere cannot leave them half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
