//! The block map of a file: lookups and changes of an inode's extent tree.
//!
//! Layer: above the codec (`xact_layout::extent`) and the engine, below the live file system. The
//! caller owns the inode in memory, holds its lock and writes it back. This module changes its
//! `i_block` and `i_blocks`, and nodes outside the inode through the caller's handle.
//!
//! - `path`: from the root to a leaf, for lookups (without allocation) and for changes
//! - `accepted`: nodes that were already checked
//! - `plan`: a change of one leaf and its effects above: splits, merges, depth. All reads and all
//!   taking of blocks happen during planning, so an error there changes nothing
//! - `insert`, `remove`, `convert`: the operations, each a few plans
//! - `block_map`: the same for inodes without the extents flag (ext2 and ext3)
//!
//! Invariants of written trees, beyond those that the codec checks:
//! 1. An index entry starts where its child's first entry starts.
//! 2. No node except the root is empty. If a root of depth > 0 has a single child, the child's
//!    entries do not fit into the root.
//! 3. Contiguous neighbours within a leaf are one extent.
//!
//! After a crash the tree is as some commit left it: each handle's changes survive as a whole or
//! not at all.

mod accepted;
mod block_map;
mod convert;
mod insert;
mod path;
mod plan;
mod remove;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use xact_consistency::Engine;
use xact_layout::extent::{
    END_OF_FILES, Extent, Index, MAX_DEPTH, MAX_WRITTEN_LEN, Node, ROOT_CAPACITY, block_capacity,
};
use xact_layout::inode::{Inode, flag, inode_seed};
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, FileBlock, Ino, Result, Run, Site};

use crate::metadata_blocks::{CREDITS_PER_BLOCK, MetadataBlocks};
pub use remove::Freed;

/// The inode that a tree belongs to; its nodes' checksums depend on both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub ino: Ino,
    pub generation: u32,
}

/// The mapping of file blocks from a given one up to the next change. `len` counts blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// No blocks; reads as zeros. The last hole ends at the maximum file size.
    Hole { len: u32 },
    /// Written blocks from `start` on.
    Written { start: BlockNr, len: u32 },
    /// Unwritten blocks from `start` on, which read as zeros.
    Unwritten { start: BlockNr, len: u32 },
}

impl Mapping {
    /// Number of file blocks up to the next change.
    pub fn blocks(&self) -> u32 {
        match *self {
            Mapping::Hole { len } | Mapping::Written { len, .. } | Mapping::Unwritten { len, .. } => len,
        }
    }
}

/// Insertions into a file and removals from it, at any file blocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Replacement {
    /// Inserted runs, and their blocks.
    pub runs: u64,
    pub blocks: u64,
    /// Extents (in a block map: runs within an array) that are removed or shortened.
    pub gone: u64,
    /// The file block after the last inserted one.
    pub end: u64,
}

/// Upper bounds of the nodes of a file's map that a [`Replacement`] changes.
#[derive(Debug, Clone, Copy, Default)]
pub struct MapChanges {
    /// Nodes whose contents change.
    pub changed: u64,
    /// Nodes in newly taken blocks.
    pub new: u64,
    /// Nodes that may be freed, without those whose bitmaps `changed` already includes.
    pub freed: u64,
}

/// The progress of a change that may need more than one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    Done,
    /// The handle's commit is full. The range is done up to this file block; the operation defines
    /// the direction.
    Stopped(FileBlock),
}

/// The blocks of one file.
#[derive(Clone, Copy)]
pub struct Extents<'a> {
    engine: &'a Arc<Engine>,
    sb: &'a Superblock,
    blocks: &'a dyn MetadataBlocks,
    owner: Owner,
}

impl<'a> Extents<'a> {
    pub fn new(
        engine: &'a Arc<Engine>,
        sb: &'a Superblock,
        blocks: &'a dyn MetadataBlocks,
        owner: Owner,
    ) -> Extents<'a> {
        Extents { engine, sb, blocks, owner }
    }

    /// The mapping at `at`. Contiguous extents are not joined.
    pub fn map(&self, inode: &Inode, at: FileBlock) -> Result<Mapping> {
        assert!(at < END_OF_FILES, "file block beyond the end of files");
        if !has_extents(inode) {
            return self.map_blocks(inode, at);
        }
        self.with_leaf(inode, at, |leaf, end| {
            let count = leaf.count_up_to(at);
            if let Some(last) = count.checked_sub(1) {
                let extent = leaf.extent(last);
                if at < extent.end() {
                    let rest = extent.part(at, extent.end()).run;
                    self.check_usable(rest)?;
                    return Ok(if extent.unwritten {
                        Mapping::Unwritten { start: rest.start, len: rest.len }
                    } else {
                        Mapping::Written { start: rest.start, len: rest.len }
                    });
                }
            }
            let next = if count < leaf.len() { leaf.key(count) } else { end };
            Ok(Mapping::Hole { len: next.0 - at.0 })
        })
    }

    /// Calls `each` with all extents that overlap `range`, in order and in full, until it returns
    /// false.
    pub fn iterate(
        &self,
        inode: &Inode,
        range: Range<FileBlock>,
        each: &mut dyn FnMut(Extent) -> Result<bool>,
    ) -> Result<()> {
        if !has_extents(inode) {
            return self.iterate_blocks(inode, range, each);
        }
        let mut at = range.start;
        while at < range.end {
            let next = self.with_leaf(inode, at, |leaf, end| {
                let range = at..range.end;
                each_in_leaf(leaf, end, range, &mut |extent| {
                    self.check_usable(extent.run)?;
                    each(extent)
                })
            })?;
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Reads the nodes for a change at this file block into memory: those on the path to its leaf,
    /// and their neighbours.
    pub fn read_ahead(&self, inode: &Inode, at: FileBlock) -> Result<()> {
        if !has_extents(inode) {
            return self.map(inode, at).map(|_| ());
        }
        self.read_neighbours(&self.path(inode, at)?);
        Ok(())
    }

    /// Reads the nodes for a removal, which goes from the end of the range to its start; `each` is
    /// called with the runs that it will free. Returns the file block from which on all nodes are
    /// in memory; for a large file that is not the range's start.
    pub fn read_ahead_removal(
        &self,
        inode: &Inode,
        range: Range<FileBlock>,
        each: &mut dyn FnMut(Run),
    ) -> Result<FileBlock> {
        if !has_extents(inode) {
            return Ok(range.start);
        }
        let mut end = range.end;
        for _ in 0..READ_AHEAD_LEAVES {
            if end <= range.start {
                return Ok(range.start);
            }
            let path = self.path(inode, FileBlock(end.0 - 1))?;
            self.read_neighbours(&path);
            let extents = path.leaf().entries.iter().map(Extent::decode);
            let (mut first, mut overlaps) = (end, false);
            for extent in extents.filter(|extent| extent.at < end && extent.end() > range.start) {
                each(extent.part(extent.at.max(range.start), extent.end().min(end)).run);
                first = first.min(extent.at);
                overlaps = true;
            }
            if !overlaps || path.levels.iter().all(|level| level.at == 0) {
                return Ok(range.start);
            }
            end = first;
        }
        Ok(end.max(range.start))
    }

    /// Reads the nodes that a node of the path may be merged with. The change returns errors.
    fn read_neighbours(&self, path: &path::TreePath) {
        for level in path.levels.iter().filter(|level| level.depth > 0) {
            for i in [level.at.wrapping_sub(1), level.at + 1] {
                if let Some(entry) = level.entries.get(i) {
                    let _ = self.engine.read(Index::decode(entry).child);
                }
            }
        }
    }

    /// Upper bound of the metadata blocks that `runs` calls of [`Extents::insert`] with a total of
    /// `blocks` blocks change in one handle. It includes the bitmaps and descriptors of new nodes,
    /// but not those of the data. A run longer than an extent can be counts as several.
    pub fn credits_insert(&self, inode: &Inode, runs: u32, blocks: u32) -> u32 {
        if !has_extents(inode) {
            let arrays = block_map::insert::arrays_touched(self.per_array(), runs.into(), blocks.into());
            return block_map::insert::credits(arrays);
        }
        let (depth, len) = self.root_shape(inode);
        if depth == 0 && len + runs as usize <= ROOT_CAPACITY {
            return 0;
        }
        // After an insert that made the tree deeper, the others have one level more.
        let depth = if runs > 1 { (depth + 1).min(u32::from(MAX_DEPTH)) } else { depth };
        split_credits(depth).saturating_mul(runs)
    }

    /// Credits with which [`Extents::remove`] removes at least one extent, including the freeing of
    /// its data (bitmap and descriptor of each group).
    pub fn credits_remove(&self, inode: &Inode) -> u32 {
        let nodes =
            if has_extents(inode) { step_credits(self.root_shape(inode).0) } else { block_map::STEP_CREDITS };
        let groups = MAX_WRITTEN_LEN.div_ceil(self.sb.blocks_per_group()) + 1;
        nodes + groups * CREDITS_PER_BLOCK
    }

    /// Upper bounds for any number of insertions and removals at any file blocks.
    pub fn map_changes(&self, inode: &Inode, change: Replacement) -> MapChanges {
        let Replacement { runs, blocks, gone, end } = change;
        if !has_extents(inode) {
            let per_array = self.per_array();
            let end = end.max(inode.size().div_ceil(u64::from(self.sb.block_size())));
            let all = block_map::insert::arrays_before(per_array, end);
            let new = block_map::insert::arrays_touched(per_array, runs, blocks).min(all);
            // A removed run lies below one array of each level, and may be the last one there.
            let freed = (block_map::MAX_LEVELS as u64 * gone).min(all);
            return MapChanges { changed: freed, new, freed };
        }
        let (depth, len) = self.root_shape(inode);
        if depth == 0 && gone == 0 && len as u64 + runs <= ROOT_CAPACITY as u64 {
            return MapChanges::default();
        }
        let depth = u64::from(depth);
        // A node is split in half.
        let half = block_capacity(self.engine.block_size()) as u64 / 2;
        MapChanges { changed: (runs + gone) * depth, new: depth + 2 + 2 * runs / half, freed: 0 }
    }

    /// Credits with which [`Extents::set_written`] completes at least one leaf of the tree.
    pub fn credits_set_written(&self, inode: &Inode) -> u32 {
        step_credits(self.root_shape(inode).0)
    }

    /// Depth and number of entries of the root, from unchecked bytes.
    fn root_shape(&self, inode: &Inode) -> (u32, usize) {
        match Node::root(inode.block_area(), self.sb, Site::Inode(self.owner.ino)) {
            Ok(root) => (u32::from(root.depth()), root.len()),
            // The operation itself will return the error.
            Err(_) => (u32::from(MAX_DEPTH), ROOT_CAPACITY),
        }
    }

    fn seed(&self) -> u32 {
        inode_seed(self.sb, self.owner.ino, self.owner.generation)
    }

    fn sectors_per_block(&self) -> u64 {
        u64::from(self.sb.block_size() / 512)
    }

    /// Adjusts `i_blocks`, which may be too small in a corrupt inode.
    fn account(&self, inode: &mut Inode, added_blocks: u64, removed_blocks: u64) {
        let sectors = inode.sectors(self.sb) + added_blocks * self.sectors_per_block();
        inode.set_sectors(self.sb, sectors.saturating_sub(removed_blocks * self.sectors_per_block()));
    }
}

/// Number of leaves that are read before one step of a removal.
const READ_AHEAD_LEAVES: usize = 8;

/// Maximum blocks of a file without extents, if it may have no more than `all` blocks with its
/// arrays (`ext4_max_bitmap_size`).
pub fn mapped_blocks_max(block_size: u32, all: u64) -> u64 {
    let per_array = u64::from(block_size / 4);
    let blocks = block_map::blocks_max(per_array);
    if blocks + block_map::arrays_of(blocks, per_array) <= all {
        return blocks;
    }
    all - block_map::arrays_of(all, per_array)
}

/// Whether the inode's `i_block` is the root of an extent tree.
fn has_extents(inode: &Inode) -> bool {
    inode.flags() & flag::EXTENTS != 0
}

/// Iterates over one leaf. Returns the start of the next leaf, or `None` at the end.
fn each_in_leaf(
    leaf: Node<'_>,
    end: FileBlock,
    range: Range<FileBlock>,
    each: &mut dyn FnMut(Extent) -> Result<bool>,
) -> Result<Option<FileBlock>> {
    for i in leaf.count_up_to(range.start).saturating_sub(1)..leaf.len() {
        let extent = leaf.extent(i);
        if extent.at >= range.end {
            return Ok(None);
        }
        if extent.end() > range.start && !each(extent)? {
            return Ok(None);
        }
    }
    Ok(Some(end))
}

/// Blocks that a growing change of one leaf may change: the path, and for each level and a new root
/// a new node with its bitmap and descriptor.
fn split_credits(depth: u32) -> u32 {
    depth + (depth + 1) * (1 + CREDITS_PER_BLOCK)
}

/// Blocks that any change of one leaf may change: as `split_credits`, or, when it shrinks, the path
/// and a neighbour for each level, each of which may be freed.
fn step_credits(depth: u32) -> u32 {
    split_credits(depth).max(2 * depth * (1 + CREDITS_PER_BLOCK))
}
