//! Step 3 of the crash argument: the metadata that refers to the written data.

use std::sync::Arc;

use parking_lot::lock_api::ArcRwLockUpgradableReadGuard;
use xact_consistency::{Handle, NewData, ReserveClass};
use xact_types::{FileBlock, Result};

use super::collect::{Segment, WritebackBatch};
use crate::extent::Progress;
use crate::live::LiveFs;
use crate::live::data::data_mode::Placement;
use crate::live::inode::cached::{CachedInode, InodeState, WriteGuard};
use crate::quota::Charge;

impl Segment {
    /// Credits for [`Self::journal`].
    fn journal_credits(&self) -> u32 {
        if self.journaled { self.len() } else { 0 }
    }

    /// Puts the pages into the commit, if the segment goes through the journal.
    fn journal(&self, handle: &mut Handle) -> Result<()> {
        if self.journaled {
            for (i, page) in self.pages.iter().enumerate() {
                // Only a written block already holds the unchanged rest of the page.
                let changed =
                    (self.placement == Placement::Written).then(|| page.changed.range(page.data.len()));
                let new = NewData { contents: page.data.clone(), changed };
                handle.journal_data(self.start.offset(i as u64), new)?;
            }
        }
        Ok(())
    }
}

impl LiveFs {
    /// Step 3, after the data was written; true if dirty pages are left.
    pub(super) fn link(&self, batch: WritebackBatch) -> Result<bool> {
        let WritebackBatch { cached, guard, segments, links, more } = batch;
        if segments.iter().any(|segment| segment.placement == Placement::Written && !segment.journaled) {
            cached.note_placed();
        }
        for segment in &segments {
            self.writeback.count_written(segment.placement, segment.len());
        }
        let journaled = segments.iter().any(|segment| segment.journaled);
        if !links && !journaled {
            self.mark_clean(&cached, &guard, &segments);
            return Ok(more);
        }
        let mut state = ArcRwLockUpgradableReadGuard::upgrade(guard);
        let linked = if links {
            self.link_segments(&cached, &mut state, &segments, more)
        } else {
            self.journal_segments(&mut state, &segments)
        };
        if linked.is_err() {
            // Some blocks may be linked and some not: memory and disk no longer agree, so all
            // writing must stop.
            self.engine.poison("linking written data failed half-way");
        }
        linked?;
        self.mark_clean(&cached, &state, &segments);
        Ok(more)
    }

    /// Links all segments. If one handle is too small for them, several follow each other, and each
    /// leaves a consistent state.
    fn link_segments(
        &self,
        cached: &Arc<CachedInode>,
        state: &mut WriteGuard,
        segments: &[Segment],
        more: bool,
    ) -> Result<()> {
        self.read_ahead_inode(cached.ino, state);
        for segment in segments.iter().filter(|segment| segment.placement != Placement::Written) {
            // An error will come back when the block is needed.
            let _ = self.extents(cached.ino, state).read_ahead(&state.inode, segment.at);
            self.allocator.read_ahead(segment.run());
        }
        let mut handle = Handle::begin_for(&self.engine, self.credits_inode(), ReserveClass::Upkeep)?;
        // The inode's block joins each commit first: so there is space for it, however full the
        // commit gets.
        self.store_inode(&mut handle, cached, state)?;
        for segment in segments {
            match segment.placement {
                Placement::Written => {
                    self.make_room(&mut handle, cached, state, segment.journal_credits())?;
                    segment.journal(&mut handle)?;
                }
                Placement::Unwritten => {
                    // The pages join the commit that marks the blocks as written, or an earlier
                    // one.
                    self.make_room(&mut handle, cached, state, segment.journal_credits())?;
                    segment.journal(&mut handle)?;
                    self.mark_written(&mut handle, cached, state, segment)?;
                }
                Placement::Fresh => {
                    let run = segment.run();
                    let extents = self.extents(cached.ino, state);
                    let credits = extents.credits_insert(&state.inode, 1, run.len)
                        + self.allocator.credits_for(run.len)
                        + segment.journal_credits();
                    self.make_room(&mut handle, cached, state, credits)?;
                    self.allocator.link(&mut handle, run)?;
                    extents.insert(&mut handle, &mut state.inode, segment.at, run, false)?;
                    segment.journal(&mut handle)?;
                    self.settle_reservation(cached, state, segment);
                }
            }
            self.has_reached(state, segment.at.offset(segment.len()));
        }
        if !more {
            let size = state.size;
            state.inode.set_size(size);
        }
        self.store_inode(&mut handle, cached, state)
    }

    /// Blocks up to `end` are linked: the size on disk follows.
    fn has_reached(&self, state: &mut InodeState, end: FileBlock) {
        let reached = (u64::from(end.0) * self.block_bytes()).min(state.size);
        if reached > state.inode.size() {
            state.inode.set_size(reached);
        }
    }

    /// Ensures that the handle can change `credits` more blocks; continues in another commit if
    /// this one is too full.
    fn make_room(
        &self,
        handle: &mut Handle,
        cached: &CachedInode,
        state: &mut InodeState,
        credits: u32,
    ) -> Result<()> {
        if !handle.ensure(credits)? {
            self.store_inode(handle, cached, state)?;
            handle.renew(credits + self.credits_inode())?;
            self.store_inode(handle, cached, state)?;
        }
        Ok(())
    }

    /// Puts overwritten blocks into the journal without their inode.
    fn journal_segments(&self, state: &mut InodeState, segments: &[Segment]) -> Result<()> {
        let mut handle = Handle::begin_for(&self.engine, 0, ReserveClass::Upkeep)?;
        for segment in segments {
            let credits = segment.journal_credits();
            if !handle.ensure(credits)? {
                handle.renew(credits)?;
            }
            segment.journal(&mut handle)?;
        }
        state.last_commit = handle.commit_id();
        state.last_data_commit = handle.commit_id();
        Ok(())
    }

    /// Marks a segment of unwritten blocks as written, in as many commits as needed.
    fn mark_written(
        &self,
        handle: &mut Handle,
        cached: &Arc<CachedInode>,
        state: &mut WriteGuard,
        segment: &Segment,
    ) -> Result<()> {
        let mut at = segment.at;
        let past = segment.at.offset(segment.len());
        loop {
            let extents = self.extents(cached.ino, state);
            match extents.set_written(handle, &mut state.inode, at..past)? {
                Progress::Done => break,
                Progress::Stopped(reached) => {
                    at = reached;
                    // This commit may be the last one before a crash.
                    self.has_reached(state, reached);
                    self.store_inode(handle, cached, state)?;
                    let credits = extents.credits_set_written(&state.inode) + self.credits_inode();
                    handle.renew(credits)?;
                    self.store_inode(handle, cached, state)?;
                }
            }
        }
        self.settle_reservation(cached, state, segment);
        Ok(())
    }

    /// Ends the reservations of a segment's pages, which have blocks now.
    fn settle_reservation(&self, cached: &CachedInode, state: &InodeState, segment: &Segment) {
        let mut kept = 0;
        let mut pages = cached.pages.lock();
        let pages = &mut *pages;
        for (_, page) in pages.map.range_mut(segment.at.0..segment.at.0 + segment.len()) {
            if page.reserved {
                page.reserved = false;
                pages.reserved -= 1;
                kept += 1;
            }
        }
        let payer = self.quotas.payer_of(&state.inode);
        self.quotas.release(&Charge { payer, bytes: kept * self.block_bytes(), inodes: 0 });
    }

    /// Marks the written pages clean. They have not changed: the inode's lock was held throughout.
    fn mark_clean(&self, cached: &CachedInode, state: &InodeState, segments: &[Segment]) {
        let mut pages = cached.pages.lock();
        let pages = &mut *pages;
        let mut cleaned = 0;
        for segment in segments {
            for (_, page) in pages.map.range_mut(segment.at.0..segment.at.0 + segment.len()) {
                if page.dirty {
                    page.dirty = false;
                    cleaned += 1;
                }
            }
        }
        pages.dirty -= cleaned;
        self.writeback.release(pages, cleaned, state.dirty);
        // A batch takes the first dirty pages of the file.
        if let Some(last) = segments.last() {
            pages.dirty_from = last.at.0 + last.len();
        }
        if pages.dirty == 0 && pages.reserved == 0 {
            pages.reservation = None;
        }
        self.page_cache.cleaned(cleaned as u64);
    }
}
