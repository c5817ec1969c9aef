//! From a range of a GPU's contents to pieces of its BOs. Arithmetic only.

/// The most BOs of a GPU. Far beyond any real process.
pub const MOST_BOS: usize = 1 << 24;

/// A range of a BO, and where it is in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// The BO, by its place in the contents.
    pub bo: usize,
    /// Where in the BO.
    pub offset: u64,
    /// Where in the window.
    pub at: u64,
    /// How many bytes, at least one.
    pub len: u64,
}

/// Where each BO of a GPU is in its contents.
#[derive(Debug)]
pub(super) struct Plan {
    /// Where each BO ends. BOs of no bytes end where the one before does.
    ends: Vec<u64>,
}

impl Plan {
    /// Of BOs of these sizes; `None` if there are too many, or their sum is.
    pub(super) fn new(sizes: impl IntoIterator<Item = u64>) -> Option<Self> {
        let mut end = 0_u64;
        let mut ends = Vec::new();
        for size in sizes {
            end = end.checked_add(size)?;
            ends.push(end);
        }
        (ends.len() <= MOST_BOS).then_some(Plan { ends })
    }

    /// Bytes altogether.
    pub(super) fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Where a BO ends.
    pub(super) fn end(&self, bo: usize) -> u64 {
        self.ends[bo]
    }

    /// The parts of a window that begins at `start`: at most `len` bytes of it, and at most `most`
    /// parts. How many bytes they are.
    pub(super) fn parts(&self, start: u64, len: u64, most: usize, parts: &mut Vec<Part>) -> u64 {
        parts.clear();
        let mut at = start;
        let end = start.saturating_add(len).min(self.bytes());
        // The first BO that ends after the start; ones without bytes never do.
        let mut bo = self.ends.partition_point(|&end| end <= at);
        while at < end && parts.len() < most {
            let begins = if bo == 0 { 0 } else { self.ends[bo - 1] };
            let stop = self.ends[bo].min(end);
            if stop > at {
                parts.push(Part { bo, offset: at - begins, at: at - start, len: stop - at });
                at = stop;
            }
            bo += 1;
        }
        at.saturating_sub(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_window_over_three_bos() {
        let plan = Plan::new([10, 0, 5, 20]).unwrap();
        let mut parts = Vec::new();
        assert_eq!(plan.parts(8, 12, 10, &mut parts), 12);
        let part = |bo, offset, at, len| Part { bo, offset, at, len };
        assert_eq!(parts, [part(0, 8, 0, 2), part(2, 0, 2, 5), part(3, 0, 7, 5)]);
        assert_eq!(plan.parts(8, 12, 2, &mut parts), 7);
        assert_eq!(plan.parts(35, 12, 2, &mut parts), 0);
        assert!(parts.is_empty());
        assert!(Plan::new([u64::MAX, 1]).is_none());
    }

    proptest! {
        /// Windows one after the other, of whatever length, are the contents: every byte once, in
        /// order.
        #[test]
        fn windows_cover_everything_once(
            sizes in prop::collection::vec(0_u64..50, 0..40),
            windows in prop::collection::vec((1_u64..70, 1_usize..8), 1..50),
        ) {
            let plan = Plan::new(sizes.iter().copied()).unwrap();
            let mut covered = Vec::new();
            let (mut at, mut parts) = (0, Vec::new());
            for (len, most) in windows.iter().cycle().take(3000) {
                let got = plan.parts(at, *len, *most, &mut parts);
                prop_assert!(parts.len() <= *most && got <= *len);
                prop_assert_eq!(parts.iter().map(|part| part.len).sum::<u64>(), got);
                for part in &parts {
                    prop_assert!(part.len > 0);
                    prop_assert_eq!(part.at + at, covered.len() as u64);
                    covered.extend((part.offset..part.offset + part.len).map(|o| (part.bo, o)));
                }
                at += got;
                if got == 0 { break }
            }
            let all: Vec<_> = sizes
                .iter()
                .enumerate()
                .flat_map(|(bo, &size)| (0..size).map(move |offset| (bo, offset)))
                .collect();
            prop_assert_eq!(covered, all);
        }
    }
}
