//! Sets of numbers, stored as ranges: block numbers that were read, bytes that were reserved.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint, non-adjacent ranges: start to end (exclusive).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Merge every range that overlaps or touches the new one, from its end downwards.
        while let Some((&s, &e)) = self.0.range(..=end).next_back()
            && e >= start
        {
            self.0.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.0.insert(start, end);
    }

    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&s, &e)) = self.0.range(..range.end).next_back()
            && e > range.start
        {
            self.0.remove(&s);
            if s < range.start {
                self.0.insert(s, range.start);
            }
            if e > range.end {
                self.0.insert(range.end, e);
            }
        }
    }

    pub fn overlaps(&self, range: Range<u64>) -> bool {
        !range.is_empty() && self.0.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Replaces all ranges by the one from the first to the last number.
    pub fn fill(&mut self) {
        if let (Some((&start, _)), Some((_, &end))) = (self.0.first_key_value(), self.0.last_key_value()) {
            self.0 = [(start, end)].into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_split_as_a_set_of_numbers_does() {
        let mut seed = 7u64;
        let mut next = move || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed >> 33
        };
        let mut ranges = Ranges::default();
        let mut model = [false; 64];
        for _ in 0..5000 {
            let start = next() % 64;
            let end = (start + next() % 12).min(64);
            let add = next() % 2 == 0;
            if add {
                ranges.insert(start..end);
            } else {
                ranges.remove(start..end);
            }
            model[start as usize..end as usize].fill(add);
            let mut seen = [false; 64];
            let mut last_end = None;
            for range in ranges.iter() {
                assert!(range.start < range.end);
                assert!(last_end.is_none_or(|last| range.start > last), "ranges touch");
                last_end = Some(range.end);
                seen[range.start as usize..range.end as usize].fill(true);
            }
            assert_eq!(seen, model);
            let any = start < end && model[start as usize..end as usize].contains(&true);
            let (at, past) = (next() % 64, next() % 65);
            let any_there = at < past && model[at as usize..past as usize].contains(&true);
            assert_eq!((ranges.overlaps(start..end), ranges.overlaps(at..past)), (any, any_there));
        }
    }
}
