//! The handles of a file: small numbers from 1, one for each object.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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
    by_number: BTreeMap<u32, Handle>,
    by_object: HashMap<Key, u32>,
    /// Numbers that were used and are free again.
    free: BTreeSet<u32>,
    /// The highest number that was ever used.
    highest: u32,
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
        let number = self.free.pop_first().unwrap_or_else(|| {
            self.highest += 1;
            self.highest
        });
        self.by_object.insert(key(&object), number);
        self.by_number.insert(number, Handle { object, user });
        number
    }

    pub(super) fn get(&self, number: u32) -> Option<&Handle> {
        self.by_number.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Handle> {
        self.by_number.get_mut(&number)
    }

    /// The handle of an object.
    pub(super) fn of(&self, object: &Arc<Object>) -> Option<u32> {
        self.by_object.get(&key(object)).copied()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Handle> {
        let handle = self.by_number.remove(&number)?;
        self.by_object.remove(&key(&handle.object));
        self.free.insert(number);
        Some(handle)
    }

    /// All of them, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Handle)> {
        self.by_number.iter().map(|(&number, handle)| (number, handle))
    }
}
