//! Changed blocks on their way into a commit, for all mechanisms.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use parking_lot::{Mutex, MutexGuard};
use xact_types::{BlockNr, CommitId, Error, Result, Site};

use super::ahead::Ahead;
use super::block::{BlockRef, BlockSource, NewData, Record, SlotState};
use super::cache::{BlockCache, BlockMap, Slot};
use super::cancelled::is_cancelled;
use super::volume::Volume;
use crate::fault::{Fault, Faults};

/// A block of a commit with the contents that it had when the commit was locked.
pub(crate) struct FrozenBlock {
    pub slot: Arc<Slot>,
    pub contents: BlockRef,
    /// A shorter record that the commit may write instead of the whole contents.
    pub record: Record,
    /// The record needs no older record of the block.
    pub is_whole: bool,
    /// It is file data.
    pub data: bool,
}

/// The contents of a locked commit.
#[derive(Default)]
pub(crate) struct Frozen {
    /// Sorted by block number, each block once.
    pub blocks: Vec<FrozenBlock>,
    /// Freed blocks that did not become metadata again in the same commit.
    pub forgotten: Vec<BlockNr>,
}

impl Frozen {
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.forgotten.is_empty()
    }
}

pub(crate) struct DirtyBlocks {
    pub volume: Arc<Volume>,
    /// Reads blocks that are not in the cache: from the volume itself, or through the map of a
    /// generation.
    source: Arc<dyn BlockSource>,
    pub cache: BlockCache,
    /// Members of the running commit and of the one before it, which may still be draining, by the
    /// lowest bit of the commit's number.
    joined: [Mutex<Joined>; 2],
    /// Changes that become durable before the rest of their commit.
    pub ahead: Ahead,
    /// The draining commit, or 0; see [`crate::core::pipeline::Pipeline::draining`].
    draining: Arc<AtomicU64>,
    /// The number of freed blocks in both commits. At 0, a join need not search for one.
    forgotten: AtomicUsize,
    /// The number of slots with `SlotState::data`. At 0, no search for them is needed.
    data_slots: AtomicUsize,
    /// The most freed blocks that fit one commit.
    pub max_forgotten: AtomicUsize,
    /// The most blocks of a commit whose contents before it are kept; see `cancelled`.
    pub(super) most_bases: usize,
    /// Commits record the changed bytes of a block instead of a copy.
    sub_block: AtomicBool,
    pub(crate) faults: Faults,
    /// Freed blocks read as a pattern, so that a test notices a use after the free.
    #[cfg(feature = "faults")]
    spoils_freed: bool,
}

/// The members of a commit. `freeze` takes them when no handle is open in the commit.
#[derive(Default)]
pub(crate) struct Joined {
    pub blocks: Vec<Arc<Slot>>,
    forgotten: BlockMap<()>,
}

impl DirtyBlocks {
    pub fn new(
        volume: Arc<Volume>,
        source: Arc<dyn BlockSource>,
        cache_bytes: usize,
        max_forgotten: usize,
    ) -> DirtyBlocks {
        let cache = BlockCache::new(cache_bytes, volume.block_size);
        let max_forgotten = AtomicUsize::new(max_forgotten);
        let most_bases = cache_bytes / volume.block_size;
        DirtyBlocks {
            volume,
            source,
            cache,
            joined: Default::default(),
            ahead: Ahead::default(),
            draining: Arc::default(),
            forgotten: AtomicUsize::new(0),
            data_slots: AtomicUsize::new(0),
            max_forgotten,
            most_bases,
            sub_block: AtomicBool::new(false),
            faults: Faults::default(),
            #[cfg(feature = "faults")]
            spoils_freed: false,
        }
    }

    /// For a mechanism that opens the next commit while the previous one drains.
    pub fn beside(self, draining: &Arc<AtomicU64>) -> DirtyBlocks {
        DirtyBlocks { draining: draining.clone(), ..self }
    }

    /// Leaves out rules, for tests.
    pub fn with_faults(self, faults: Faults) -> DirtyBlocks {
        DirtyBlocks { faults, ..self }
    }

    /// For tests: freed blocks read as a pattern.
    #[cfg(feature = "faults")]
    pub fn spoiling_freed(self) -> DirtyBlocks {
        DirtyBlocks { spoils_freed: true, ..self }
    }

    pub(crate) fn draining(&self) -> CommitId {
        CommitId(self.draining.load(SeqCst))
    }

    pub(crate) fn source(&self) -> &dyn BlockSource {
        &*self.source
    }

    pub(crate) fn joined(&self, commit: CommitId) -> MutexGuard<'_, Joined> {
        self.joined[(commit.0 & 1) as usize].lock()
    }

    /// Makes commits record the changed bytes of a block instead of a copy.
    pub fn with_sub_block_records(self, sub_block: bool) -> DirtyBlocks {
        self.set_sub_block_records(sub_block);
        self
    }

    /// The same, for blocks that join a commit from now on.
    pub fn set_sub_block_records(&self, sub_block: bool) {
        self.sub_block.store(sub_block, Relaxed);
    }

    pub(crate) fn sub_block(&self) -> bool {
        self.sub_block.load(Relaxed)
    }

    pub(crate) fn with<R>(&self, block: BlockNr, work: impl FnOnce(&Arc<Slot>, &mut SlotState) -> R) -> R {
        self.cache.with_or_wait(block, || self.volume.waits(), work)
    }

    pub fn read(&self, block: BlockNr) -> Result<BlockRef> {
        self.volume.check_range(block, 1)?;
        self.with(block, |_, state| state.load(block, &*self.source).map(|contents| contents.clone()))
    }

    pub fn update(
        &self,
        commit: CommitId,
        block: BlockNr,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool> {
        self.with_changeable(commit, block, |slot, state| {
            check_owner(commit, block, state)?;
            Ok(self.change_newest(commit, slot, state, change)? > 0)
        })
    }

    /// As `with`, for a change in a commit. Refused if the volume is poisoned, or the block is not
    /// one that may be written.
    pub(crate) fn with_changeable<R>(
        &self,
        commit: CommitId,
        block: BlockNr,
        work: impl FnOnce(&Arc<Slot>, &mut SlotState) -> Result<R>,
    ) -> Result<R> {
        self.volume.poison.check()?;
        self.volume.check_range(block, 1)?;
        self.with(block, |slot, state| {
            if state.joined != Some(commit) {
                self.volume.check_writable(block, 1)?;
            }
            work(slot, state)
        })
    }

    /// Returns the number of blocks that were new to the commit.
    pub(crate) fn change_newest(
        &self,
        commit: CommitId,
        slot: &Arc<Slot>,
        state: &mut SlotState,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<u32> {
        state.load(slot.block, &*self.source)?;
        self.keep_for_draining(commit, state);
        let is_first = state.joined != Some(commit);
        let contents = state.newest.as_mut().expect("was just loaded");
        let before = is_first.then(|| contents.clone());
        // The old contents are kept, so the first change in a commit copies them.
        change(Arc::make_mut(contents));
        if let Some(before) = before {
            if self.sub_block() {
                state.record = Record::On(before.clone());
            }
            self.keep_base_of(commit, state, before);
        }
        Ok(self.join(commit, slot, state).into())
    }

    pub fn create(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool> {
        self.put(commit, block, contents, Record::OnZeros, false, |_| {})
    }

    pub fn journal_data(&self, commit: CommitId, block: BlockNr, new: NewData) -> Result<bool> {
        let record = new.changed.map_or(Record::OnZeros, Record::OnPlace);
        self.put(commit, block, new.contents, record, true, |_| {})
    }

    /// `before` runs on the block's state before the new contents.
    pub(crate) fn put(
        &self,
        commit: CommitId,
        block: BlockNr,
        contents: BlockRef,
        record: Record,
        data: bool,
        before: impl FnOnce(&mut SlotState),
    ) -> Result<bool> {
        self.volume.poison.check()?;
        self.volume.check_writable(block, 1)?;
        if contents.len() != self.volume.block_size {
            return Err(Error::Usage("a journaled block must have the volume's block size".into()));
        }
        self.with(block, |slot, state| {
            check_owner(commit, block, state)?;
            self.leave_to_draining(commit, state);
            if state.in_no_commit() {
                let was_freed =
                    self.forgotten.load(Relaxed) > 0 && self.joined(commit).forgotten.contains_key(&block.0);
                state.fresh = !data && !was_freed;
            }
            before(state);
            self.set_data(state, data);
            if self.sub_block() {
                state.record = next_record(state, commit, record);
            }
            state.newest = Some(contents);
            state.base = None;
            Ok(self.join(commit, slot, state))
        })
    }

    /// Leaves an older commit's version of the block with that commit.
    fn leave_to_draining(&self, commit: CommitId, state: &mut SlotState) {
        if state.joined.is_some_and(|joined| joined < commit) {
            self.keep_for_draining(commit, state);
        }
    }

    pub(crate) fn join(&self, commit: CommitId, slot: &Arc<Slot>, state: &mut SlotState) -> bool {
        if state.joined == Some(commit) {
            return false;
        }
        assert!(state.joined.is_none(), "a block is part of another commit");
        state.joined = Some(commit);
        let mut joined = self.joined(commit);
        joined.blocks.push(slot.clone());
        if self.forgotten.load(Relaxed) > 0 && joined.forgotten.remove(&slot.block.0).is_some() {
            // Freed and metadata again within one commit: the copy that this commit logs is
            // newer than every copy that the revoke record would have stopped.
            self.forgotten.fetch_sub(1, Relaxed);
        }
        true
    }

    /// Whether the running commit has half of the freed blocks that it can take. Then no new handle
    /// begins in it. The other half is for the open handles: a handle that is refused after its
    /// first change would leave half of an operation.
    pub fn has_forgotten_much(&self) -> bool {
        self.forgotten.load(Relaxed) > self.max_forgotten.load(Relaxed) / 2
    }

    pub fn forget(&self, commit: CommitId, block: BlockNr) -> Result<()> {
        self.volume.poison.check()?;
        self.volume.check_writable(block, 1)?;
        self.with(block, |_, state| {
            check_owner(commit, block, state)?;
            self.leave_to_draining(commit, state);
            let is_fresh = std::mem::take(&mut state.fresh) && state.joined == Some(commit);
            if !is_fresh {
                let mut joined = self.joined(commit);
                let limit = self.max_forgotten.load(Relaxed);
                if joined.forgotten.len() >= limit {
                    return Err(Error::TooLarge {
                        blocks: joined.forgotten.len() as u64 + 1,
                        limit: limit as u64,
                    });
                }
                if joined.forgotten.insert(block.0, ()).is_none() {
                    self.forgotten.fetch_add(1, Relaxed);
                }
            }
            state.joined = None;
            // Only the block's owner could have changed it.
            state.draining.take_if(|draining| !draining.joined);
            // An older commit keeps its version of the block, since this commit may not become
            // durable.
            state.newest = None;
            state.base = None;
            #[cfg(feature = "faults")]
            if self.spoils_freed {
                state.newest = Some(vec![0xDB; self.volume.block_size].into());
            }
            state.was_freed = true;
            Ok(())
        })
    }

    pub fn set_data(&self, state: &mut SlotState, data: bool) {
        if data && !state.data {
            self.data_slots.fetch_add(1, SeqCst);
        } else if !data && state.data {
            self.data_slots.fetch_sub(1, SeqCst);
        }
        state.data = data;
    }

    /// Those of the blocks that hold file data with a copy in the log.
    pub(super) fn data_slots(
        &self,
        start: BlockNr,
        blocks: u64,
    ) -> impl Iterator<Item = (u64, Arc<Slot>)> + '_ {
        let blocks = if self.data_slots.load(SeqCst) == 0 { 0 } else { blocks };
        (0..blocks)
            .filter_map(move |i| Some((i, self.cache.peek(start.offset(i))?)))
            .filter(|(_, slot)| slot.lock_any().data)
    }

    pub fn holds_data(&self, start: BlockNr, blocks: u64) -> bool {
        self.data_slots(start, blocks).next().is_some()
    }

    /// Contents of file data that are newer than those in the block's own place, by distance from
    /// `start`.
    pub fn data_in_memory(&self, start: BlockNr, blocks: u64) -> Vec<(u64, BlockRef)> {
        let slots = self.data_slots(start, blocks);
        slots.filter_map(|(i, slot)| Some((i, slot.lock_any().in_memory()?.clone()))).collect()
    }

    /// As `forget`, for those of the blocks that hold file data with a copy in the log.
    pub fn forget_data(&self, commit: CommitId, start: BlockNr, blocks: u64) -> Result<()> {
        for (i, _) in self.data_slots(start, blocks) {
            self.forget(commit, start.offset(i))?;
        }
        Ok(())
    }

    /// A data block's contents are home: from now on they are read there, and may be overwritten
    /// there.
    pub fn drop_data_contents(state: &mut SlotState) {
        if state.data && state.in_no_commit() {
            state.newest = None;
        }
    }

    /// Whether neither the running nor the draining commit has changed a block.
    pub fn is_unchanged(&self) -> bool {
        self.joined.iter().all(|joined| {
            let joined = joined.lock();
            joined.blocks.is_empty() && joined.forgotten.is_empty()
        })
    }

    /// Takes the contents of `commit`, which is closed and has no open handle. `last_touch` may
    /// still change a block before its contents are fixed. Blocks whose changes cancel out are not
    /// part of the result; see `cancelled`.
    pub fn freeze(&self, commit: CommitId, last_touch: impl Fn(BlockNr, &mut BlockRef)) -> Frozen {
        let joined = std::mem::take(&mut *self.joined(commit));
        self.forgotten.fetch_sub(joined.forgotten.len(), Relaxed);
        let mut blocks = Vec::with_capacity(joined.blocks.len());
        let went_ahead = |slot: &Arc<Slot>| self.ahead.is_written(slot.block);
        for slot in joined.blocks {
            let mut state = slot.lock_any();
            if let Some(draining) = state.take_draining(commit, |contents| last_touch(slot.block, contents)) {
                if !went_ahead(&slot) && is_cancelled(draining.base.as_ref(), &draining.contents) {
                    continue;
                }
                state.committing = Some(draining.contents.clone());
                drop(state);
                let (contents, record, data) = (draining.contents, draining.record, draining.data);
                blocks.push(FrozenBlock { slot, contents, record, is_whole: true, data });
                continue;
            }
            // A block that was forgotten has left; one that came back is in the list twice.
            if state.joined != Some(commit) {
                continue;
            }
            state.joined = None;
            state.fresh = false;
            let newest = state.newest.as_mut().expect("a block of a commit is in memory");
            last_touch(slot.block, newest);
            let contents = newest.clone();
            let base = self.take_base(&mut state);
            if !went_ahead(&slot) && is_cancelled(base.as_ref(), &contents) {
                // One copy of the contents is enough.
                state.newest = base;
                state.record = Record::Copy;
                continue;
            }
            state.committing = Some(contents.clone());
            let (record, data) = (std::mem::take(&mut state.record), state.data);
            drop(state);
            blocks.push(FrozenBlock { slot, contents, record, is_whole: true, data });
        }
        blocks.sort_unstable_by_key(|b| b.slot.block);
        let forgotten = joined.forgotten.into_keys().map(BlockNr).collect();
        let mut frozen = Frozen { blocks, forgotten };
        self.ahead.end(&mut frozen, self.faults.has(Fault::RestOnOldBase));
        frozen
    }
}

/// A block that belongs to one inode is never changed by a draining commit after the next commit
/// has changed it, since the operation holds the inode's lock all the time. `Corrupt` if it
/// happens: then two inodes claim the block.
fn check_owner(commit: CommitId, block: BlockNr, state: &SlotState) -> Result<()> {
    match state.joined {
        Some(joined) if joined > commit => Err(Error::corrupt(Site::Block(block), "belongs to two inodes")),
        _ => Ok(()),
    }
}

/// How to record contents that replace a whole block; `record` is what the writer knows about them.
fn next_record(state: &mut SlotState, commit: CommitId, record: Record) -> Record {
    let freed = std::mem::take(&mut state.was_freed);
    match (record, &state.record) {
        // The log need not record what the block held before.
        (Record::OnPlace(changed), Record::OnPlace(before)) if state.joined == Some(commit) => {
            Record::OnPlace(changed.start.min(before.start)..changed.end.max(before.end))
        }
        (Record::OnPlace(_), before) if state.joined == Some(commit) => before.clone(),
        // The log's contents of the block belong to an earlier owner.
        (Record::OnPlace(_), _) if freed => Record::OnZeros,
        (Record::OnPlace(changed), _) => match state.in_memory() {
            Some(contents) => Record::On(contents.clone()),
            None => Record::OnPlace(changed),
        },
        (record, _) => record,
    }
}
