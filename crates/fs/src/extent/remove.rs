//! Removes blocks from a file: truncation, deletion, punched holes.

use std::collections::BTreeSet;
use std::ops::Range;

use xact_consistency::Handle;
use xact_layout::extent::{Extent, RawEntry};
use xact_layout::inode::Inode;
use xact_layout::superblock::Superblock;
use xact_types::{FileBlock, Result, Run};

use super::{Extents, Progress, has_extents, step_credits};
use crate::metadata_blocks::CREDITS_PER_BLOCK;

/// Called with the data blocks that a removal unmapped, to free them in the same handle or keep
/// them. The handle has the credits for freeing them.
pub type Freed<'f> = &'f mut dyn FnMut(&mut Handle, Run) -> Result<()>;

impl Extents<'_> {
    /// Turns `range` into a hole, from its end towards its start, and calls `freed` with the
    /// removed data blocks. Frees nodes that become empty.
    ///
    /// `Stopped(at)`: the handle's commit is full, and `at..range.end` is a hole. The caller begins
    /// a new handle and continues with `range.start..at`. A handle begun with
    /// [`Extents::credits_remove`] always makes progress. `NoSpace` if a hole in the middle of an
    /// extent needs a new node and no block is free; the step with the error changes nothing.
    pub fn remove(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        range: Range<FileBlock>,
        freed: Freed<'_>,
    ) -> Result<Progress> {
        if !has_extents(inode) {
            return self.remove_blocks(handle, inode, range, freed);
        }
        let mut end = range.end;
        while end > range.start {
            match self.remove_in_leaf(handle, inode, range.start..end, freed)? {
                RemovalStep::To(at) => end = at,
                RemovalStep::AllRemoved => break,
                RemovalStep::CommitFull => return Ok(Progress::Stopped(end)),
            }
        }
        Ok(Progress::Done)
    }

    /// Removes the part of the range that is in the last leaf with entries before `range.end`.
    fn remove_in_leaf(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        range: Range<FileBlock>,
        freed: Freed<'_>,
    ) -> Result<RemovalStep> {
        let path = self.path(inode, FileBlock(range.end.0 - 1))?;
        let leaf = path.leaf();
        let nodes = step_credits(path.levels.len() as u32 - 1);
        let mut groups = FreedGroups::default();
        let mut with: Vec<RawEntry> = Vec::new();
        let mut runs = Vec::new();
        let before_end = leaf.entries.partition_point(|raw| Extent::decode(raw).at < range.end);
        let mut first = before_end;
        let mut done_to = range.end;
        while let Some(extent) = first.checked_sub(1).map(|i| Extent::decode(&leaf.entries[i]))
            && extent.end() > range.start
        {
            let cut = extent.part(extent.at.max(range.start), extent.end().min(range.end));
            groups.add(self.sb, cut.run);
            if !handle.ensure(nodes + groups.credits())? {
                break;
            }
            // Only the last extent may extend past the range, and only the first one may begin
            // before it.
            if extent.end() > cut.end() {
                with.push(extent.part(cut.end(), extent.end()).encode());
            }
            if extent.at < cut.at {
                with.insert(0, extent.part(extent.at, cut.at).encode());
            }
            runs.push(cut.run);
            done_to = cut.at;
            first -= 1;
        }
        if runs.is_empty() {
            let nothing = first == 0 || Extent::decode(&leaf.entries[first - 1]).end() <= range.start;
            return Ok(if nothing { RemovalStep::AllRemoved } else { RemovalStep::CommitFull });
        }
        let removed = runs.iter().map(|run| u64::from(run.len)).sum();
        let change = self.plan(&path, first..before_end, &with)?;
        for run in runs {
            freed(handle, run)?;
        }
        change.apply(handle, inode, 0, removed)?;
        Ok(RemovalStep::To(done_to))
    }
}

enum RemovalStep {
    /// From here to the end of the range, all is removed.
    To(FileBlock),
    AllRemoved,
    CommitFull,
}

/// The groups whose bitmaps a step changes by freeing data.
#[derive(Default)]
pub(super) struct FreedGroups {
    groups: BTreeSet<u64>,
}

impl FreedGroups {
    pub fn add(&mut self, sb: &Superblock, run: Run) {
        let group = |block: u64| {
            block.saturating_sub(u64::from(sb.first_data_block())) / u64::from(sb.blocks_per_group())
        };
        self.groups.extend(group(run.start.0)..=group(run.end().0 - 1));
    }

    pub fn credits(&self) -> u32 {
        self.groups.len() as u32 * CREDITS_PER_BLOCK
    }
}
