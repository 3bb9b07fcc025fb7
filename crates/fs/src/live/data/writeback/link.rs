//! Step 3 of the crash argument: the metadata that refers to the written data.

use std::sync::Arc;

use parking_lot::lock_api::ArcRwLockUpgradableReadGuard;
use xact_consistency::{DataInLog, Handle, NewData, ReserveClass};
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

/// How a batch is linked; see [`WritebackBatch`].
#[derive(Clone, Copy)]
struct LinkHow {
    more: bool,
    size_max: u64,
    synced: bool,
}

impl LiveFs {
    /// Step 3, after the data was written; true if dirty pages are left.
    pub(super) fn link(&self, batch: WritebackBatch) -> Result<bool> {
        let WritebackBatch { cached, guard, segments, links, more, size_max, synced } = batch;
        if segments.iter().any(|segment| segment.placement == Placement::Written && !segment.journaled) {
            cached.note_placed();
        }
        for segment in &segments {
            self.writeback.files.count(cached.ino, segment.placement, segment.len());
        }
        let in_place = segments.iter().any(|segment| !segment.journaled);
        if in_place && self.orders_for_file(self.data_mode(&cached, &guard.inode)) {
            // Later changes of this file are in the running commit or a later one.
            Handle::begin_for(&self.engine, 0, ReserveClass::Upkeep)?.order_data();
        }
        let journaled = segments.iter().any(|segment| segment.journaled);
        if !links && !journaled {
            self.mark_clean(&cached, &guard, &segments);
            return Ok(more);
        }
        let mut state = ArcRwLockUpgradableReadGuard::upgrade(guard);
        let linked = if links {
            self.link_segments(&cached, &mut state, &segments, LinkHow { more, size_max, synced })
        } else {
            self.journal_segments(&mut state, &segments, synced)
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
        LinkHow { more, size_max, synced }: LinkHow,
    ) -> Result<()> {
        self.read_ahead_inode(cached.ino, state);
        for segment in segments.iter().filter(|segment| segment.placement != Placement::Written) {
            // An error will come back when the block is needed.
            let _ = self.extents(cached.ino, state).read_ahead(&state.inode, segment.at);
            self.allocator.read_ahead(segment.run());
        }
        let credits = self.credits_whole(cached, state, segments).unwrap_or(self.credits_inode());
        let mut handle = self.begin_link(state, credits, synced)?;
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
                    self.mark_written(&mut handle, cached, state, segment, size_max)?;
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
            self.has_reached(state, segment.at.offset(segment.len()), size_max);
        }
        if !more {
            let size = state.size;
            state.inode.set_size(size);
        }
        self.store_inode(&mut handle, cached, state)
    }

    /// A handle for changes of an inode, its data and its blocks. They go ahead of other files'
    /// changes as far as that is possible, for this fsync (`synced`) or for the next one.
    fn begin_link(&self, state: &InodeState, credits: u32, synced: bool) -> Result<Handle> {
        if self.goes_ahead(state) {
            Handle::begin_ahead(&self.engine, credits, ReserveClass::Upkeep, synced)
        } else {
            Handle::begin_for(&self.engine, credits, ReserveClass::Upkeep)
        }
    }

    /// The credits with which all segments are linked in one commit, if one commit has space for
    /// all and the engine takes any data: what is overwritten or added is then visible as a whole.
    fn credits_whole(&self, cached: &CachedInode, state: &InodeState, segments: &[Segment]) -> Option<u32> {
        if self.engine.data_in_log() != DataInLog::All {
            return None;
        }
        let extents = self.extents(cached.ino, state);
        let (mut credits, mut runs, mut blocks) = (self.credits_inode(), 0, 0);
        for segment in segments {
            credits += segment.journal_credits();
            match segment.placement {
                Placement::Written => {}
                Placement::Unwritten => credits += extents.credits_set_written(&state.inode),
                Placement::Fresh => {
                    (runs, blocks) = (runs + 1, blocks + segment.len());
                    credits += self.allocator.credits_for(segment.len());
                }
            }
        }
        if runs > 0 {
            credits = credits.saturating_add(extents.credits_insert(&state.inode, runs, blocks));
        }
        (credits <= self.credits_of_one_commit()).then_some(credits)
    }

    /// The most credits that a batch asks for at once, so that it is in one commit.
    fn credits_of_one_commit(&self) -> u32 {
        self.engine.max_credits() / 2
    }

    /// Blocks up to `end` are linked: the size on disk follows, but not past `size_max`.
    fn has_reached(&self, state: &mut InodeState, end: FileBlock, size_max: u64) {
        let reached = (u64::from(end.0) * self.block_bytes()).min(state.size).min(size_max);
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
    fn journal_segments(&self, state: &mut InodeState, segments: &[Segment], synced: bool) -> Result<()> {
        let whole = segments.iter().map(Segment::journal_credits).sum::<u32>();
        let whole = if whole <= self.credits_of_one_commit() { whole } else { 0 };
        let mut handle = self.begin_link(state, whole, synced)?;
        for segment in segments {
            let credits = segment.journal_credits();
            if !handle.ensure(credits)? {
                handle.renew(credits)?;
            }
            segment.journal(&mut handle)?;
        }
        state.note_change(&handle);
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
        size_max: u64,
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
                    self.has_reached(state, reached, size_max);
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
        if pages.dirty == 0 {
            pages.sizes.clear();
        }
        if pages.dirty == 0 && pages.reserved == 0 {
            pages.reservation = None;
        }
        self.page_cache.cleaned(cleaned as u64);
    }
}
