//! Blocks of which a commit that is drained has other contents than the one that runs (SNAP-4).
//!
//! While a commit is drained (`pipeline`), operations that began in it continue next to those of
//! the next. Each belongs to one of the two alone:
//!
//! - The first change of a block by the later commit keeps what the draining one has of it
//!   ([`DrainingBlock`]), whether that one has changed the block or may still do so.
//! - A change by the draining commit after that is run on both versions: on the newest contents,
//!   which all readers get, and on what is kept. So the draining commit has it, and the later one
//!   has not lost it.
//!
//! The two runs must have the same effect for the block's owner. In a block of one inode the
//! question does not arise: an operation holds its inodes' locks from before it begins a handle
//! until after the handle's end. So an operation in the later commit has had the lock after the end
//! of the one in the draining commit. The question arises in blocks that inodes share, and these
//! are changed by `update_shared` alone. It takes values that are right for both versions (bits to
//! set, what to add to a count), each version with its own checksum, or one value for each version
//! (the links of the orphan list: `update_per_version`).
//!
//! The draining commit sees of the later one only what nothing can undo for it. An operation
//! decides by the newest contents, in which the later commit may have taken more, and given nothing
//! back (what it frees is not available before it is durable).

use std::sync::Arc;

use xact_types::{BlockNr, CommitId, Error, Result, Site};

use super::block::{BlockRef, DrainingBlock, Record, SlotState, Version};
use super::cache::Slot;
use super::dirty_blocks::DirtyBlocks;
use crate::fault::Fault;

/// Blocks that a change has made part of a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// Of the handle's own.
    pub own: u32,
    /// Of the one behind it.
    pub next: u32,
}

impl DirtyBlocks {
    /// Before a change by `commit` of the newest contents, which are in memory where the commit
    /// before may need them.
    pub(crate) fn keep_for_draining(&self, commit: CommitId, state: &mut SlotState) {
        match state.joined {
            Some(joined) if joined < commit => {
                let contents = state.newest.clone().expect("a block of a commit is in memory");
                let record = std::mem::take(&mut state.record);
                state.draining =
                    Some(DrainingBlock { commit: joined, contents, joined: true, record, data: state.data });
                state.joined = None;
            }
            None => {
                if let Some(base) = state.newest.clone() {
                    self.keep_base(commit, state, base.clone(), Record::On(base));
                }
            }
            Some(_) => {}
        }
    }

    /// What a commit that is drained would change, if it changed the block.
    fn keep_base(&self, commit: CommitId, state: &mut SlotState, contents: BlockRef, record: Record) {
        let draining = self.draining();
        let is_kept = state.draining.as_ref().is_some_and(|kept| kept.commit == draining);
        if draining == CommitId(0) || draining >= commit || is_kept {
            return;
        }
        let record = if self.sub_block() { record } else { Record::Copy };
        state.draining =
            Some(DrainingBlock { commit: draining, contents, joined: false, record, data: state.data });
    }

    /// What `commit` has of a block: the newest contents, unless a later one has others.
    pub fn read_own(&self, commit: CommitId, block: BlockNr) -> Result<BlockRef> {
        self.volume.check_range(block, 1)?;
        self.with(block, |_, state| match &state.draining {
            Some(draining) if draining.commit == commit => Ok(draining.contents.clone()),
            _ => state.load(block, self.source()).map(|contents| contents.clone()),
        })
    }

    /// As `update`, of a block that inodes share. With `per_version` the versions become two where
    /// they are still one.
    pub fn update_shared(
        &self,
        commit: CommitId,
        block: BlockNr,
        per_version: bool,
        change: &mut dyn FnMut(Version, &mut [u8]),
    ) -> Result<Added> {
        self.volume.poison.check()?;
        self.volume.check_range(block, 1)?;
        self.with(block, |slot, state| {
            if state.joined != Some(commit) {
                self.volume.check_writable(block, 1)?;
            }
            let mut added = Added::default();
            if state.joined.is_none_or(|joined| joined <= commit) {
                if !per_version || self.draining() != commit {
                    added.own = self.change_newest(commit, slot, state, &mut |bytes| {
                        change(Version::Newest, bytes);
                    })?;
                    return Ok(added);
                }
                // As if the later commit had changed it before.
                state.load(block, self.source())?;
                let next = CommitId(commit.0 + 1);
                self.keep_for_draining(next, state);
                added.next += u32::from(self.join_on_newest(next, slot, state));
            }
            let newest = state.newest.as_mut().expect("a block of a commit is in memory");
            let Some(draining) = state.draining.as_mut().filter(|draining| draining.commit == commit) else {
                // What a later commit changes is kept for the one before, unless it was new to it.
                return Err(Error::corrupt(
                    Site::Block(block),
                    "is new to an inode, and holds what inodes share",
                ));
            };
            change(Version::Newest, Arc::make_mut(newest));
            if self.faults.has(Fault::LateInNewestOnly) {
                return Ok(added);
            }
            change(Version::Draining, Arc::make_mut(&mut draining.contents));
            if !std::mem::replace(&mut draining.joined, true) {
                self.joined(commit).blocks.push(slot.clone());
                added.own += 1;
            }
            Ok(added)
        })
    }

    fn join_on_newest(&self, commit: CommitId, slot: &Arc<Slot>, state: &mut SlotState) -> bool {
        if self.sub_block() {
            state.record = state.newest.clone().map(Record::On).unwrap_or_default();
        }
        self.join(commit, slot, state)
    }

    /// As `create`, of a block that inodes share: the commit before has the same first contents of
    /// it, if it needs them.
    pub fn create_shared(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool> {
        self.put(commit, block, contents.clone(), Record::OnZeros, false, |state| {
            if state.joined.is_none() {
                self.keep_base(commit, state, contents, Record::OnZeros);
            }
        })
    }
}
