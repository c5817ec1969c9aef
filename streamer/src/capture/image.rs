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

/// What [`Intake::readable`](super::Intake::readable) found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readable {
    /// There may be more.
    More,
    /// The pipe has ended and all of it was taken.
    End,
}

/// Which images there have been.
#[derive(Debug, Default)]
pub(super) struct Roll {
    next: u32,
    /// The version of each name that has ended last.
    finished: HashMap<FileName, (u32, u64)>,
    superseded: Vec<u32>,
    external: HashSet<FileName>,
    inventory_whole: bool,
}

impl Roll {
    /// A new image.
    pub(super) fn open(
        &mut self,
        name: FileName,
        source: Source,
        pipe: OwnedFd,
    ) -> Result<OpenImage> {
        if self.next >= MAX_FILES {
            return Err(Error::DumpIncomplete(format!("CRIU writes more than {MAX_FILES} images")));
        }
        match source {
            Source::External => {
                self.external.insert(name.clone());
            }
            Source::Criu if self.external.contains(&name) => {
                return Err(Error::DumpIncomplete(format!(
                    "CRIU writes {name}, which is also the name of an external file: give that another one in --ext-file-fds"
                )));
            }
            Source::Criu => {}
        }
        let file = self.next;
        self.next += 1;
        let inventory =
            (name.as_str() == INVENTORY && source == Source::Criu).then(InventoryCheck::default);
        Ok(OpenImage { file, name, source, pipe, taken: 0, inventory })
    }

    /// An image has ended. Of two with one name, the one that ends last counts.
    pub(super) fn end(&mut self, image: &OpenImage) -> Result<()> {
        if let Some(inventory) = &image.inventory {
            self.inventory_whole = inventory.is_whole();
        }
        if let Some((older, _)) =
            self.finished.insert(image.name.clone(), (image.file, image.taken))
        {
            self.superseded.push(older);
            if self.superseded.len() > MAX_SUPERSEDED {
                return Err(Error::DumpIncomplete(format!(
                    "images are written again more than {MAX_SUPERSEDED} times, {} among them",
                    image.name
                )));
            }
        }
        Ok(())
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
