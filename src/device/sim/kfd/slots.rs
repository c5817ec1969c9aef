//! Small numbers for things: the lowest that is free, as the kernel's idr gives them.

use std::collections::{BTreeMap, btree_map};

/// Things by number.
#[derive(Debug)]
pub(super) struct Slots<T> {
    items: BTreeMap<u32, T>,
    /// For numbers from here, all below that are taken.
    hints: BTreeMap<u32, u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots { items: BTreeMap::new(), hints: BTreeMap::new() }
    }
}

impl<T> Slots<T> {
    /// Enters `item` under the lowest number that is free, from `first` and below `end`; `None` if
    /// there is none.
    pub(super) fn insert(&mut self, first: u32, end: u32, item: T) -> Option<u32> {
        let hint = self.hints.entry(first).or_insert(first);
        let mut number = *hint;
        while self.items.contains_key(&number) {
            number += 1;
        }
        *hint = number;
        if number >= end {
            return None;
        }
        self.items.insert(number, item);
        Some(number)
    }

    /// Enters `item` under a number; gives it back if that is taken.
    pub(super) fn insert_at(&mut self, number: u32, item: T) -> Result<(), T> {
        match self.items.entry(number) {
            btree_map::Entry::Vacant(entry) => {
                entry.insert(item);
                Ok(())
            }
            btree_map::Entry::Occupied(_) => Err(item),
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.items.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.items.get_mut(&number)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let item = self.items.remove(&number)?;
        for (_, hint) in self.hints.range_mut(..=number) {
            *hint = (*hint).min(number);
        }
        Some(item)
    }

    /// In ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items.iter().map(|(&number, item)| (number, item))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.items.iter_mut().map(|(&number, item)| (number, item))
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_taken() {
        let mut slots = Slots::default();
        assert_eq!(slots.insert(0, 3, 'a'), Some(0));
        assert_eq!(slots.insert_at(1, 'b'), Ok(()));
        assert_eq!(slots.insert_at(1, 'c'), Err('c'));
        assert_eq!(slots.insert(0, 3, 'c'), Some(2));
        assert_eq!(slots.insert(0, 3, 'd'), None);
        assert_eq!(slots.remove(1), Some('b'));
        assert_eq!(slots.insert(0, 3, 'd'), Some(1));
        assert_eq!(slots.insert(1 << 30, u32::MAX, 'e'), Some(1 << 30));
        assert_eq!(slots.insert(0, 9, 'f'), Some(3));
        let all: Vec<_> = slots.iter().map(|(number, _)| number).collect();
        assert_eq!(all, [0, 1, 2, 3, 1 << 30]);
    }
}
