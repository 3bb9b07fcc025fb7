//! The blocks of files and folders in a partial image, by group.

use std::collections::BTreeMap;
use std::ops::Range;

use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, GroupNr, Ino, Result, Run, Site};

use crate::alloc::set_bits;

/// A bitmap of one block for each group with blocks in use.
#[derive(Default)]
pub(super) struct UsedBlocks {
    groups: BTreeMap<GroupNr, Vec<u8>>,
}

fn is_set(bits: &[u8], index: u32) -> bool {
    bits[(index / 8) as usize] & 1 << (index % 8) != 0
}

impl UsedBlocks {
    /// Adds blocks of an inode. `Corrupt` if another inode has one of them.
    pub fn add(&mut self, sb: &Superblock, ino: Ino, run: Run) -> Result<()> {
        let corrupt = |what| Err(Error::corrupt(Site::Inode(ino), what));
        if !sb.contains(run.start, run.len.into()) {
            return corrupt("a block lies outside the volume");
        }
        let mut at = run.start;
        while at < run.end() {
            let group = sb.group_of(at);
            let first = (at.0 - sb.group_start(group).0) as u32;
            let len = (run.end().0 - at.0).min(u64::from(sb.blocks_in_group(group) - first)) as u32;
            let bits = self.groups.entry(group).or_insert_with(|| vec![0; sb.block_size() as usize]);
            if (first..first + len).any(|index| is_set(bits, index)) {
                return corrupt("a block is in use twice");
            }
            set_bits(bits, first, len);
            at = at.offset(len.into());
        }
        Ok(())
    }

    /// The bits of a group; `None` if no block is in use.
    pub fn group(&self, group: GroupNr) -> Option<&[u8]> {
        self.groups.get(&group).map(Vec::as_slice)
    }

    /// A run of `len` free blocks in a group. `taken`: the group's bitmap with all blocks in use.
    pub fn find(sb: &Superblock, group: GroupNr, taken: &[u8], len: u32) -> Option<BlockNr> {
        let mut free = 0;
        for index in 0..sb.blocks_in_group(group) {
            free = if is_set(taken, index) { 0 } else { free + 1 };
            if free == len {
                return Some(sb.group_start(group).offset(u64::from(index + 1 - len)));
            }
        }
        None
    }

    /// The blocks as sorted ranges.
    pub fn ranges(&self, sb: &Superblock) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (&group, bits) in &self.groups {
            let start = sb.group_start(group).0;
            for index in (0..sb.blocks_in_group(group)).filter(|&index| is_set(bits, index)) {
                let block = start + u64::from(index);
                match ranges.last_mut() {
                    Some(last) if last.end == block => last.end += 1,
                    _ => ranges.push(block..block + 1),
                }
            }
        }
        ranges
    }
}
