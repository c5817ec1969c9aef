//! What callers did wrong.

use std::{
    collections::HashSet,
    fmt,
    sync::{Mutex, PoisonError},
};

/// Something that a caller did and should not have, though the kernel lets it pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// The process.
    pub pid: u32,
    /// What it did, to what.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}: {}", self.pid, self.what)
    }
}

/// What callers did wrong, and who is excused.
#[derive(Debug, Default)]
pub(super) struct Log {
    complaints: Mutex<Vec<Complaint>>,
    abandoned: Mutex<HashSet<u32>>,
}

impl Log {
    pub(super) fn complain(&self, pid: u32, what: impl Into<String>) {
        let complaint = Complaint { pid, what: what.into() };
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).push(complaint);
    }

    /// Nobody minds what this process leaves behind.
    pub(super) fn abandon(&self, pid: u32) {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
    }

    pub(super) fn is_abandoned(&self, pid: u32) -> bool {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
    }

    pub(super) fn read(&self) -> Vec<Complaint> {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn take(&self) -> Vec<Complaint> {
        std::mem::take(&mut *self.complaints.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
