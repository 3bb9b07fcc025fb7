//! Room in the engine for what was accepted and is written back later.
//!
//! Where snapshots fill the room for commits
//! ([`Engine::limits_space`](xact_consistency::Engine::limits_space)), data that a write has put into
//! memory could find none when its turn comes, and only an fsync would fail. So a write reserves
//! room for what it makes dirty, or is refused; write-back releases the reservation.
//!
//! - A block is reserved for a page: its own place may be held when it is written, whatever has it
//!   now.
//! - For a write is also reserved what leads to its pages: the nodes of the block map on the way to
//!   them.
//! - For an inode its block of the table is reserved. Bitmaps and descriptors are few by what a
//!   pool has for each group, and are covered by what the engine keeps free
//!   (`consistency/generations/admission.rs`).
//!
//! What is reserved for an inode is counted in `Pages::writeback_reserved`: never less than one for
//! each dirty page. It goes down with these, and to nothing when nothing of the inode is dirty.

use std::ops::RangeInclusive;

use xact_types::{Ino, Result};

use super::state::Writeback;
use crate::live::data::pages::Pages;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::op::Operation;

/// Nodes of the block map that the pages of one write may change: those at both of its ends, split.
const NODES: u64 = 4;

impl Writeback {
    /// Reserves room for the pages of a range that are clean, and for the inode. `NoSpace` changes
    /// nothing.
    pub fn reserve(&self, cached: &CachedInode, pages: RangeInclusive<u32>) -> Result<()> {
        if !self.engine.limits_space() {
            return Ok(());
        }
        let (wanted, has_none) = {
            let known = cached.pages.lock();
            let count = pages.end() - pages.start() + 1;
            let dirty = known.map.range(pages).filter(|(_, page)| page.dirty).count();
            (u64::from(count) - dirty as u64, known.writeback_reserved == 0)
        };
        let nodes = if wanted > 0 { NODES } else { 0 };
        self.reserve_blocks(cached, wanted + nodes + u64::from(has_none))
    }

    /// Reserves room for an inode that is to become dirty by itself.
    pub fn reserve_inode(&self, cached: &CachedInode) -> Result<()> {
        let has_none = self.engine.limits_space() && cached.pages.lock().writeback_reserved == 0;
        self.reserve_blocks(cached, has_none.into())
    }

    fn reserve_blocks(&self, cached: &CachedInode, blocks: u64) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let mut pages = cached.pages.lock();
        let ahead = pages.writeback_ahead.min(blocks);
        self.engine.reserve_space(blocks - ahead)?;
        pages.writeback_ahead -= ahead;
        pages.writeback_reserved += blocks - ahead;
        Ok(())
    }

    /// For an operation that changes more than what is in memory: reserves room for the parts of so
    /// many ranges that it may make dirty, which is not to fail half-way. To be ended by
    /// [`Self::release_ahead`].
    fn reserve_ahead(&self, cached: &CachedInode, ranges: u64, pages: u64) -> Result<()> {
        let blocks = if self.engine.limits_space() { pages + ranges * NODES + 1 } else { 0 };
        self.reserve_blocks(cached, blocks)?;
        cached.pages.lock().writeback_ahead += blocks;
        Ok(())
    }

    fn release_ahead(&self, cached: &CachedInode, state: &InodeState) {
        let mut pages = cached.pages.lock();
        pages.writeback_ahead = 0;
        self.release(&mut pages, 0, state.dirty);
    }

    /// `cleaned` pages of an inode are clean, or gone; `inode_dirty` as after that. The caller
    /// holds the inode's lock.
    pub fn release(&self, pages: &mut Pages, cleaned: usize, inode_dirty: bool) {
        let kept = match pages.dirty {
            0 => pages.writeback_ahead + u64::from(inode_dirty),
            _ => pages.writeback_reserved.saturating_sub(cleaned as u64),
        };
        let ended = pages.writeback_reserved.saturating_sub(kept);
        if ended > 0 {
            pages.writeback_reserved -= ended;
            self.engine.release_space(ended);
        }
    }
}

impl Operation<'_> {
    /// Runs a part of an operation that changes metadata, and pages in so many ranges as well. What
    /// these need is reserved first: `NoSpace` comes before the first change.
    pub(in crate::live) fn with_writeback_reserved(
        &mut self,
        ino: Ino,
        (ranges, pages): (u64, u64),
        action: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let fs = self.fs;
        fs.writeback.reserve_ahead(&self.state(ino)?.cached, ranges, pages)?;
        let result = action(self);
        let locked = self.any_state(ino)?;
        fs.writeback.release_ahead(&locked.cached, &locked.state);
        result
    }
}
