//! Writes blocks home, so that the pool does not fill up.
//!
//! Home is the place that a block's number names. The home of a block in the pool is unused and
//! stays unused: ext4's bitmap marks it as allocated, so neither data nor other metadata is written
//! there. A commit may write a block home if the durable generation has it in the pool. The
//! commit's map then has no pointer for it, and its pool block is free when the commit is durable.
//! The commit after that must use the pool again, because the home is then part of a durable
//! generation.
//!
//! Blocks that hold a copy of the superblock are never written home: the copies there make other
//! programs reject the volume (`format`).
//!
//! Each commit continues where the last one stopped, in the order of block numbers. Most of the
//! blocks that it finds have not changed since they moved. A block that changes often is part of
//! the commit anyway.

use std::collections::BTreeSet;

use xact_layout::generations::Pointer;
use xact_layout::superblock::Superblock;
use xact_types::{BlockNr, Error, GroupNr, Result};

use super::map::{Map, MapReader};
use super::pool::Pool;
use super::snapshot_refs::SnapshotRefs;
use super::{Generations, State};

/// The blocks that must never be written home.
pub(super) struct Homes {
    never: BTreeSet<BlockNr>,
}

impl Homes {
    pub fn of(superblock: &Superblock) -> Homes {
        Homes { never: superblock_copies(superblock).collect() }
    }

    pub fn may_ever(&self, block: BlockNr) -> bool {
        !self.never.contains(&block)
    }

    /// Whether a block may be written home now: `durable` has it in the pool, and no snapshot has
    /// anything in its home.
    pub fn is_free(
        &self,
        reader: &MapReader,
        durable: &Map,
        refs: &SnapshotRefs,
        block: BlockNr,
    ) -> Result<bool> {
        Ok(self.may_ever(block) && durable.get(reader, block)?.is_some() && refs.home_is_free(block)?)
    }
}

impl Generations {
    /// Up to `count` blocks that may be written home, among those whose place is the same in
    /// `draft` and in the durable generation. Examines `effort` times as many at most, and goes
    /// once around the volume.
    pub(super) fn find_homebound(
        &self,
        state: &mut State,
        draft: &Map,
        count: usize,
        effort: usize,
    ) -> Result<Vec<(BlockNr, Pointer)>> {
        let start = state.home_cursor;
        let refs = self.snapshot_refs.read().clone();
        let (mut found, mut looked, mut around) = (Vec::new(), 0, false);
        while found.len() < count && looked < count.saturating_mul(effort) {
            let moved = state.map.moved(&self.reader, state.home_cursor, count)?;
            looked += moved.len();
            for &(block, pointer) in &moved {
                if around && block >= start {
                    state.home_cursor = start;
                    return Ok(found);
                }
                // If not, this commit has changed or freed it.
                let unchanged = draft.get(&self.reader, block)? == Some(pointer);
                if unchanged
                    && found.len() < count
                    && self.homes.is_free(&self.reader, &state.map, &refs, block)?
                    && self.home_has_space(block)?
                {
                    found.push((block, pointer));
                }
            }
            match moved.last() {
                Some((last, _)) if moved.len() == count => state.home_cursor = last.offset(1),
                _ if around => break,
                _ => {
                    around = true;
                    state.home_cursor = BlockNr(0);
                }
            }
        }
        Ok(found)
    }

    /// Takes space on the host for a home. In a copy of a sparse image, a home of zeros is a hole.
    pub(super) fn home_has_space(&self, block: BlockNr) -> Result<bool> {
        match self.core.volume.fill_holes(std::iter::once(block.0..block.0 + 1)) {
            Err(Error::HostFull) => Ok(false),
            done => done.map(|()| true),
        }
    }
}

/// The blocks that hold a copy of the superblock.
pub(super) fn superblock_copies(superblock: &Superblock) -> impl Iterator<Item = BlockNr> {
    let backups = (1..superblock.group_count()).map(GroupNr).filter(|group| superblock.has_backup(*group));
    let copies = backups.map(|group| superblock.group_start(group));
    std::iter::once(superblock.own_block()).chain(copies)
}

/// Whether a commit should write blocks home: if more than a quarter of the pool would be in use,
/// together with the blocks that it adds. With a quarter, the write-back stays well below the half
/// that the largest commits need (`commit::max_credits`).
pub(super) fn is_due(pool: &Pool, added: usize) -> bool {
    let used = pool.used() + added as u64;
    used > (pool.used() + pool.free()) / 4
}
