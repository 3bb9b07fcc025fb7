//! Space in the engine for data that was accepted and is written back later.
//!
//! Snapshots may fill the space for commits
//! ([`Engine::limits_space`](xact_consistency::Engine::limits_space)). Data that a write put into
//! memory could then find no space at write-back, and only an fsync would fail. So a write reserves
//! space for the pages that it makes dirty, or is refused; write-back releases the reservation.
//!
//! - Each page has one block reserved: a snapshot may hold the page's own block by the time the
//!   page is written.
//! - Each write also reserves the nodes of the block map on the way to its pages.
//! - Each inode has its block of the inode table reserved. Bitmaps and descriptors are not
//!   reserved. They are few compared with the pool, so the space that the engine keeps free covers
//!   them (`consistency/generations/admission.rs`).
//!
//! `Pages::writeback_reserved` counts the reserved blocks of an inode. It is at least the number of
//! dirty pages, goes down with them, and is zero when the inode is clean.

use std::ops::RangeInclusive;

use xact_types::{Ino, Result};

use super::state::Writeback;
use crate::live::data::pages::Pages;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::op::Operation;

/// Nodes of the block map that the pages of one write may change: those at both ends, split.
const NODES: u64 = 4;

impl Writeback {
    /// Reserves space for the clean pages of a range, and for the inode. `NoSpace` changes nothing.
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

    /// Reserves space for an inode that becomes dirty without its data.
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

    /// Reserves space for the pages that an operation may make dirty in `ranges` ranges. It is for
    /// operations that change metadata as well, which must not fail half-way. Ended by
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

    /// Releases the reservations of `cleaned` pages of an inode, which are clean or were dropped.
    /// `inode_dirty`: whether the inode is still dirty. The caller holds the inode's lock.
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
    /// Runs a part of an operation that changes metadata and pages in `ranges` ranges. The space
    /// for the pages is reserved first, so that `NoSpace` comes before the first change.
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
