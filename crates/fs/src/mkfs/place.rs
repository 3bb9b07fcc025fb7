//! Places all structures of a new volume: a map of used blocks, and the choice of each place.

use std::collections::BTreeMap;

use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, GroupNr, Result, Run};

use super::plan::VolumePlan;

/// UsedRanges blocks as ranges `start → end` that are neither adjacent nor overlapping.
#[derive(Default)]
pub(super) struct UsedRanges {
    ranges: BTreeMap<u64, u64>,
}

impl UsedRanges {
    fn add(&mut self, start: u64, len: u64) {
        let (mut start, mut end) = (start, start + len);
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..=end).next() {
            end = end.max(next_end);
            self.ranges.remove(&next);
        }
        self.ranges.insert(start, end);
    }

    /// The used parts of a range, as pairs of start and end.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let before = self.ranges.range(..start).next_back().filter(|range| *range.1 > start);
        before
            .into_iter()
            .chain(self.ranges.range(start..end))
            .map(move |(&from, &to)| (from.max(start), to.min(end)))
    }

    /// The first free part of a range, as a pair of start and end.
    fn gap(&self, from: u64, end: u64) -> Option<(u64, u64)> {
        let start = match self.ranges.range(..=from).next_back() {
            Some((_, &used_end)) if used_end > from => used_end,
            _ => from,
        };
        let stop = self.ranges.range(start..).next().map_or(end, |(&next, _)| next.min(end));
        (start < stop).then_some((start, stop))
    }
}

/// A group's bitmaps and inode table.
#[derive(Clone, Copy)]
pub(super) struct GroupPlace {
    pub block_bitmap: BlockNr,
    pub inode_bitmap: BlockNr,
    pub inode_table: BlockNr,
}

pub(super) struct BlockLayout {
    pub used: UsedRanges,
    pub groups: Vec<GroupPlace>,
    pub root: BlockNr,
    pub lost_found: Run,
    /// The resize inode's doubly indirect block.
    pub resize: Option<BlockNr>,
    pub journal: Vec<Run>,
    /// Node of the journal's extent tree, if its extents do not fit into the inode.
    pub journal_node: Option<BlockNr>,
    pub orphan_file: Option<Run>,
}

impl BlockLayout {
    pub fn new(plan: &VolumePlan) -> Result<BlockLayout> {
        let sb = &plan.sb;
        let mut space = FreeSpace { sb, used: UsedRanges::default() };
        for group in (0..sb.group_count()).map(GroupNr) {
            let base = sb.base_meta_blocks(group);
            if base > 0 {
                space.used.add(sb.group_start(group).0, u64::from(base));
            }
        }
        let mut groups = Vec::with_capacity(sb.group_count() as usize);
        for first in (0..sb.group_count()).step_by(plan.groups_per_flex() as usize) {
            let count = plan.groups_per_flex().min(sb.group_count() - first);
            space.place_flex(GroupNr(first), count, &mut groups)?;
        }
        let start = sb.group_start(GroupNr(0));
        let root = space.run(start, 1)?.start;
        let lost_found = space.run(start, plan.lost_found_blocks())?;
        let resize = match sb.reserved_gdt_blocks() {
            0 => None,
            _ => Some(space.run(start, 1)?.start),
        };
        let orphan_file = match plan.orphan_blocks {
            0 => None,
            count => Some(space.run(start, count)?),
        };
        let journal = space.runs(plan.journal_goal(), plan.journal_blocks)?;
        let journal_node = match journal.len() {
            ..=4 => None,
            _ => Some(space.run(journal[0].start, 1)?.start),
        };
        Ok(BlockLayout {
            used: space.used,
            groups,
            root,
            lost_found,
            resize,
            journal,
            journal_node,
            orphan_file,
        })
    }
}

struct FreeSpace<'a> {
    sb: &'a Superblock,
    used: UsedRanges,
}

impl FreeSpace<'_> {
    /// Places the bitmaps and tables of a flex group, kind by kind, from its first group on.
    fn place_flex(&mut self, first: GroupNr, count: u32, groups: &mut Vec<GroupPlace>) -> Result<()> {
        let mut goal = self.sb.group_start(first);
        let table_blocks = self.sb.inode_table_blocks();
        let mut each = |len: u32| -> Result<Vec<BlockNr>> {
            (0..count)
                .map(|_| {
                    let run = self.run(goal, len)?;
                    goal = run.end();
                    Ok(run.start)
                })
                .collect()
        };
        let block_bitmaps = each(1)?;
        let inode_bitmaps = each(1)?;
        let tables = each(table_blocks)?;
        for i in 0..count as usize {
            groups.push(GroupPlace {
                block_bitmap: block_bitmaps[i],
                inode_bitmap: inode_bitmaps[i],
                inode_table: tables[i],
            });
        }
        Ok(())
    }

    /// `len` contiguous blocks, after `goal` or else from the volume's start on.
    fn run(&mut self, goal: BlockNr, len: u32) -> Result<Run> {
        let end = self.sb.blocks_count();
        let mut from = goal.0;
        for _ in 0..2 {
            while let Some((start, stop)) = self.used.gap(from, end) {
                if stop - start >= u64::from(len) {
                    self.used.add(start, u64::from(len));
                    return Ok(Run { start: BlockNr(start), len });
                }
                from = stop;
            }
            from = u64::from(self.sb.first_data_block());
        }
        Err(Error::Usage("the device is too small for a volume with these options".into()))
    }

    /// `count` blocks in as many runs as needed, each no longer than an extent.
    fn runs(&mut self, goal: BlockNr, count: u32) -> Result<Vec<Run>> {
        let end = self.sb.blocks_count();
        let mut left = u64::from(count);
        let mut runs = Vec::new();
        let mut from = goal.0;
        let mut wrapped = false;
        while left > 0 {
            match self.used.gap(from, end) {
                Some((start, stop)) => {
                    let len = left.min(stop - start).min(xact_layout::extent::MAX_WRITTEN_LEN.into());
                    self.used.add(start, len);
                    runs.push(Run { start: BlockNr(start), len: len as u32 });
                    left -= len;
                    from = start + len;
                }
                None if wrapped => {
                    return Err(Error::Usage(
                        "the device is too small for a volume with these options".into(),
                    ));
                }
                None => {
                    wrapped = true;
                    from = u64::from(self.sb.first_data_block());
                }
            }
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_ranges_join_and_leave_gaps() {
        let mut used = UsedRanges::default();
        for (start, len) in [(10, 5), (20, 5), (15, 5), (40, 1), (38, 2), (50, 10), (52, 2), (49, 20)] {
            used.add(start, len);
        }
        let ranges: Vec<(u64, u64)> = used.ranges.iter().map(|(&a, &b)| (a, b)).collect();
        assert_eq!(ranges, [(10, 25), (38, 41), (49, 69)]);
        assert_eq!(used.within(12, 39).collect::<Vec<_>>(), [(12, 25), (38, 39)]);
        assert_eq!(used.gap(0, 100), Some((0, 10)));
        assert_eq!(used.gap(12, 100), Some((25, 38)));
        assert_eq!(used.gap(50, 100), Some((69, 100)));
        assert_eq!(used.gap(50, 60), None);
    }
}
