//! The block maps of inodes without an extent tree: twelve direct blocks, then arrays of block
//! numbers, singly, doubly and triply indirect (ext2 and ext3). This file reads them and removes
//! blocks; `insert` adds blocks.
//!
//! ```text
//! i_block[0..12]   file blocks 0..12
//! i_block[12]      -> array of N blocks                N = block size / 4
//! i_block[13]      -> array of N -> arrays of N
//! i_block[14]      -> array of N -> arrays of N -> arrays of N
//! ```
//!
//! A pointer of 0 is a hole for all file blocks below it. No array is empty: when the last pointer
//! of an array is cleared, the same handle frees the array and clears the pointer to it.
//!
//! Crash argument of a removal: a handle clears pointers, frees their blocks and forgets freed
//! arrays (a revoke record, so that no replay writes an array over the block's next owner), all in
//! one commit. A removal in several commits goes from the end of the file to its start, under the
//! orphan list (`live/data/remove`), and each commit leaves a map without dangling pointers.

pub(super) mod insert;

use std::ops::Range;

use xact_consistency::{BlockRef, Handle};
use xact_layout::extent::{END_OF_FILES, Extent};
use xact_layout::inode::Inode;
use xact_layout::{get_u32, put_u32};
use xact_types::{BlockNr, FileBlock, Result, Run};

use super::remove::{Freed, FreedGroups};
use super::{Extents, Mapping, Progress};
use crate::metadata_blocks::CREDITS_PER_BLOCK;

const DIRECT: u64 = 12;
/// Maximum number of arrays on the path to a block.
pub(super) const MAX_LEVELS: usize = 3;
/// Credits of a step: each array on the path is changed, or freed in its bitmap and descriptor.
pub(super) const STEP_CREDITS: u32 = MAX_LEVELS as u32 * (1 + CREDITS_PER_BLOCK);

/// Number of file blocks that twelve pointers and three levels of arrays can map.
pub(super) fn blocks_max(per_array: u64) -> u64 {
    DIRECT + per_array + per_array.pow(2) + per_array.pow(3)
}

/// Number of arrays that map the first `blocks` blocks of a file without holes.
pub(super) fn arrays_of(blocks: u64, per_array: u64) -> u64 {
    let (mut rest, mut arrays) = (blocks.saturating_sub(DIRECT), 0);
    for levels in 1..=MAX_LEVELS as u32 {
        let mapped = rest.min(per_array.pow(levels));
        arrays += (1..=levels).map(|level| mapped.div_ceil(per_array.pow(level))).sum::<u64>();
        rest -= mapped;
    }
    arrays
}

/// The path to a file block: a slot in `i_block`, then slots in the arrays below it.
struct Route {
    slots: [usize; MAX_LEVELS + 1],
    levels: usize,
    /// First file block below each slot.
    starts: [u64; MAX_LEVELS + 1],
}

impl Route {
    /// `None` for a file block that three levels cannot map.
    fn to(at: FileBlock, per_array: u64) -> Option<Route> {
        let mut route = Route { slots: [0; 4], levels: 0, starts: [0; 4] };
        let at = u64::from(at.0);
        if at < DIRECT {
            route.slots[0] = at as usize;
            route.starts[0] = at;
            return Some(route);
        }
        let (mut base, mut span) = (DIRECT, per_array);
        for levels in 1..=MAX_LEVELS {
            if at < base + span {
                route.levels = levels;
                route.slots[0] = DIRECT as usize + levels - 1;
                route.starts[0] = base;
                let (mut start, mut below) = (base, span);
                for level in 1..=levels {
                    below /= per_array;
                    let slot = (at - start) / below;
                    start += slot * below;
                    route.slots[level] = slot as usize;
                    route.starts[level] = start;
                }
                return Some(route);
            }
            base += span;
            span *= per_array;
        }
        None
    }

    /// Number of file blocks below the slot at `level`.
    fn span(&self, level: usize, per_array: u64) -> u64 {
        per_array.pow((self.levels - level) as u32)
    }
}

/// The end of a path: an array with the file block's slot, or a hole above it.
enum Reached<'r> {
    /// `None` for `i_block` itself.
    Array(Option<BlockNr>, ArrayBytes<'r>),
    Hole {
        start: u64,
        end: u64,
    },
}

enum ArrayBytes<'r> {
    Root(&'r [u8]),
    Block(BlockRef),
}

impl ArrayBytes<'_> {
    fn get(&self, slot: usize) -> u32 {
        match self {
            ArrayBytes::Root(bytes) => get_u32(bytes, 4 * slot),
            ArrayBytes::Block(bytes) => get_u32(bytes, 4 * slot),
        }
    }

    /// Number of slots for data blocks.
    fn len(&self) -> usize {
        match self {
            ArrayBytes::Root(_) => DIRECT as usize,
            ArrayBytes::Block(bytes) => bytes.len() / 4,
        }
    }
}

impl Extents<'_> {
    pub(super) fn per_array(&self) -> u64 {
        self.engine.block_size() as u64 / 4
    }

    /// Follows a path down to its last array, and adds the arrays on it to `arrays`.
    fn follow<'r>(
        &self,
        inode: &'r Inode,
        route: &Route,
        arrays: &mut [BlockNr; MAX_LEVELS],
    ) -> Result<Reached<'r>> {
        let mut bytes = ArrayBytes::Root(inode.block_area());
        let mut own = None;
        for (level, array) in arrays.iter_mut().enumerate().take(route.levels) {
            let child = bytes.get(route.slots[level]);
            if child == 0 {
                let start = route.starts[level];
                return Ok(Reached::Hole { start, end: start + route.span(level, self.per_array()) });
            }
            let child = self.valid_block(child)?;
            *array = child;
            bytes = ArrayBytes::Block(self.engine.read(child)?);
            own = Some(child);
        }
        Ok(Reached::Array(own, bytes))
    }

    fn valid_block(&self, block: u32) -> Result<BlockNr> {
        let block = BlockNr(u64::from(block));
        self.check_usable(Run { start: block, len: 1 })?;
        Ok(block)
    }

    pub(super) fn map_blocks(&self, inode: &Inode, at: FileBlock) -> Result<Mapping> {
        let hole = |end: u64| Mapping::Hole { len: (end.min(u64::from(END_OF_FILES.0))) as u32 - at.0 };
        let Some(route) = Route::to(at, self.per_array()) else {
            return Ok(hole(u64::MAX));
        };
        let array = match self.follow(inode, &route, &mut Default::default())? {
            Reached::Hole { end, .. } => return Ok(hole(end)),
            Reached::Array(_, array) => array,
        };
        let first = route.slots[route.levels];
        let start = array.get(first);
        let continues = |i: usize| {
            let expected = if start == 0 { Some(0) } else { start.checked_add((i - first) as u32) };
            Some(array.get(i)) == expected
        };
        let count = (first + 1..array.len()).take_while(|&i| continues(i)).count() as u32 + 1;
        if start == 0 {
            return Ok(hole(u64::from(at.0) + u64::from(count)));
        }
        let run = Run { start: BlockNr(u64::from(start)), len: count.min(END_OF_FILES.0 - at.0) };
        self.check_usable(run)?;
        Ok(Mapping::Written { start: run.start, len: run.len })
    }

    pub(super) fn iterate_blocks(
        &self,
        inode: &Inode,
        range: Range<FileBlock>,
        each: &mut dyn FnMut(Extent) -> Result<bool>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let mapping = self.map_blocks(inode, at)?;
            if let Mapping::Written { start, len } = mapping
                && !each(Extent { at, run: Run { start, len }, unwritten: false })?
            {
                break;
            }
            at = at.offset(mapping.blocks());
        }
        Ok(())
    }

    /// See [`Extents::remove`].
    pub(super) fn remove_blocks(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        range: Range<FileBlock>,
        freed: Freed<'_>,
    ) -> Result<Progress> {
        let mut end = u64::from(range.end.0);
        let start = u64::from(range.start.0);
        while end > start {
            let last = FileBlock((end - 1) as u32);
            let Some(route) = Route::to(last, self.per_array()) else {
                // No block is mapped there: continue at the end of the last array.
                end = blocks_max(self.per_array());
                continue;
            };
            let mut arrays = [BlockNr(0); MAX_LEVELS];
            let (own, array) = match self.follow(inode, &route, &mut arrays)? {
                Reached::Hole { start: hole, .. } => {
                    end = hole;
                    continue;
                }
                Reached::Array(own, array) => (own, array),
            };
            if !handle.ensure(STEP_CREDITS)? {
                return Ok(Progress::Stopped(FileBlock(end as u32)));
            }
            let slot = route.slots[route.levels];
            // Number of slots from `slot` down that are in the range.
            let places = (slot + 1).min((end - start) as usize);
            let (runs, cleared) = self.runs_down(handle, &array, slot, places)?;
            if cleared == 0 {
                return Ok(Progress::Stopped(FileBlock(end as u32)));
            }
            let removed: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
            for run in runs {
                freed(handle, run)?;
            }
            let clear = slot + 1 - cleared..slot + 1;
            let empty = own.is_some() && (0..array.len()).all(|i| clear.contains(&i) || array.get(i) == 0);
            drop(array);
            let mut freed_arrays = 0;
            if empty {
                freed_arrays = self.free_arrays(handle, inode, &route, &arrays)?;
            } else if removed > 0 {
                self.clear_slots(handle, inode, own, clear)?;
            }
            self.account(inode, 0, removed + freed_arrays);
            end -= cleared as u64;
        }
        Ok(Progress::Done)
    }

    /// The blocks in up to `places` slots of an array from `slot` down, and the number of slots for
    /// which the handle has credits.
    fn runs_down(
        &self,
        handle: &mut Handle,
        array: &ArrayBytes<'_>,
        slot: usize,
        places: usize,
    ) -> Result<(Vec<Run>, usize)> {
        let mut groups = FreedGroups::default();
        let mut runs: Vec<Run> = Vec::new();
        for done in 0..places {
            let block = array.get(slot - done);
            if block == 0 {
                continue;
            }
            let run = Run { start: self.valid_block(block)?, len: 1 };
            groups.add(self.sb, run);
            if !handle.ensure(STEP_CREDITS + groups.credits())? {
                return Ok((runs, done));
            }
            match runs.last_mut() {
                Some(last) if run.end() == last.start => {
                    *last = Run { start: run.start, len: last.len + 1 };
                }
                _ => runs.push(run),
            }
        }
        Ok((runs, places))
    }

    /// Frees the last array of a path, which has become empty, and the arrays above of which it was
    /// the last entry. Returns their number.
    fn free_arrays(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        route: &Route,
        arrays: &[BlockNr; MAX_LEVELS],
    ) -> Result<u64> {
        for level in (0..route.levels).rev() {
            handle.forget(arrays[level])?;
            self.blocks.free(handle, arrays[level])?;
            let slot = route.slots[level];
            let parent = level.checked_sub(1).map(|above| arrays[above]);
            let empty = match parent {
                None => false,
                Some(block) => {
                    let bytes = handle.read(block)?;
                    (0..bytes.len() / 4).all(|i| i == slot || get_u32(&bytes, 4 * i) == 0)
                }
            };
            if !empty {
                self.clear_slots(handle, inode, parent, slot..slot + 1)?;
                return Ok((route.levels - level) as u64);
            }
        }
        unreachable!("the inode's own array is never freed")
    }

    fn clear_slots(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        array: Option<BlockNr>,
        slots: Range<usize>,
    ) -> Result<()> {
        let clear = |bytes: &mut [u8]| slots.for_each(|slot| put_u32(bytes, 4 * slot, 0));
        match array {
            Some(block) => handle.update(block, clear),
            None => {
                let mut area = *inode.block_area();
                clear(&mut area);
                inode.set_block_area(&area);
                Ok(())
            }
        }
    }
}
