//! Marks unwritten blocks as written.

use std::ops::Range;

use xact_consistency::Handle;
use xact_layout::extent::{Extent, RawEntry};
use xact_layout::inode::Inode;
use xact_types::{FileBlock, Result};

use super::path::Level;
use super::{Extents, Progress, step_credits};

impl Extents<'_> {
    /// Marks the unwritten blocks in `range` as written, from its start on; the data must already
    /// be on the device. Written blocks and holes in the range stay unchanged.
    ///
    /// `Stopped(at)`: the handle's commit is full, and `range.start..at` is done. A handle begun
    /// with [`Extents::credits_set_written`] always makes progress. `NoSpace` if an extent must be
    /// split and no block is free for a new node; the step with the error changes nothing.
    pub fn set_written(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        range: Range<FileBlock>,
    ) -> Result<Progress> {
        let mut at = range.start;
        while at < range.end {
            let path = self.path(inode, at)?;
            let leaf = path.leaf();
            if let Some((entries, with)) = converted(leaf, at..range.end) {
                if !handle.ensure(step_credits(path.levels.len() as u32 - 1))? {
                    return Ok(Progress::Stopped(at));
                }
                self.plan(&path, entries, &with)?.apply(handle, inode, 0, 0)?;
            }
            at = leaf.end;
        }
        Ok(Progress::Done)
    }
}

/// The entries of a leaf that a conversion of `range` changes, and their new values; `None` if no
/// block in the range is unwritten.
fn converted(leaf: &Level, range: Range<FileBlock>) -> Option<(Range<usize>, Vec<RawEntry>)> {
    let extents: Vec<Extent> = leaf.entries.iter().map(Extent::decode).collect();
    let first = extents.iter().position(|e| e.end() > range.start)?;
    let behind = extents.iter().position(|e| e.at >= range.end).unwrap_or(extents.len());
    if !extents.get(first..behind)?.iter().any(|e| e.unwritten) {
        return None;
    }
    // The neighbours on both sides may join the written blocks.
    let (from, to) = (first.saturating_sub(1), (behind + 1).min(extents.len()));
    let mut result: Vec<Extent> = Vec::with_capacity(to - from + 2);
    let mut push = |extent: Extent| match result.last_mut() {
        Some(last) if last.merged(&extent).is_some() => *last = last.merged(&extent).expect("checked above"),
        _ => result.push(extent),
    };
    for extent in &extents[from..to] {
        let (cut_from, cut_to) = (extent.at.max(range.start), extent.end().min(range.end));
        if !extent.unwritten || cut_from >= cut_to {
            push(*extent);
            continue;
        }
        if extent.at < cut_from {
            push(extent.part(extent.at, cut_from));
        }
        push(Extent { unwritten: false, ..extent.part(cut_from, cut_to) });
        if cut_to < extent.end() {
            push(extent.part(cut_to, extent.end()));
        }
    }
    Some((from..to, result.iter().map(Extent::encode).collect()))
}
