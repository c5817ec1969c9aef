//! The handles of a file: small numbers from 1, one for each object.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
};

use crate::device::sim::object::Object;

/// What a handle refers to.
#[derive(Debug, Clone)]
pub(super) struct Handle {
    pub object: Arc<Object>,
    /// For memory of a process: whether it has been looked at.
    pub user: User,
}

/// How far the memory behind a userptr object has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum User {
    /// It is, or it is no memory of a process.
    Checked,
    /// At the first submission it is to be checked that memory is there, and, if so told, that it
    /// is not a file's.
    Promised { anonymous: bool },
}

/// The handles of a file.
#[derive(Debug, Default)]
pub(super) struct Handles {
    /// By number, from 1.
    by_number: Vec<Option<Handle>>,
    by_object: HashMap<Key, u32>,
    /// Numbers that were used and are free again.
    free: BinaryHeap<Reverse<u32>>,
}

/// What tells objects apart: the GPU, and the place in its mmap space.
type Key = (usize, u64);

fn key(object: &Object) -> Key {
    (object.gpu, object.mmap_offset)
}

impl Handles {
    /// The handle of an object, which it had before or has now.
    pub(super) fn enter(&mut self, object: Arc<Object>, user: User) -> u32 {
        if let Some(number) = self.of(&object) {
            return number;
        }
        // The lowest number that is free.
        let number = match self.free.pop() {
            Some(Reverse(number)) => number,
            None => {
                self.by_number.push(None);
                // Nobody has memory for so many that they do not fit.
                u32::try_from(self.by_number.len()).unwrap_or(u32::MAX)
            }
        };
        self.by_object.insert(key(&object), number);
        if let Some(place) = self.place(number) {
            *place = Some(Handle { object, user });
        }
        number
    }

    fn place(&mut self, number: u32) -> Option<&mut Option<Handle>> {
        self.by_number.get_mut((number as usize).checked_sub(1)?)
    }

    pub(super) fn get(&self, number: u32) -> Option<&Handle> {
        self.by_number.get((number as usize).checked_sub(1)?)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Handle> {
        self.place(number)?.as_mut()
    }

    /// The handle of an object.
    pub(super) fn of(&self, object: &Arc<Object>) -> Option<u32> {
        self.by_object.get(&key(object)).copied()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Handle> {
        let handle = self.place(number)?.take()?;
        self.by_object.remove(&key(&handle.object));
        self.free.push(Reverse(number));
        Some(handle)
    }

    /// All of them, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Handle)> {
        (1..).zip(&self.by_number).filter_map(|(number, handle)| Some((number, handle.as_ref()?)))
    }
}
