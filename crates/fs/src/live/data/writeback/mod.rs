//! Write-back: dirty pages to the device, then the metadata that refers to them.
//!
//! Crash argument, for one batch of dirty pages of one inode:
//! 1. Pages that have a written block go there in place; a crash leaves each sector old or new,
//!    as POSIX allows before fsync.
//! 2. Pages without a block get one that is taken in memory only, and are written there. Until
//!    step 3 commits nothing on disk refers to these blocks: a crash loses the pages, no more.
//! 3. One handle links the blocks (bitmap, extents) and then moves the size on disk up to what
//!    is written. The engine flushes the device before the commit record, which covers step 2:
//!    so the metadata never reaches the disk before the data (ordered mode, and DIU-1).
//! 4. Batches go from the start of the file to its end, so the size on disk never covers a page
//!    that was dirty when the batch was collected and is not on the device.
//!
//! 5. A segment that goes through the journal (`data::mode`) is not written in steps 1 and 2: its
//!    pages join the handle of step 3, or that of an earlier commit. So they are durable with or
//!    before what refers to them, and one commit's pages are there together or not at all.
//! 6. A block with a copy in the log always takes that way: written in place, it would be overwritten
//!    by a replay of the older copy.
//!
//! Room in the engine was promised when the data was accepted (`space_reservation`), so no step is refused for want of it.
//!
//! The inode's lock is held upgradable all the time: readers go on during the I/O, writers and
//! truncation wait, so no page and no mapping changes under it. It is made exclusive before the
//! handle is begun (lock order: inode, then handle).

pub(in crate::live) mod many;
pub(in crate::live) mod space_reservation;
pub(in crate::live) mod write_pattern;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use parking_lot::lock_api::ArcRwLockUpgradableReadGuard;
use parking_lot::{Condvar, Mutex, RwLock};
use xact_consistency::{DataInLog, Fault, Handle, NewData, Room};
use xact_types::{BlockNr, CommitId, FileBlock, Ino, Result, Run};

use crate::alloc::Purpose;
use crate::extent::{Mapping, Progress};
use crate::live::LiveFs;
use crate::live::data::mode::{Batch, Place};
use crate::live::data::pages::Changed;
use crate::live::data::writeback::write_pattern::WritePattern;
use crate::live::inode::cached::{CachedInode, InodeState, UpgradableGuard, WriteGuard};
use crate::quota::Charge;

/// Pages that one batch writes at the most: how long a writer of the file may have to wait.
const BATCH_PAGES_MAX: usize = 2048;
/// Pages of one segment where many may go through the journal: what one handle has to take at once.
const JOURNALED_PAGES_MAX: u32 = 32;
/// How long data may stay dirty before the flusher takes it (sync(2) does not reach us, so this
/// is what a user waits for at the most).
const DIRTY_AGE_MAX: Duration = Duration::from_secs(5);

/// A page as it was when its batch was put together.
pub(in crate::live) struct DirtyPage {
    pub data: Arc<[u8]>,
    changed: Changed,
}

/// Contiguous pages that go to contiguous blocks.
pub(in crate::live) struct Segment {
    at: FileBlock,
    pub start: BlockNr,
    place: Place,
    pub pages: Vec<DirtyPage>,
    /// The data goes through the journal; true from the start where the log has older copies.
    pub journaled: bool,
}

impl Segment {
    fn len(&self) -> u32 {
        self.pages.len() as u32
    }

    fn run(&self) -> Run {
        Run { start: self.start, len: self.len() }
    }
}

/// What of one inode is written back at once.
pub(in crate::live) struct WritebackBatch {
    pub cached: Arc<CachedInode>,
    guard: UpgradableGuard,
    segments: Vec<Segment>,
    /// The inode changes with it.
    links: bool,
    /// There are more dirty pages than these.
    more: bool,
}

impl WritebackBatch {
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    pub fn pages(&self) -> usize {
        self.segments.iter().map(|segment| segment.pages.len()).sum()
    }
}

/// What of an inode is written back, and for whom.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::live) enum Scope {
    /// Its data, and what is needed to find it: times may wait.
    Data,
    /// All of it.
    Inode,
}

#[derive(Clone, Copy)]
pub(in crate::live) struct WriteBack {
    pub scope: Scope,
    /// A caller waits for it to be durable.
    pub synced: bool,
}

impl WriteBack {
    pub const DATA: WriteBack = WriteBack { scope: Scope::Data, synced: false };
    pub const INODE: WriteBack = WriteBack { scope: Scope::Inode, synced: false };

    fn data_only(self) -> bool {
        self.scope == Scope::Data
    }

    /// The commit that makes durable what of the inode is in one.
    fn awaited(self, state: &InodeState) -> CommitId {
        if self.data_only() { state.last_data_commit } else { state.last_commit }
    }
}

impl Segment {
    /// What [`Self::journal`] budget.
    fn journal_credits(&self) -> u32 {
        if self.journaled { self.len() } else { 0 }
    }

    /// Puts the pages into the commit, if they go that way.
    fn journal(&self, handle: &mut Handle) -> Result<()> {
        if self.journaled {
            for (i, page) in self.pages.iter().enumerate() {
                // Only a written block holds what the rest of the page is.
                let changed = (self.place == Place::Written).then(|| page.changed.range(page.data.len()));
                let new = NewData { contents: page.data.clone(), changed };
                handle.journal_data(self.start.offset(i as u64), new)?;
            }
        }
        Ok(())
    }
}

impl LiveFs {
    /// Writes the inode's dirty data and then the inode. Without [`Scope::Inode`], an inode of
    /// which nothing but times changed stays dirty in memory.
    pub(in crate::live) fn write_back(&self, cached: &Arc<CachedInode>, how: WriteBack) -> Result<()> {
        loop {
            let guard = RwLock::upgradable_read_arc(&cached.state);
            if !guard.live || !self.write_batch(cached, guard, how)? {
                break;
            }
        }
        self.settle(cached);
        Ok(())
    }

    /// Writes one batch; true when dirty pages were left.
    fn write_batch(&self, cached: &Arc<CachedInode>, guard: UpgradableGuard, how: WriteBack) -> Result<bool> {
        let Some(batch) = self.collect(cached, guard, how)? else { return Ok(false) };
        let batches = [batch];
        self.write_data_of(&batches, how.synced)?;
        let [batch] = batches;
        self.finish(batch)
    }

    /// Steps 1 and 2 of the crash argument, but for the writing: what of the inode there is to write back, each page
    /// with its place; `None` where there is nothing.
    pub(in crate::live) fn collect(
        &self,
        cached: &Arc<CachedInode>,
        guard: UpgradableGuard,
        how: WriteBack,
    ) -> Result<Option<WritebackBatch>> {
        let dirty = collect_dirty(cached);
        let more = dirty.len() == BATCH_PAGES_MAX;
        let inode_waits = !guard.dirty || (how.data_only() && guard.size == guard.inode.size());
        if dirty.is_empty() && inode_waits {
            return Ok(None);
        }
        let pattern = note_pattern(cached, &dirty, how);
        let mut segments = self.place(cached, &guard, dirty, pattern)?;
        let linked_now = segments.iter().any(|segment| segment.place != Place::Written);
        self.choose_ways(&guard, &mut segments, (how, pattern), linked_now || !inode_waits);
        Ok(Some(WritebackBatch {
            cached: cached.clone(),
            guard,
            segments,
            links: linked_now || !inode_waits,
            more,
        }))
    }

    /// Step 3, when the data is written; true when dirty pages were left.
    pub(in crate::live) fn finish(&self, batch: WritebackBatch) -> Result<bool> {
        let WritebackBatch { cached, guard, segments, links, more } = batch;
        if segments.iter().any(|segment| segment.place == Place::Written && !segment.journaled) {
            cached.note_placed();
        }
        self.written.count(&segments);
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
            // Some blocks may be linked and some not: what is in memory no longer tells what is
            // on disk. Nothing may be written from here on.
            self.engine.poison("linking written data failed half-way");
        }
        linked?;
        self.mark_clean(&cached, &state, &segments);
        Ok(more)
    }

    /// Bytes of file data that the log takes at once without filling up.
    pub(in crate::live) fn log_takes(&self) -> u64 {
        // One handle may have half of the log; a quarter of that leaves room for others.
        u64::from(self.engine.max_credits() / 4) * self.block_bytes()
    }

    /// Decides which segments go through the journal.
    fn choose_ways(
        &self,
        state: &InodeState,
        segments: &mut [Segment],
        (how, pattern): (WriteBack, WritePattern),
        links: bool,
    ) {
        let data = self.engine.data_in_log();
        if data == DataInLog::None {
            return;
        }
        let batch = Batch {
            synced: how.synced,
            bytes: segments.iter().map(|segment| u64::from(segment.len())).sum::<u64>() * self.block_bytes(),
            pattern,
            log_takes: self.log_takes(),
            commits: links
                || how.awaited(state) > self.engine.durable()
                || segments.iter().any(|segment| segment.journaled),
        };
        for segment in segments {
            segment.journaled |= match data {
                DataInLog::All => self.modes.data.journals(&state.inode, segment.place, batch),
                _ => self.modes.data.takes_along(batch),
            };
        }
    }

    /// Gives every dirty page a place, in segments by place. Blocks are taken in memory only.
    fn place(
        &self,
        cached: &CachedInode,
        state: &InodeState,
        dirty: Vec<(u32, DirtyPage)>,
        pattern: WritePattern,
    ) -> Result<Vec<Segment>> {
        let mut segments: Vec<Segment> = Vec::new();
        let extents = self.extents(cached.ino, state);
        let mut goal = self.allocator.goal_for(cached.ino);
        let mut dirty = dirty.into_iter().peekable();
        while let Some((at, data)) = dirty.next() {
            let mapping = match extents.map(&state.inode, FileBlock(at)) {
                Ok(mapping) => mapping,
                Err(error) => {
                    self.give_back(&segments);
                    return Err(error);
                }
            };
            let (limit, start, place) = match mapping {
                Mapping::Written { start, len } => (len, Some(start), Place::Written),
                Mapping::Unwritten { start, len } => (len, Some(start), Place::Unwritten),
                Mapping::Hole { len } => (len, None, Place::Fresh),
            };
            let held = |ahead: u64| start.is_some_and(|start| self.engine.holds_data(start.offset(ahead), 1));
            let journaled = held(0);
            let many = self.modes.data.may_journal_many(&state.inode, place, pattern);
            let limit = if journaled || many { limit.min(JOURNALED_PAGES_MAX) } else { limit };
            let mut pages = vec![data];
            while pages.len() < limit as usize && held(pages.len() as u64) == journaled {
                match dirty.next_if(|(next, _)| *next == at + pages.len() as u32) {
                    Some((_, data)) => pages.push(data),
                    None => break,
                }
            }
            match start {
                Some(start) => {
                    goal = start.offset(pages.len() as u64);
                    segments.push(Segment { at: FileBlock(at), start, place, pages, journaled });
                }
                None => {
                    if at > 0
                        && goal == self.allocator.goal_for(cached.ino)
                        && let Ok(Mapping::Written { start, .. }) =
                            extents.map(&state.inode, FileBlock(at - 1))
                    {
                        goal = start.offset(1);
                    }
                    if let Err(error) = self.place_fresh(cached, at, pages, &mut goal, &mut segments) {
                        self.give_back(&segments);
                        return Err(error);
                    }
                }
            }
        }
        Ok(segments)
    }

    fn place_fresh(
        &self,
        cached: &CachedInode,
        mut at: u32,
        mut pages: Vec<DirtyPage>,
        goal: &mut BlockNr,
        segments: &mut Vec<Segment>,
    ) -> Result<()> {
        while !pages.is_empty() {
            let run = {
                let mut in_cache = cached.pages.lock();
                let reservation = in_cache.reservation.as_mut();
                self.allocator.take(
                    *goal,
                    pages.len() as u32,
                    Purpose::Data { privileged: true },
                    reservation,
                )?
            };
            let rest = pages.split_off(run.len as usize);
            let (at_block, start, place) = (FileBlock(at), run.start, Place::Fresh);
            segments.push(Segment { at: at_block, start, place, pages, journaled: false });
            pages = rest;
            at += run.len;
            *goal = run.start.offset(u64::from(run.len));
        }
        Ok(())
    }

    pub(in crate::live) fn give_back(&self, segments: &[Segment]) {
        for segment in segments.iter().filter(|segment| segment.place == Place::Fresh) {
            self.allocator.give_back(segment.run());
        }
    }

    /// Step 3 of the crash argument. Where one handle cannot take all segments, it goes over
    /// several, each of which leaves a state that stands by itself.
    fn link_segments(
        &self,
        cached: &Arc<CachedInode>,
        state: &mut WriteGuard,
        segments: &[Segment],
        more: bool,
    ) -> Result<()> {
        self.read_ahead_inode(cached.ino, state);
        for segment in segments.iter().filter(|segment| segment.place != Place::Written) {
            // Who needs it is told of errors.
            let _ = self.extents(cached.ino, state).read_ahead(&state.inode, segment.at);
            self.allocator.read_ahead(segment.run());
        }
        let mut handle = Handle::begin_for(&self.engine, self.credits_inode(), Room::Upkeep)?;
        // The inode's block joins each commit first: however full it gets, there is room for it.
        self.store_inode(&mut handle, cached, state)?;
        for segment in segments {
            match segment.place {
                Place::Written => {
                    self.make_room(&mut handle, cached, state, segment.journal_credits())?;
                    segment.journal(&mut handle)?;
                }
                Place::Unwritten => {
                    // In the commit that marks the blocks as written, or in an earlier one.
                    self.make_room(&mut handle, cached, state, segment.journal_credits())?;
                    segment.journal(&mut handle)?;
                    self.mark_written(&mut handle, cached, state, segment)?;
                }
                Place::Fresh => {
                    let run = segment.run();
                    let extents = self.extents(cached.ino, state);
                    let credits = extents.credits_insert(&state.inode, 1, run.len)
                        + self.allocator.credits_for(run.len)
                        + segment.journal_credits();
                    self.make_room(&mut handle, cached, state, credits)?;
                    self.allocator.link(&mut handle, run)?;
                    extents.insert(&mut handle, &mut state.inode, segment.at, run, false)?;
                    segment.journal(&mut handle)?;
                    self.keep_promise(cached, state, segment);
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

    /// What is linked ends here: the size on disk goes along.
    fn has_reached(&self, state: &mut InodeState, end: FileBlock) {
        let reached = (u64::from(end.0) * self.block_bytes()).min(state.size);
        if reached > state.inode.size() {
            state.inode.set_size(reached);
        }
    }

    /// Makes sure that the handle has room for `credits` more blocks, by going on in another one where
    /// this commit is too full.
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

    /// Overwritten blocks that go through the journal without their inode.
    fn journal_segments(&self, state: &mut InodeState, segments: &[Segment]) -> Result<()> {
        let mut handle = Handle::begin_for(&self.engine, 0, Room::Upkeep)?;
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

    /// Marks a segment of unwritten blocks as written, over as many commits as it takes.
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
                    // This commit may be the last one.
                    self.has_reached(state, reached);
                    self.store_inode(handle, cached, state)?;
                    let credits = extents.credits_set_written(&state.inode) + self.credits_inode();
                    handle.renew(credits)?;
                    self.store_inode(handle, cached, state)?;
                }
            }
        }
        self.keep_promise(cached, state, segment);
        Ok(())
    }

    /// The pages of a segment have their blocks now: their promises are kept.
    fn keep_promise(&self, cached: &CachedInode, state: &InodeState, segment: &Segment) {
        let mut kept = 0;
        let mut pages = cached.pages.lock();
        let pages = &mut *pages;
        for (_, page) in pages.map.range_mut(segment.at.0..segment.at.0 + segment.len()) {
            if page.promised {
                page.promised = false;
                pages.promised -= 1;
                kept += 1;
            }
        }
        let payer = self.quotas.payer_of(&state.inode);
        self.quotas.end_promise(&Charge { payer, bytes: kept * self.block_bytes(), inodes: 0 });
    }

    /// Nothing changed the pages meanwhile: the inode's lock was held all the time.
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
        self.release_writeback(pages, cleaned, state.dirty);
        // A batch takes the first dirty pages there are.
        if let Some(last) = segments.last() {
            pages.dirty_from = last.at.0 + last.len();
        }
        if pages.dirty == 0 && pages.promised == 0 {
            pages.reservation = None;
        }
        self.page_cache.cleaned(cleaned as u64);
    }

    /// Writes the inode to its table within a handle, moves what is charged for it, and notes the commit
    /// that carries both.
    pub(in crate::live) fn store_inode(
        &self,
        handle: &mut Handle,
        cached: &CachedInode,
        state: &mut InodeState,
    ) -> Result<()> {
        self.store_times(handle, cached, state)?;
        state.last_data_commit = state.last_commit;
        Ok(())
    }

    /// The same where all that has changed since it was stored is times.
    pub(in crate::live) fn store_times(
        &self,
        handle: &mut Handle,
        cached: &CachedInode,
        state: &mut InodeState,
    ) -> Result<()> {
        if self.options.faults.has(Fault::SizeBeforeData) {
            let size = state.size;
            state.inode.set_size(size);
        }
        self.table.write(handle, cached.ino, &state.inode)?;
        if self.quotas.is_on() {
            let charge = self.quotas.charge_of(cached.ino, &state.inode);
            self.quotas.transfer(handle, &state.charged, &charge)?;
            state.charged = charge;
        }
        state.last_commit = handle.commit_id();
        state.dirty = state.inode.size() != state.size;
        Ok(())
    }

    /// `fsync` and `fdatasync`.
    pub(in crate::live) fn sync_inode(&self, cached: &Arc<CachedInode>, data_only: bool) -> Result<()> {
        let began = Instant::now();
        self.make_durable(cached, data_only)?;
        self.sync_times.add(began.elapsed());
        Ok(())
    }

    fn make_durable(&self, cached: &Arc<CachedInode>, data_only: bool) -> Result<()> {
        let scope = if data_only { Scope::Data } else { Scope::Inode };
        let how = WriteBack { scope, synced: true };
        self.write_back(cached, how)?;
        let last_commit = how.awaited(&cached.state.read());
        // Looked at before the flush: data that is written during it waits for the next one.
        let placed = cached.placed.load(SeqCst);
        if last_commit > self.engine.durable() {
            self.engine.commit(last_commit)?;
        } else if cached.placed_durable.load(SeqCst) < placed {
            self.engine.flush_data()?;
        }
        cached.placed_durable.fetch_max(placed, SeqCst);
        Ok(())
    }

    /// Writes back files that were cut to nothing and written anew since the last round: the truncation is in
    /// the next commit, and its data had better be (`auto_da_alloc` of ext4, which does it at the close; no
    /// close comes to us).
    fn write_back_emptied(&self) -> Result<()> {
        for ino in self.page_cache.take_emptied() {
            if let Some(cached) = self.inodes.peek(ino) {
                self.write_back(&cached, WriteBack::INODE)?;
            }
        }
        Ok(())
    }

    /// Takes an inode off the dirty list if nothing of it is dirty.
    pub(in crate::live) fn settle(&self, cached: &CachedInode) {
        let state = cached.state.read();
        let mut pages = cached.pages.lock();
        self.release_writeback(&mut pages, 0, state.live && state.dirty);
        if !state.live || (!state.dirty && pages.dirty == 0) {
            self.page_cache.unmark_dirty_inode(cached.ino);
        }
    }

    /// Holds a writer back while too much is dirty, by letting it do some of the work.
    pub(in crate::live) fn throttle(&self, ino: Ino) -> Result<()> {
        if self.page_cache.wants_flush() {
            self.flusher.kick();
        }
        if self.page_cache.may_throttle() {
            let cached = self.cached_inode(ino)?;
            let own = cached.pages.lock().dirty as u64;
            if !self.page_cache.must_throttle(own) {
                return Ok(());
            }
            // With the inode's times: nothing of what leaves the cache stays behind in memory (DIU-3).
            self.write_back(&cached, WriteBack::INODE)?;
        }
        Ok(())
    }

    /// One round of the flusher; false when it is to end.
    pub(in crate::live) fn flush_round(&self) -> bool {
        let Some(kicked) = self.flusher.wait() else { return false };
        let before = Instant::now().checked_sub(DIRTY_AGE_MAX);
        let before = if kicked { None } else { Some(before.unwrap_or_else(Instant::now)) };
        let written = self.write_back_emptied().and_then(|()| self.write_back_all(before));
        let written = written.and_then(|()| self.restore_idle_journal());
        if let Err(error) = written {
            // The engine has poisoned itself where it was a write error; a read error (an extent
            // block that cannot be read) leaves the data in memory for the next try.
            if self.engine.health().is_err() {
                return false;
            }
            self.flusher.report(&error.to_string());
        }
        true
    }
}

/// Learns from what a caller waits for, and tells what is known.
fn note_pattern(cached: &CachedInode, dirty: &[(u32, DirtyPage)], how: WriteBack) -> WritePattern {
    let mut pages = cached.pages.lock();
    if let (true, Some((first, _)), Some((last, _))) = (how.synced, dirty.first(), dirty.last()) {
        let whole = (last - first) as usize + 1 == dirty.len();
        pages.pattern.synced(*first..last.saturating_add(1), whole);
    }
    pages.pattern.pattern()
}

fn collect_dirty(cached: &CachedInode) -> Vec<(u32, DirtyPage)> {
    let pages = cached.pages.lock();
    if pages.dirty == 0 {
        return Vec::new();
    }
    let dirty = pages.map.range(pages.dirty_from..).filter(|(_, page)| page.dirty);
    dirty
        .take(BATCH_PAGES_MAX)
        .map(|(at, page)| (*at, DirtyPage { data: page.data.clone(), changed: page.changed }))
        .collect()
}

/// How much of the data that was written back was new and how much overwrote something.
#[derive(Default)]
pub(in crate::live) struct WrittenBlocks {
    new: AtomicU64,
    overwritten: AtomicU64,
}

impl WrittenBlocks {
    fn count(&self, segments: &[Segment]) {
        for segment in segments {
            let count = if segment.place == Place::Written { &self.overwritten } else { &self.new };
            count.fetch_add(segment.len().into(), Relaxed);
        }
    }

    pub fn counts(&self) -> (u64, u64) {
        (self.new.load(Relaxed), self.overwritten.load(Relaxed))
    }
}

/// Wakes the flusher thread: every second, when it is kicked, or to stop.
#[derive(Default)]
pub(in crate::live) struct Flusher {
    state: Mutex<FlusherState>,
    wake: Condvar,
    reported: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct FlusherState {
    kicked: bool,
    stop: bool,
}

impl Flusher {
    pub fn kick(&self) {
        let mut state = self.state.lock();
        if !state.kicked {
            state.kicked = true;
            self.wake.notify_one();
        }
    }

    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_one();
    }

    /// `None` to stop, else whether it was kicked.
    fn wait(&self) -> Option<bool> {
        let mut state = self.state.lock();
        if !state.stop && !state.kicked {
            self.wake.wait_for(&mut state, Duration::from_secs(1));
        }
        if state.stop { None } else { Some(std::mem::take(&mut state.kicked)) }
    }

    /// Tells once that data cannot be written back.
    fn report(&self, error: &str) {
        if !self.reported.swap(true, Relaxed) {
            log::warn!("writing data back failed, it stays in memory: {error}");
        }
    }
}
