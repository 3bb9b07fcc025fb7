//! Changes that become durable ahead of the commit that they are part of (SNAP-12).
//!
//! A commit holds what all operations have changed since the one before. A caller that waits for
//! one file alone need not wait for all of that. An operation that depends on nothing else in its
//! commit goes *ahead*: its changes are applied twice, to the newest contents of each block, which
//! become part of the commit, and to the block as it is durable. The second result has its changes
//! and no others, and can be written at once.
//!
//! ```text
//!  durable  ----- changes of the operations ahead ----->  ahead        (a record in the log)
//!     |                                                     |
//!     '--- all changes of the commit, these included ---> newest       (the commit, later)
//! ```
//! An operation may go ahead if the commit before its own is durable, and if it relies on nothing
//! that this commit has changed, except by other operations ahead. The caller answers for that: no
//! other operation of the commit has changed its inode. Blocks that inodes share need no such care.
//! They are changed by `update_shared` alone, whose closure may run on several versions of a block
//! (`draining`).
//!
//! An operation of the commit that has ended without going ahead can be *caught up with*: its
//! changes are made in the versions ahead alone, since the newest contents have them (`catch_up`).
//! Again the caller answers for the dependencies.
//!
//! Invariants:
//! 1. A block's version ahead is its durable contents and the changes of operations ahead, in the
//!    order of these. Its base is known: the contents in memory if no operation of the commit has
//!    changed the block, otherwise the contents that its record of changes starts from. If the base
//!    is not known (the block was created in the commit), or an operation ahead does anything else
//!    than change and create blocks, nothing goes ahead any more until the commit is durable
//!    (`is_broken`). A block with a version ahead is part of the commit: it leaves the commit only
//!    when it is freed, which the commit says.
//! 2. A batch is written when each operation in it has ended (`take`), and never after the commit:
//!    both are written by a leader, and `end` drops what the commit contains.
//! 3. When a batch is durable, its versions are the durable ones. So the commit's own records start
//!    from them (`end`).

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use xact_types::{BlockNr, CommitId, Result};

use super::block::{BlockRef, Record, SlotState, Version};
use super::cache::Slot;
use super::dirty_blocks::{DirtyBlocks, Frozen, FrozenBlock};
use crate::fault::Fault;

#[derive(Default)]
pub(crate) struct Ahead {
    state: Mutex<State>,
    /// The last operation of a batch has ended, or a batch was taken.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The commit that the operations are part of.
    commit: CommitId,
    blocks: BTreeMap<u64, AheadBlock>,
    /// Operations that are running.
    handles: u32,
    /// A leader waits for them, to take the batch.
    is_closing: bool,
    /// The batch that operations join.
    batch: u64,
    /// All batches below this one are durable, or part of a whole commit.
    durable: u64,
    is_broken: bool,
}

struct AheadBlock {
    slot: Arc<Slot>,
    contents: BlockRef,
    /// How to record the contents over the durable ones.
    record: Record,
    data: bool,
    /// Changed since it was written.
    changed: bool,
    /// A batch with it is durable.
    written: bool,
}

/// The answer to an operation that wants to go ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// It joins this batch.
    Batch(u64),
    /// Not before its commit is durable.
    Refused,
    /// A batch is being taken: it should end its handle and try again after `await_batch`.
    Later,
}

impl Ahead {
    /// An operation with a handle in `commit`, whose predecessor is durable, wants to go ahead.
    pub fn join(&self, commit: CommitId) -> Join {
        let mut state = self.state.lock();
        if state.is_closing {
            return Join::Later;
        }
        if state.commit != commit {
            assert!(state.handles == 0, "an operation of an older commit goes ahead");
            state.commit = commit;
        }
        if state.is_broken {
            return Join::Refused;
        }
        state.handles += 1;
        Join::Batch(state.batch)
    }

    /// Waits until no batch is being taken.
    pub fn await_batch(&self) {
        let mut state = self.state.lock();
        while state.is_closing {
            self.changed.wait(&mut state);
        }
    }

    /// An operation ahead has ended.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.handles -= 1;
        if state.handles == 0 && state.is_closing {
            self.changed.notify_all();
        }
    }

    /// Nothing goes ahead of the commit any more; see invariant 1.
    pub fn break_off(&self) {
        self.state.lock().is_broken = true;
    }

    pub fn is_durable(&self, batch: u64) -> bool {
        let state = self.state.lock();
        state.durable > batch
    }

    /// Leader: the batch with the changes that are ahead of `commit` and not durable. `None` if
    /// nothing may go ahead of it.
    pub fn take(&self, commit: CommitId) -> Option<(u64, Frozen)> {
        let mut state = self.state.lock();
        state.is_closing = true;
        while state.handles > 0 {
            self.changed.wait(&mut state);
        }
        state.is_closing = false;
        self.changed.notify_all();
        if state.is_broken || state.commit != commit {
            return None;
        }
        let batch = state.batch;
        state.batch += 1;
        let changed = state.blocks.values().filter(|block| block.changed);
        let blocks = changed.map(|block| FrozenBlock {
            slot: block.slot.clone(),
            contents: block.contents.clone(),
            record: block.record.clone(),
            is_whole: true,
            data: block.data,
        });
        Some((batch, Frozen { blocks: blocks.collect(), forgotten: Vec::new() }))
    }

    /// Leader: a batch is durable.
    pub fn written(&self, batch: u64, frozen: &Frozen) {
        let mut state = self.state.lock();
        state.durable = batch + 1;
        for block in &frozen.blocks {
            let ahead = state.blocks.get_mut(&block.slot.block.0).expect("a block of the batch");
            ahead.record = Record::On(block.contents.clone());
            ahead.changed = !Arc::ptr_eq(&ahead.contents, &block.contents);
            ahead.written = true;
        }
    }

    /// Whether a durable batch has a version of the block, which is newer than that of the commit
    /// before.
    pub fn is_written(&self, block: BlockNr) -> bool {
        self.state.lock().blocks.get(&block.0).is_some_and(|ahead| ahead.written)
    }

    /// Leader: `frozen` is a whole commit, in which all that went ahead of it is contained.
    pub fn end(&self, frozen: &mut Frozen, keeps_base: bool) {
        let mut state = self.state.lock();
        state.is_broken = false;
        let ahead = std::mem::take(&mut state.blocks);
        if ahead.is_empty() || keeps_base {
            return;
        }
        for block in frozen.blocks.iter_mut().filter(|block| !block.data) {
            if let Some(durable) = ahead.get(&block.slot.block.0).filter(|ahead| ahead.written) {
                block.record = durable.record.clone();
            }
        }
    }

    /// The version ahead of a block, if an operation ahead has changed it.
    fn contents(&self, block: BlockNr) -> Option<BlockRef> {
        self.state.lock().blocks.get(&block.0).map(|ahead| ahead.contents.clone())
    }

    /// Applies a change to the version ahead of a block, whose durable contents are `base`.
    fn change(&self, slot: &Arc<Slot>, base: Option<BlockRef>, change: &mut dyn FnMut(Version, &mut [u8])) {
        let mut state = self.state.lock();
        if state.is_broken {
            return;
        }
        if let (None, false) = (&base, state.blocks.contains_key(&slot.block.0)) {
            state.is_broken = true;
            return;
        }
        let block = state.blocks.entry(slot.block.0).or_insert_with(|| {
            let contents = base.expect("was just looked at");
            let record = Record::On(contents.clone());
            AheadBlock { slot: slot.clone(), contents, record, data: false, changed: true, written: false }
        });
        change(Version::Ahead, Arc::make_mut(&mut block.contents));
        block.changed = true;
    }

    /// The newest contents of a block of one inode are its version ahead.
    fn put(&self, slot: &Arc<Slot>, newest: &SlotState) {
        let mut state = self.state.lock();
        if state.is_broken {
            return;
        }
        let Some(contents) = newest.newest.clone() else {
            state.is_broken = true;
            return;
        };
        let block = state.blocks.entry(slot.block.0).or_insert_with(|| AheadBlock {
            slot: slot.clone(),
            contents: contents.clone(),
            record: newest.record.clone(),
            data: newest.data,
            changed: true,
            written: false,
        });
        block.contents = contents;
        block.data = newest.data;
        block.changed = true;
    }
}

impl DirtyBlocks {
    /// As `update_shared`, by an operation that goes ahead of `commit`. Returns whether the block
    /// was new to the commit.
    pub fn update_shared_ahead(
        &self,
        commit: CommitId,
        block: BlockNr,
        change: &mut dyn FnMut(Version, &mut [u8]),
    ) -> Result<u32> {
        self.with_changeable(commit, block, |slot, state| {
            let base = self.durable_contents(commit, block, state)?;
            let added = self.change_versions(commit, slot, state, false, change)?;
            if !self.faults.has(Fault::AheadWithoutShared) {
                self.ahead.change(slot, base, change);
            }
            Ok(added.own)
        })
    }

    /// Makes a change that the newest contents have already in the version ahead of `commit`, by an
    /// operation with a batch. `change` returns whether the version can have it. False if it was
    /// not made: the block is not part of the commit, or its durable contents are not known, or
    /// `change` has refused. The caller breaks off then, since `change` may have done half of it.
    pub fn catch_up(
        &self,
        commit: CommitId,
        block: BlockNr,
        change: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<bool> {
        self.with_changeable(commit, block, |slot, state| {
            let base = self.durable_contents(commit, block, state)?;
            let is_known = base.is_some() || self.ahead.contents(block).is_some();
            if state.joined != Some(commit) || !is_known {
                return Ok(false);
            }
            let mut made = false;
            self.ahead.change(slot, base, &mut |_, bytes| made = change(bytes));
            Ok(made)
        })
    }

    /// The contents of a block ahead of `commit`, for an operation with a batch; `None` if they are
    /// not known.
    pub fn contents_ahead(&self, commit: CommitId, block: BlockNr) -> Result<Option<BlockRef>> {
        self.volume.check_range(block, 1)?;
        self.with(block, |_, state| match self.ahead.contents(block) {
            Some(contents) => Ok(Some(contents)),
            None => self.durable_contents(commit, block, state),
        })
    }

    /// The newest contents of the blocks of one inode go ahead with it, as far as `commit` has
    /// changed the blocks. `start` is the first of `blocks` blocks of file data.
    pub fn catch_up_data(&self, commit: CommitId, start: BlockNr, blocks: u64) {
        for (i, slot) in self.data_slots(start, blocks).collect::<Vec<_>>() {
            if slot.lock_any().joined == Some(commit) {
                self.note_ahead(commit, start.offset(i));
            }
        }
    }

    /// The durable contents of a block that no operation ahead of `commit` has changed, as far as
    /// they are known. The commit before is durable.
    fn durable_contents(
        &self,
        commit: CommitId,
        block: BlockNr,
        state: &mut SlotState,
    ) -> Result<Option<BlockRef>> {
        if self.draining() != CommitId(0) {
            // The commit is on its way already.
            return Ok(None);
        }
        Ok(match (state.joined, &state.record) {
            (None, _) => Some(state.load(block, self.source())?.clone()),
            (Some(joined), Record::On(before)) if joined == commit => Some(before.clone()),
            _ => None,
        })
    }

    /// An operation that goes ahead of `commit` has changed or created a block of its own inode.
    pub fn note_ahead(&self, commit: CommitId, block: BlockNr) {
        self.with(block, |slot, state| {
            // A record ahead may have the block, so the commit must say if it is freed.
            state.fresh = false;
            if state.joined == Some(commit) {
                self.ahead.put(slot, state);
            } else {
                self.ahead.break_off();
            }
        });
    }

    /// The number of blocks that `commit` has changed so far.
    pub fn changed_blocks(&self, commit: CommitId) -> usize {
        self.joined(commit).blocks.len()
    }
}
