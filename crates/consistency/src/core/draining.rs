//! Blocks with different contents in the draining and in the running commit (SNAP-4).
//!
//! While a commit drains (`pipeline`), operations that began in it continue beside operations of
//! the next commit. Each operation belongs to exactly one of the two:
//!
//! - The first change of a block by the later commit saves the draining commit's version of it
//!   ([`DrainingBlock`]), whether the draining commit has changed the block or may still do so.
//! - After that, a change by the draining commit runs on both versions: on the newest contents,
//!   which all readers get, and on the saved ones. So the draining commit has the change, and the
//!   later commit has not lost it.
//!
//! The two runs must have the same effect for the block's owner. A block of one inode always meets
//! this. An operation locks its inodes before it begins a handle, and unlocks them after the
//! handle's end. So when an operation in the later commit has the lock, those in the draining
//! commit that had it have ended. Blocks that inodes share are changed by `update_shared` alone.
//! Its closure takes values that are right for both versions (bits to set, an amount to add to a
//! count) and computes each version's own checksum; or it takes one value for each version (the
//! links of the orphan list: `update_per_version`).
//!
//! An operation in the draining commit decides by the newest contents, which include changes of the
//! later commit. This is safe, although a crash may undo the later commit alone: the later commit
//! may have taken something (a block, an inode), but has given nothing back. What it frees becomes
//! available only when it is durable.

use std::sync::Arc;

use xact_types::{BlockNr, CommitId, Error, Result, Site};

use super::block::{BlockRef, DrainingBlock, Record, SlotState, Version};
use super::cache::Slot;
use super::dirty_blocks::DirtyBlocks;
use crate::fault::Fault;

/// Blocks that a change has made part of a commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// Blocks new to the handle's own commit.
    pub own: u32,
    /// Blocks new to the commit after it.
    pub next: u32,
}

impl DirtyBlocks {
    /// Saves the draining commit's version before `commit` changes the newest contents. These are
    /// in memory if the previous commit may need them.
    pub(crate) fn keep_for_draining(&self, commit: CommitId, state: &mut SlotState) {
        match state.joined {
            Some(joined) if joined < commit => {
                let contents = state.newest.clone().expect("a block of a commit is in memory");
                let record = std::mem::take(&mut state.record);
                let (base, data) = (state.base.take(), state.data);
                state.draining =
                    Some(DrainingBlock { commit: joined, contents, joined: true, base, record, data });
                state.joined = None;
                state.fresh = false;
            }
            None => {
                if let Some(base) = state.newest.clone() {
                    self.keep_base(commit, state, base.clone(), Some(base.clone()), Record::On(base));
                }
            }
            Some(_) => {}
        }
    }

    /// Saves the contents that a draining commit would change, if it changed the block.
    fn keep_base(
        &self,
        commit: CommitId,
        state: &mut SlotState,
        contents: BlockRef,
        base: Option<BlockRef>,
        record: Record,
    ) {
        let draining = self.draining();
        let is_kept = state.draining.as_ref().is_some_and(|kept| kept.commit == draining);
        if draining == CommitId(0) || draining >= commit || is_kept {
            return;
        }
        let record = if self.sub_block() { record } else { Record::Copy };
        let data = state.data;
        state.draining =
            Some(DrainingBlock { commit: draining, contents, joined: false, base, record, data });
    }

    /// `commit`'s version of a block: the newest contents, unless a later commit has changed them.
    pub fn read_own(&self, commit: CommitId, block: BlockNr) -> Result<BlockRef> {
        self.volume.check_range(block, 1)?;
        self.with(block, |_, state| match &state.draining {
            Some(draining) if draining.commit == commit => Ok(draining.contents.clone()),
            _ => state.load(block, self.source()).map(|contents| contents.clone()),
        })
    }

    /// As `update`, for a block that inodes share. With `per_version`, one version becomes two.
    pub fn update_shared(
        &self,
        commit: CommitId,
        block: BlockNr,
        per_version: bool,
        change: &mut dyn FnMut(Version, &mut [u8]),
    ) -> Result<Added> {
        self.with_changeable(commit, block, |slot, state| {
            self.change_versions(commit, slot, state, per_version, change)
        })
    }

    pub(super) fn change_versions(
        &self,
        commit: CommitId,
        slot: &Arc<Slot>,
        state: &mut SlotState,
        per_version: bool,
        change: &mut dyn FnMut(Version, &mut [u8]),
    ) -> Result<Added> {
        let block = slot.block;
        let mut added = Added::default();
        if state.joined.is_none_or(|joined| joined <= commit) {
            if !per_version || self.draining() != commit {
                added.own = self.change_newest(commit, slot, state, &mut |bytes| {
                    change(Version::Newest, bytes);
                })?;
                return Ok(added);
            }
            // As if the later commit had changed the block before.
            state.load(block, self.source())?;
            let next = CommitId(commit.0 + 1);
            self.keep_for_draining(next, state);
            added.next += u32::from(self.join_on_newest(next, slot, state));
        }
        let newest = state.newest.as_mut().expect("a block of a commit is in memory");
        let Some(draining) = state.draining.as_mut().filter(|draining| draining.commit == commit) else {
            // A change by a later commit saves the version of the commit before, unless the block
            // was new to it.
            return Err(Error::corrupt(
                Site::Block(block),
                "is new to an inode, and holds what inodes share",
            ));
        };
        change(Version::Newest, Arc::make_mut(newest));
        if self.faults.has(Fault::DrainingInNewestOnly) {
            return Ok(added);
        }
        change(Version::Draining, Arc::make_mut(&mut draining.contents));
        if !std::mem::replace(&mut draining.joined, true) {
            self.joined(commit).blocks.push(slot.clone());
            added.own += 1;
        }
        Ok(added)
    }

    fn join_on_newest(&self, commit: CommitId, slot: &Arc<Slot>, state: &mut SlotState) -> bool {
        state.base = state.newest.clone();
        if self.sub_block() {
            state.record = state.newest.clone().map(Record::On).unwrap_or_default();
        }
        self.join(commit, slot, state)
    }

    /// As `create`, for a block that inodes share. The commit before gets the same first contents,
    /// if it needs them. If the commit after has created the block, these are in both already.
    pub fn create_shared(&self, commit: CommitId, block: BlockNr, contents: BlockRef) -> Result<bool> {
        if self.with(block, |_, state| state.joined.is_some_and(|joined| joined > commit)) {
            return Ok(false);
        }
        self.put(commit, block, contents.clone(), Record::OnZeros, false, |state| {
            if state.joined.is_none() {
                self.keep_base(commit, state, contents, None, Record::OnZeros);
            }
        })
    }
}
