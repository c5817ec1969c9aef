//! An image that CRIU, or somebody else, is writing.

use std::{
    collections::{HashMap, HashSet},
    os::fd::OwnedFd,
};

use crate::{
    criu::{INVENTORY, InventoryCheck},
    error::{Error, Result},
    format::{FileName, MAX_FILES, MAX_SUPERSEDED},
    pack::Totals,
};

/// Who writes an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// CRIU: it is over when CRIU is.
    Criu,
    /// Somebody else (`--ext-file-fds`).
    External,
    /// GPU workers of ours, since the plugin handed the contents over.
    Gpu,
}

/// An image whose pipe is open.
#[derive(Debug)]
pub(super) struct OpenImage {
    /// Its number in the image.
    pub file: u32,
    pub name: FileName,
    pub source: Source,
    pub pipe: OwnedFd,
    /// Bytes taken so far.
    pub taken: u64,
    /// Watches the bytes of the one file that tells whether the dump is whole.
    pub inventory: Option<InventoryCheck>,
}

impl OpenImage {
    /// The image of this number, which is read from a pipe.
    pub(super) fn new(file: u32, name: FileName, source: Source, pipe: OwnedFd) -> Self {
        let inventory =
            (name.as_str() == INVENTORY && source == Source::Criu).then(InventoryCheck::default);
        OpenImage { file, name, source, pipe, taken: 0, inventory }
    }
}

/// What [`Intake::readable`](super::Intake::readable) found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readable {
    /// There may be more.
    More,
    /// The pipe has ended and all of it was taken.
    End,
}

/// Which images there have been. Shared by those who read them.
#[derive(Debug, Default)]
pub(super) struct Roll {
    next: u32,
    /// The version of each name that has ended last.
    finished: HashMap<FileName, (u32, u64)>,
    superseded: Vec<u32>,
    /// Names that are not CRIU's to write.
    taken: HashSet<FileName>,
    inventory_whole: bool,
}

impl Roll {
    /// A new image: its number.
    pub(super) fn begin(&mut self, name: &FileName, source: Source) -> Result<u32> {
        if self.next >= MAX_FILES {
            return Err(Error::DumpIncomplete(format!("CRIU writes more than {MAX_FILES} images")));
        }
        let refused = |what| Err(Error::DumpIncomplete(format!("{name} {what}")));
        match source {
            Source::External => {
                self.taken.insert(name.clone());
            }
            Source::Gpu => {
                if !self.taken.insert(name.clone()) || self.finished.contains_key(name) {
                    return refused(
                        "is in the image already, and its contents were handed over again",
                    );
                }
            }
            Source::Criu if self.taken.contains(name) => {
                return refused(
                    "is written by CRIU, and is also the name of an external file or of contents that were handed over: give that one another name in --ext-file-fds",
                );
            }
            Source::Criu => {}
        }
        let file = self.next;
        self.next += 1;
        Ok(file)
    }

    /// An image has ended with this size. Of two with one name, the one that ends last counts.
    pub(super) fn end(&mut self, name: &FileName, file: u32, size: u64) -> Result<()> {
        if let Some((older, _)) = self.finished.insert(name.clone(), (file, size)) {
            self.superseded.push(older);
            if self.superseded.len() > MAX_SUPERSEDED {
                return Err(Error::DumpIncomplete(format!(
                    "images are written again more than {MAX_SUPERSEDED} times, {name} among them"
                )));
            }
        }
        Ok(())
    }

    /// What was seen of an inventory that has ended.
    pub(super) fn inventory(&mut self, inventory: &InventoryCheck) {
        self.inventory_whole = inventory.is_whole();
    }

    /// Whether CRIU has said that the dump is whole.
    pub(super) fn inventory_whole(&self) -> bool {
        self.inventory_whole
    }

    /// The sums, when no image is open any more.
    pub(super) fn totals(&self) -> Totals {
        let mut superseded = self.superseded.clone();
        superseded.sort_unstable();
        Totals {
            files: u32::try_from(self.finished.len()).unwrap_or(MAX_FILES),
            raw_bytes: self.finished.values().map(|(_, size)| size).sum(),
            superseded,
        }
    }
}
