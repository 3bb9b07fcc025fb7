//! Changes that cancel out within a commit (SNAP-6): a block that ends as it began is not written.
//!
//! A file that is made and deleted in one commit sets bits and clears them, and uses a place of the
//! inode table that is free again. So a commit keeps the contents that each of its blocks had
//! before its first change in it, the *base* (`SlotState::base`). This is a reference: the first
//! change copies the block in any case if an older commit still has these contents, and otherwise
//! costs one copy. When the commit is closed, a block with the contents of its base leaves it.
//!
//! Crash argument. The base is what all commits before this one leave, whether they are durable yet
//! or not. Commits become durable in order, and a failed one stops all later ones. So at the moment
//! when this commit counts, the block has its base's contents on the volume (at home, in the log,
//! or through the map), and to write the same contents again would change nothing. These cases need
//! care:
//! - An operation in a draining commit may change the block after the next commit has begun to.
//!   The base of the next commit is then the final version of the draining one
//!   (`SlotState::take_draining`).
//! - A block that was freed, or that gets its first contents, has no base: what it held before
//!   belongs to an earlier owner. Such a block is always written, unless the caller says that
//!   nothing refers to it any more (`leave_out`).
//! - A block of which a record ahead of the commit is durable (`ahead`) is always written: the base
//!   is older than that record.
//! - File data in a commit has none either. Its place is written in other ways, too.

use xact_types::{BlockNr, CommitId};

use super::block::{BlockRef, SlotState};
use super::dirty_blocks::DirtyBlocks;
#[cfg(feature = "faults")]
use crate::fault::Fault;

/// Whether a commit that leaves `contents` need not write the block.
pub(super) fn is_cancelled(base: Option<&BlockRef>, contents: &BlockRef) -> bool {
    base.is_some_and(|base| base == contents)
}

impl DirtyBlocks {
    /// Keeps the contents before the first change in `commit`. A commit with more blocks than the
    /// cache takes keeps no more of them, since they cost as much memory as its blocks.
    pub(super) fn keep_base_of(&self, commit: CommitId, state: &mut SlotState, before: BlockRef) {
        let fits = self.sub_block() || self.joined(commit).blocks.len() < self.most_bases;
        state.base = fits.then_some(before);
    }

    /// Takes the base of a block whose commit is closed.
    pub(super) fn take_base(&self, state: &mut SlotState) -> Option<BlockRef> {
        let base = state.base.take();
        #[cfg(feature = "faults")]
        if std::mem::take(&mut state.left_out) && self.faults.has(Fault::LeftOutForGood) {
            return state.newest.clone();
        }
        #[cfg(feature = "faults")]
        if self.faults.has(Fault::SameAsOlder) {
            return std::mem::replace(&mut state.older_base, base);
        }
        base
    }

    /// The contents of a block before its first change in `commit`, in which a handle is open;
    /// `None` if they are not kept.
    pub fn base(&self, commit: CommitId, block: BlockNr) -> Option<BlockRef> {
        let slot = self.cache.peek(block)?;
        let state = slot.lock_any();
        match &state.draining {
            Some(draining) if draining.commit == commit => draining.base.clone(),
            _ if state.joined == Some(commit) => state.base.clone(),
            _ => None,
        }
    }

    /// Lets `commit`, in which a handle is open, leave out a block that it has created, and that
    /// nothing refers to any more, if its contents stay as they are until `create_shared` gives it
    /// first contents again. False, without a change, if an older commit has contents of it.
    pub fn leave_out(&self, commit: CommitId, block: BlockNr) -> bool {
        let Some(slot) = self.cache.peek(block) else { return false };
        let mut state = slot.lock_any();
        let is_shared = state.draining.as_ref().is_some_and(|draining| draining.joined);
        let is_new = state.joined == Some(commit) && state.fresh && !is_shared;
        if is_new {
            state.base = state.newest.clone();
            #[cfg(feature = "faults")]
            {
                state.left_out = true;
            }
        }
        is_new
    }
}
