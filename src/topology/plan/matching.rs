//! Gives each of several something of its own from a set of up to 64: bipartite matching by
//! augmenting paths. A set is the bits of a word.

/// The places of the bits that are set.
pub(super) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros();
        set &= set.checked_sub(1)?;
        usize::try_from(bit).ok()
    })
}

/// The first `count` bits.
pub(super) fn first_bits(count: usize) -> u64 {
    match count {
        0..64 => (1 << count) - 1,
        _ => u64::MAX,
    }
}

/// What each gets, where each would take anything of its set; or some of them who together would
/// take fewer things than they are.
pub(super) fn assign(wanted: &[u64]) -> Result<Vec<usize>, Vec<usize>> {
    let mut owners = [None; 64];
    for one in 0..wanted.len() {
        let mut seen = 0;
        if !augment(wanted, one, &mut owners, &mut seen) {
            // Everything in `seen` has an owner, and none of them can move elsewhere.
            let mut short: Vec<_> = bits(seen).filter_map(|thing| owners[thing]).collect();
            short.push(one);
            short.sort_unstable();
            return Err(short);
        }
    }
    let mut given = vec![0; wanted.len()];
    for (thing, owner) in owners.into_iter().enumerate() {
        if let Some(owner) = owner {
            given[owner] = thing;
        }
    }
    Ok(given)
}

fn augment(wanted: &[u64], one: usize, owners: &mut [Option<usize>; 64], seen: &mut u64) -> bool {
    loop {
        let Some(thing) = bits(wanted[one] & !*seen).next() else { return false };
        *seen |= 1 << thing;
        let free = match owners[thing] {
            None => true,
            Some(owner) => augment(wanted, owner, owners, seen),
        };
        if free {
            owners[thing] = Some(one);
            return true;
        }
    }
}

/// As [`assign`]; where there is a choice, the first gets the first thing that it can have, then the
/// second, and so on: order is kept where it can be.
pub(super) fn assign_in_order(wanted: &[u64]) -> Option<Vec<usize>> {
    let mut wanted = wanted.to_vec();
    assign(&wanted).ok()?;
    for one in 0..wanted.len() {
        for thing in bits(wanted[one]) {
            wanted[one] = 1 << thing;
            if assign(&wanted).is_ok() {
                break;
            }
        }
    }
    assign(&wanted).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by trying everything.
    fn exists(wanted: &[u64], taken: u64) -> bool {
        let Some((first, others)) = wanted.split_first() else { return true };
        bits(first & !taken).any(|thing| exists(others, taken | 1 << thing))
    }

    proptest! {
        #[test]
        fn everybody_gets_something_or_some_want_too_little(
            wanted in prop::collection::vec(0u64..128, 0..7)
        ) {
            match assign(&wanted) {
                Ok(given) => {
                    prop_assert_eq!(given.len(), wanted.len());
                    let all = given.iter().fold(0u64, |all, thing| all | 1 << thing);
                    prop_assert_eq!(all.count_ones() as usize, given.len());
                    for (set, thing) in wanted.iter().zip(&given) {
                        prop_assert!(set & 1 << thing != 0);
                    }
                }
                Err(short) => {
                    prop_assert!(!exists(&wanted, 0));
                    let union = short.iter().fold(0, |union, &one| union | wanted[one]);
                    prop_assert!((union.count_ones() as usize) < short.len());
                }
            }
            prop_assert_eq!(assign_in_order(&wanted).is_some(), exists(&wanted, 0));
        }
    }

    #[test]
    fn order_is_kept_where_it_can_be() {
        assert_eq!(assign_in_order(&[u64::MAX; 64]), Some((0..64).collect()));
        assert_eq!(assign_in_order(&[0b111, 0b001, 0b111]), Some(vec![1, 0, 2]));
        assert_eq!(assign_in_order(&[0b110, 0b011, 0b011]), Some(vec![2, 0, 1]));
        assert_eq!(assign_in_order(&[]), Some(vec![]));
    }

    #[test]
    fn sets_of_bits() {
        assert_eq!(bits(0).count(), 0);
        assert_eq!(bits(1 << 63 | 5).collect::<Vec<_>>(), [0, 2, 63]);
        assert_eq!((first_bits(0), first_bits(3), first_bits(64)), (0, 7, u64::MAX));
    }
}
