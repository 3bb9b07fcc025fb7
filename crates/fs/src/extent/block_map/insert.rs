//! Adds blocks to a block map, with the missing arrays on the paths to them.
//!
//! Crash argument:
//! 1. The data is on the device before the handle begins (`live/data/writeback` 2, 3).
//! 2. A new array's contents (`create`) and the pointer to it are in one handle, so in one commit:
//!    no pointer ever leads to a block with old bytes.
//! 3. Existing arrays change through the handle like every metadata block. After a crash, the map
//!    is that of some commit; blocks that it does not refer to are also free in that commit's
//!    bitmaps.

use std::collections::BTreeMap;

use xact_consistency::Handle;
use xact_layout::inode::{BLOCK_AREA_BYTES, Inode};
use xact_layout::{get_u32, put_u32};
use xact_types::{BlockNr, Error, FileBlock, Result, Run, Site};

use super::{DIRECT, Extents, MAX_LEVELS, Route};
use crate::metadata_blocks::CREDITS_PER_BLOCK;

/// Number of arrays that one run changes at its ends: on each level one at either end, but only one
/// at the top.
const ARRAYS_PER_RUN: u64 = 2 * MAX_LEVELS as u64 - 1;

/// Maximum number of arrays that `runs` runs with a total of `blocks` blocks change; each may be
/// new.
pub(in crate::extent) fn arrays_touched(per_array: u64, runs: u64, blocks: u64) -> u64 {
    blocks / per_array + blocks / (per_array * per_array) + ARRAYS_PER_RUN * runs
}

/// Number of all arrays of a file whose last block is before `end`.
pub(in crate::extent) fn arrays_before(per_array: u64, end: u64) -> u64 {
    let beyond = end.saturating_sub(DIRECT);
    if beyond == 0 { 0 } else { beyond / per_array + beyond / (per_array * per_array) + ARRAYS_PER_RUN }
}

/// Credits for this number of arrays, each with its bitmap and descriptor.
pub(in crate::extent) fn credits(arrays: u64) -> u32 {
    u32::try_from(arrays * u64::from(1 + CREDITS_PER_BLOCK)).unwrap_or(u32::MAX)
}

/// The writes of an insertion, planned for one state of the map. It is applied, or its drop gives
/// the taken blocks back.
struct Insertion<'a> {
    extents: Extents<'a>,
    area: [u8; BLOCK_AREA_BYTES],
    /// New arrays, in blocks taken for them.
    created: BTreeMap<BlockNr, Vec<u8>>,
    /// Slots of existing arrays, with their new pointers.
    changed: BTreeMap<BlockNr, Vec<(usize, u32)>>,
}

impl<'a> Extents<'a> {
    /// See [`Extents::insert`]. Errors by lack of space or corruption come before the first change.
    pub(in crate::extent) fn insert_blocks(
        &self,
        handle: &mut Handle,
        inode: &mut Inode,
        at: FileBlock,
        run: Run,
    ) -> Result<()> {
        // Pointers have 32 bits; such volumes are refused before any data is written.
        if run.end().0 > 1 << 32 {
            return Err(Error::Unsupported("block-mapped files beyond block 2^32".into()));
        }
        let area = *inode.block_area();
        let mut insertion =
            Insertion { extents: *self, area, created: BTreeMap::new(), changed: BTreeMap::new() };
        insertion.plan(at, run)?;
        insertion.apply(handle, inode, run.len)
    }
}

impl Insertion<'_> {
    fn plan(&mut self, at: FileBlock, run: Run) -> Result<()> {
        let per_array = self.extents.per_array();
        let mut done = 0;
        while done < run.len {
            let first = at.offset(done);
            let route = Route::to(first, per_array).expect("callers keep to the maximum size of a file");
            let array = self.array_for(&route, run.start)?;
            let slot = route.slots[route.levels];
            let places = if route.levels == 0 { DIRECT } else { per_array };
            let count = (places - slot as u64).min(u64::from(run.len - done)) as u32;
            for i in 0..count {
                // It was checked above that this fits.
                let block = run.start.0 as u32 + done + i;
                self.set(array, slot + i as usize, block)?;
            }
            done += count;
        }
        Ok(())
    }

    /// The last array of a path. Missing arrays on the path are created. `None` for `i_block`.
    fn array_for(&mut self, route: &Route, goal: BlockNr) -> Result<Option<BlockNr>> {
        let mut array = None;
        for level in 0..route.levels {
            let slot = route.slots[level];
            let child = self.get(array, slot)?;
            array = Some(if child == 0 {
                let new = self.extents.blocks.take(goal)?;
                self.created.insert(new, vec![0; self.extents.engine.block_size()]);
                self.set(array, slot, new.0 as u32)?;
                new
            } else if self.created.contains_key(&BlockNr(child.into())) {
                BlockNr(child.into())
            } else {
                self.extents.valid_block(child)?
            });
        }
        Ok(array)
    }

    fn get(&self, array: Option<BlockNr>, slot: usize) -> Result<u32> {
        let Some(block) = array else { return Ok(get_u32(&self.area, 4 * slot)) };
        if let Some(bytes) = self.created.get(&block) {
            return Ok(get_u32(bytes, 4 * slot));
        }
        let planned = self.changed.get(&block).and_then(|places| places.iter().find(|place| place.0 == slot));
        match planned {
            Some((_, value)) => Ok(*value),
            None => Ok(get_u32(&self.extents.engine.read(block)?, 4 * slot)),
        }
    }

    fn set(&mut self, array: Option<BlockNr>, slot: usize, value: u32) -> Result<()> {
        match array {
            None => {
                self.must_be_hole(get_u32(&self.area, 4 * slot))?;
                put_u32(&mut self.area, 4 * slot, value);
            }
            Some(block) => match self.created.get_mut(&block) {
                Some(bytes) => put_u32(bytes, 4 * slot, value),
                None => {
                    // Read now, so that the block is in memory for the change.
                    let now = get_u32(&self.extents.engine.read(block)?, 4 * slot);
                    self.must_be_hole(now)?;
                    self.changed.entry(block).or_default().push((slot, value));
                }
            },
        }
        Ok(())
    }

    /// Checks that the slot is a hole, as the caller has seen before. Only a map that leads to one
    /// array
    /// twice fails here.
    fn must_be_hole(&self, pointer: u32) -> Result<()> {
        if pointer == 0 {
            return Ok(());
        }
        Err(Error::corrupt(Site::Inode(self.extents.owner.ino), "the file's block map uses a block twice"))
    }

    fn apply(mut self, handle: &mut Handle, inode: &mut Inode, added: u32) -> Result<()> {
        let created = std::mem::take(&mut self.created);
        self.extents.account(inode, u64::from(added) + created.len() as u64, 0);
        for (block, bytes) in created {
            self.extents.blocks.link(handle, block)?;
            handle.create(block, bytes)?;
        }
        for (block, places) in std::mem::take(&mut self.changed) {
            handle.update(block, |bytes| {
                places.iter().for_each(|(slot, value)| put_u32(bytes, 4 * slot, *value));
            })?;
        }
        inode.set_block_area(&self.area);
        Ok(())
    }
}

impl Drop for Insertion<'_> {
    fn drop(&mut self) {
        for block in self.created.keys() {
            self.extents.blocks.give_back(*block);
        }
    }
}
