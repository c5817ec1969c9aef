//! The submissions that are not done, and the memory of processes that they use.
//!
//! A kernel does not mind when two submissions use the same memory at the same time, or when what
//! one uses is unmapped: here that is found and named.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{engine::Job, host::FileId, object::Object};

/// A range of a process's memory that a submission reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub pid: u32,
    pub start: u64,
    pub end: u64,
    pub written: bool,
}

/// Sorts claims and joins those that touch.
pub(super) fn joined(mut claims: Vec<Claim>) -> Vec<Claim> {
    claims.sort_unstable_by_key(|claim| (claim.pid, claim.written, claim.start));
    claims.dedup_by(|next, claim| {
        let touch =
            (next.pid, next.written) == (claim.pid, claim.written) && next.start <= claim.end;
        if touch {
            claim.end = claim.end.max(next.end);
        }
        touch
    });
    claims.sort_unstable_by_key(|claim| (claim.pid, claim.start));
    claims
}

/// The first claim of `ours` that clashes with one of `theirs`: both touch the same byte, and both
/// write, or one does and nothing orders them.
fn clash(ours: &[Claim], theirs: &[Claim], ordered: bool) -> Option<Claim> {
    // Claims of a submission are few, and of an ordinary one they are in one range.
    let bounds = |claims: &[Claim]| {
        let start = claims.iter().map(|claim| claim.start).min()?;
        Some((start, claims.iter().map(|claim| claim.end).max()?))
    };
    let ((from, to), (other_from, other_to)) = (bounds(ours)?, bounds(theirs)?);
    if to <= other_from || other_to <= from {
        return None;
    }
    let clashes = |one: &Claim, other: &Claim| {
        let writes =
            if ordered { one.written && other.written } else { one.written || other.written };
        writes && one.pid == other.pid && one.start < other.end && other.start < one.end
    };
    ours.iter().find(|one| theirs.iter().any(|other| clashes(one, other))).copied()
}

/// The submissions of a machine that are not done.
#[derive(Debug, Default)]
pub(super) struct InFlight(Mutex<Vec<Arc<Job>>>);

impl InFlight {
    /// Enters a submission; what clashes, if anything does.
    pub(super) fn enter(&self, job: &Arc<Job>) -> Option<Claim> {
        let mut jobs = self.lock();
        let clash = jobs.iter().find_map(|other| {
            let ordered = Arc::ptr_eq(&job.entity, &other.entity)
                || job.dependencies.iter().any(|fence| Arc::ptr_eq(fence, &other.fence));
            clash(&job.claims, &other.claims, ordered)
        });
        jobs.push(Arc::clone(job));
        clash
    }

    /// A submission is done.
    pub(super) fn leave(&self, job: &Arc<Job>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, job));
    }

    /// The submissions that use an object.
    pub(super) fn using(&self, object: &Arc<Object>) -> Vec<Arc<Job>> {
        self.lock().iter().filter(|job| job.lists(object)).cloned().collect()
    }

    /// The submissions of a file.
    pub(super) fn of_file(&self, file: FileId) -> Vec<Arc<Job>> {
        self.lock().iter().filter(|job| job.file == file).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn claim(start: u64, end: u64, written: bool) -> Claim {
        Claim { pid: 1, start, end, written }
    }

    #[test]
    fn claims_that_touch_become_one() {
        let claims =
            vec![claim(8, 12, true), claim(0, 4, true), claim(4, 8, true), claim(4, 6, false)];
        assert_eq!(joined(claims), [claim(0, 12, true), claim(4, 6, false)]);
    }

    #[test]
    fn two_writers_clash_and_a_reader_with_a_writer_that_nothing_orders() {
        let (reader, writer) = ([claim(0, 8, false)], [claim(7, 16, true)]);
        assert_eq!(clash(&reader, &writer, false), Some(reader[0]));
        assert_eq!(clash(&reader, &writer, true), None);
        assert_eq!(clash(&writer, &writer, true), Some(writer[0]));
        assert_eq!(clash(&reader, &reader, false), None);
        assert_eq!(clash(&writer, &[claim(16, 20, true)], false), None);
        let other = [Claim { pid: 2, ..writer[0] }];
        assert_eq!(clash(&writer, &other, false), None);
    }
}
