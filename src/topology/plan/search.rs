//! The search itself: numbers and sets of numbers, no GPUs.
//!
//! Things are to be assigned to slots, each to one of its own. Some of them are in groups (the GPUs
//! of a CPU, the GPUs of a hive), and a group as a whole has to go to one of several targets, each
//! group of a kind to its own. Once all groups have their targets, the rest is a matching and needs
//! no search; so only the groups are searched over, with everything that follows from a choice taken
//! into account before the next one.

use super::matching::{assign, assign_in_order, bits, first_bits};
use crate::topology::PlanError;

/// How much is tried before the search is given up: about two seconds at the largest size.
const MOST_STEPS: usize = 10_000;

/// What is to be assigned. A set is the bits of a word.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    /// For each thing, the slots that it fits in.
    pub(super) fits: Vec<u64>,
    /// The kinds of groups.
    pub(super) kinds: Vec<Kind>,
}

/// Groups of one kind.
#[derive(Debug, Clone)]
pub(super) struct Kind {
    pub(super) groups: Vec<Vec<Member>>,
    pub(super) targets: usize,
}

/// A thing that is in a group.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) thing: usize,
    /// For each target of the group, the slots that the thing can have then.
    pub(super) slots: Vec<u64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Solution {
    /// The slot of each thing.
    pub(super) gpus: Vec<usize>,
    /// The target of each group of each kind.
    pub(super) targets: Vec<Vec<usize>>,
}

/// How much work is left.
#[derive(Debug)]
pub(super) struct Work {
    left: usize,
    all: usize,
}

impl Work {
    pub(super) fn full() -> Self {
        Self::of(MOST_STEPS)
    }

    /// For questions whose answers are only helpful.
    pub(super) fn some() -> Self {
        Self::of(MOST_STEPS / 10)
    }

    fn of(steps: usize) -> Self {
        Work { left: steps, all: steps }
    }

    fn step(&mut self) -> Result<(), PlanError> {
        self.left = self.left.checked_sub(1).ok_or(PlanError::GaveUp { steps: self.all })?;
        Ok(())
    }
}

/// For each group of each kind, the targets that it may still have.
type Domains = Vec<Vec<u64>>;

/// Finds the assignment if there is one.
pub(super) fn solve(parts: &Parts, work: &mut Work) -> Result<Option<Solution>, PlanError> {
    descend(parts, all(parts), work)
}

fn all(parts: &Parts) -> Domains {
    let all = |kind: &Kind| vec![first_bits(kind.targets); kind.groups.len()];
    parts.kinds.iter().map(all).collect()
}

fn descend(
    parts: &Parts,
    mut domains: Domains,
    work: &mut Work,
) -> Result<Option<Solution>, PlanError> {
    work.step()?;
    let Some(allowed) = narrow(parts, &mut domains) else { return Ok(None) };
    // The group with the fewest choices, of those that have one.
    let open = domains.iter().enumerate().flat_map(|(kind, groups)| {
        groups.iter().enumerate().map(move |(group, set)| (set.count_ones(), kind, group))
    });
    let Some((_, kind, group)) = open.filter(|(choices, ..)| *choices > 1).min() else {
        let targets = |groups: &Vec<u64>| groups.iter().flat_map(|&set| bits(set)).collect();
        let targets = domains.iter().map(targets).collect();
        return Ok(assign_in_order(&allowed).map(|gpus| Solution { gpus, targets }));
    };
    let choice = domains[kind][group];
    // The same place first: what fits as it was then stays as it was.
    let same = bits(choice).filter(|&target| target == group);
    let others = bits(choice).filter(|&target| target != group);
    for target in same.chain(others) {
        let mut tried = domains.clone();
        tried[kind][group] = 1 << target;
        if let Some(solution) = descend(parts, tried, work)? {
            return Ok(Some(solution));
        }
    }
    Ok(None)
}

/// Removes what cannot be, until nothing more is removed. What each thing can have then; `None` if
/// it is not enough.
fn narrow(parts: &Parts, domains: &mut Domains) -> Option<Vec<u64>> {
    while narrow_once(parts, domains) {}
    let allowed = allowed(parts, domains);
    let enough = domains.iter().all(|groups| assign(groups).is_ok()) && assign(&allowed).is_ok();
    enough.then_some(allowed)
}

fn narrow_once(parts: &Parts, domains: &mut Domains) -> bool {
    let allowed = allowed(parts, domains);
    let mut changed = false;
    for (kind, sets) in parts.kinds.iter().zip(domains) {
        for (at, members) in kind.groups.iter().enumerate() {
            let possible = bits(sets[at]).filter(|&target| {
                let slots = |member: &Member| allowed[member.thing] & member.slots[target];
                assign(&members.iter().map(slots).collect::<Vec<_>>()).is_ok()
            });
            let possible = possible.fold(0, |set, target| set | 1 << target);
            changed |= possible != sets[at];
            sets[at] = possible;
            if possible.count_ones() == 1 {
                for (_, other) in sets.iter_mut().enumerate().filter(|(other, _)| *other != at) {
                    changed |= *other & possible != 0;
                    *other &= !possible;
                }
            }
        }
    }
    changed
}

/// The slots that each thing can have in any target of its groups.
fn allowed(parts: &Parts, domains: &Domains) -> Vec<u64> {
    let mut allowed = parts.fits.clone();
    for (kind, sets) in parts.kinds.iter().zip(domains) {
        for (members, &set) in kind.groups.iter().zip(sets) {
            for member in members {
                let slots = bits(set).fold(0, |slots, target| slots | member.slots[target]);
                allowed[member.thing] &= slots;
            }
        }
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `groups` lists of things, `targets` lists of slots.
    fn kind(groups: &[&[usize]], targets: &[&[usize]]) -> Kind {
        let set = |slots: &&[usize]| slots.iter().fold(0u64, |set, slot| set | 1 << slot);
        let slots: Vec<_> = targets.iter().map(set).collect();
        let member = |&thing: &usize| Member { thing, slots: slots.clone() };
        let groups = groups.iter().map(|group| group.iter().map(member).collect()).collect();
        Kind { groups, targets: targets.len() }
    }

    #[test]
    fn what_fits_as_it_was_stays_as_it_was() {
        let groups: &[&[usize]] = &[&[0, 1], &[2, 3]];
        let other: &[&[usize]] = &[&[0, 2], &[1, 3]];
        let kinds = vec![kind(groups, groups), kind(other, other)];
        let parts = Parts { fits: vec![0b1111; 4], kinds };
        let solution = solve(&parts, &mut Work::full()).unwrap().unwrap();
        assert_eq!(solution.gpus, [0, 1, 2, 3]);
        assert_eq!(solution.targets, [[0, 1], [0, 1]]);
    }

    #[test]
    fn a_first_choice_that_leads_nowhere_is_taken_back() {
        // Rows and columns of a square, moved; the thing in the corner has one slot.
        let rows: &[&[usize]] = &[&[0, 1, 2], &[3, 4, 5], &[6, 7, 8]];
        let columns: &[&[usize]] = &[&[0, 3, 6], &[1, 4, 7], &[2, 5, 8]];
        let mut fits = vec![0x1ff; 9];
        fits[8] = 1 << 1;
        let parts = Parts { fits, kinds: vec![kind(rows, rows), kind(columns, columns)] };
        let solution = solve(&parts, &mut Work::full()).unwrap().unwrap();
        assert_eq!(solution.gpus[8], 1);
        assert_eq!((solution.targets[0][2], solution.targets[1][2]), (0, 1));
    }

    #[test]
    fn squares_that_differ_only_as_a_whole_are_told_apart() {
        // Of each row and each column of 8, three are special: in one square as a ring, in the other
        // as two halves that have nothing to do with one another. No row or column alone shows it.
        let ring = |row: usize, column: usize| (column + 8 - row) % 8 < 3;
        let halves =
            |row: usize, column: usize| row / 4 == column / 4 && !(row + column).is_multiple_of(4);
        let square = |special: &dyn Fn(usize, usize) -> bool| {
            (0..64).fold(0u64, |set, at| set | u64::from(special(at / 8, at % 8)) << at)
        };
        let rows: Vec<Vec<usize>> = (0..8).map(|n| (n * 8..n * 8 + 8).collect()).collect();
        let columns: Vec<Vec<usize>> = (0..8).map(|n| (n..64).step_by(8).collect()).collect();
        let rows: Vec<&[usize]> = rows.iter().map(Vec::as_slice).collect();
        let columns: Vec<&[usize]> = columns.iter().map(Vec::as_slice).collect();
        let (ring, halves) = (square(&ring), square(&halves));
        assert_eq!((ring.count_ones(), halves.count_ones()), (24, 24));
        let solved = |there: u64, here: u64, work: &mut Work| {
            let fits = |at: usize| if there >> at & 1 == 1 { here } else { !here };
            let kinds = vec![kind(&rows, &rows), kind(&columns, &columns)];
            solve(&Parts { fits: (0..64).map(fits).collect(), kinds }, work).unwrap()
        };
        let mut work = Work::full();
        assert_eq!(solved(ring, halves, &mut work), None);
        assert!(work.left > MOST_STEPS / 2, "{work:?}");
        // Turned by two rows and three columns.
        let turned = (0..64).filter(|at| ring >> ((at / 8 + 2) % 8 * 8 + (at + 3) % 8) & 1 == 1);
        let turned = turned.fold(0u64, |set, at| set | 1 << at);
        let solution = solved(ring, turned, &mut Work::full()).unwrap();
        assert!((0..64).all(|at| ring >> at & 1 == turned >> solution.gpus[at] & 1));
    }

    #[test]
    fn a_search_that_is_given_up_says_so() {
        let rows: &[&[usize]] = &[&[0, 1], &[2, 3]];
        let parts = Parts { fits: vec![0b1111; 4], kinds: vec![kind(rows, rows)] };
        let error = solve(&parts, &mut Work::of(1)).unwrap_err();
        assert!(matches!(error, PlanError::GaveUp { steps: 1 }), "{error}");
        assert!(error.to_string().contains("not found out in 1 steps"), "{error}");
    }
}
