//! A block: its contents, their versions, and its state in memory.

use std::ops::Range;
use std::sync::Arc;

use xact_layout::jbd2::differences;
use xact_types::{BlockNr, CommitId, Result};

/// The contents of a metadata block at one moment. A later change makes new contents.
pub type BlockRef = Arc<[u8]>;

/// New contents of a block of file data, for the log.
pub struct NewData {
    pub contents: BlockRef,
    /// The bytes in which they differ from what the block holds; `None` if that does not matter.
    pub changed: Option<Range<usize>>,
}

/// The version of a block that a change runs on; see [`crate::Engine::update_shared`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The newest contents.
    Newest,
    /// The contents in the commit that the change is part of, if a later commit has changed the
    /// block already.
    Draining,
    /// The contents that become durable ahead of the commit, with changes that depend on no other
    /// change in it.
    Ahead,
}

/// The results of a change, one for each version that it ran on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerVersion<R> {
    pub newest: R,
    /// `None` unless a later commit has changed the block.
    pub draining: Option<R>,
    /// `None` unless the change goes ahead of its commit.
    pub ahead: Option<R>,
}

impl<R> PerVersion<R> {
    /// The result that belongs to a version of another block, which the same operation changes.
    pub fn of(&self, version: Version) -> &R {
        let own = match version {
            Version::Newest => &None,
            Version::Draining => &self.draining,
            Version::Ahead => &self.ahead,
        };
        own.as_ref().unwrap_or(&self.newest)
    }
}

impl<R> PerVersion<Result<R>> {
    /// The newest result, unless one of the two is an error.
    pub fn both(self) -> Result<R> {
        self.draining.transpose()?;
        self.ahead.transpose()?;
        self.newest
    }
}

/// The source of metadata blocks that are not in memory.
pub(crate) trait BlockSource: Send + Sync {
    fn read_block(&self, block: BlockNr) -> Result<BlockRef>;
}

/// A draining commit's version of a block that a later commit has changed.
pub(crate) struct DrainingBlock {
    pub commit: CommitId,
    pub contents: BlockRef,
    /// The draining commit has changed the block. If false, it may still do so.
    pub joined: bool,
    /// As [`SlotState::base`], for the draining commit.
    pub base: Option<BlockRef>,
    /// With sub-block records: how the draining commit can record the block.
    pub record: Record,
    pub data: bool,
}

/// How a commit records a block's new contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Record {
    /// As a copy of the whole block.
    #[default]
    Copy,
    /// As all bytes that are not zero.
    OnZeros,
    /// As the bytes that differ from these contents, which the previous commit left.
    On(BlockRef),
    /// As this range. The rest of the block is as in its own place.
    OnPlace(Range<usize>),
}

impl Record {
    /// The ranges of `contents` that the log must have; `None` if a copy takes less space. With
    /// `OnZeros` there is at least one range, since a record with a range is what says "on zeros".
    pub fn changes(&self, contents: &[u8]) -> Option<Vec<Range<usize>>> {
        let changes = match self {
            Record::Copy => None,
            Record::OnZeros => differences(&vec![0; contents.len()], contents),
            Record::On(before) => differences(before, contents),
            Record::OnPlace(changed) => {
                (changed.len() <= contents.len() / 2 - 64).then(|| vec![changed.clone()])
            }
        }?;
        Some(if changes.is_empty() { std::iter::once(0..0).collect() } else { changes })
    }
}

/// The state of a block; `journal/mod.rs` describes the life of a change.
#[derive(Default)]
pub(crate) struct SlotState {
    /// The newest contents. `None` until they are read, and after the block was freed.
    pub newest: Option<BlockRef>,
    /// The running or draining commit that the newest contents are part of. `None` if an earlier
    /// commit had the same contents.
    pub joined: Option<CommitId>,
    /// The contents before the first change in the commit `joined`: those that all commits before
    /// it leave. `None` if they are not known, or do not matter because the block was new. If the
    /// commit leaves the same contents, it does not write the block (`cancelled`).
    pub base: Option<BlockRef>,
    /// For a test's fault: the base of an older commit.
    #[cfg(feature = "faults")]
    pub older_base: Option<BlockRef>,
    /// For a test's fault: `leave_out` was called for the commit `joined`.
    #[cfg(feature = "faults")]
    pub left_out: bool,
    /// The commit `joined` has created the block, and no commit before it has any contents of it
    /// that could come back. If it frees the block again, nothing is left to be done.
    pub fresh: bool,
    /// The draining commit's version, if `joined` is the commit after it.
    pub draining: Option<DrainingBlock>,
    /// Contents in the commit that is being written.
    pub committing: Option<BlockRef>,
    /// Contents of the newest durable commit that were not written home yet.
    pub committed: Option<(CommitId, BlockRef)>,
    /// A checkpoint is writing `committed` home now.
    pub writing: bool,
    /// A block of file data with a copy in the live log, or in a commit on its way there. Its
    /// contents are kept here until they are home and no longer, since other code writes the block
    /// there.
    pub data: bool,
    /// With sub-block records: how the running commit can record the contents.
    pub record: Record,
    /// The newest commit whose record of the block needs no older record. If the log has a copy of
    /// the block in each commit, this is the newest of these commits.
    pub whole: Option<CommitId>,
    /// The block was freed since its last contents were logged, so no record may build on the log's
    /// contents.
    pub was_freed: bool,
    /// The slot has left the cache (invariant 1 of `cache`).
    pub evicted: bool,
}

impl SlotState {
    /// Whether the block can leave memory without a loss.
    pub fn is_clean(&self) -> bool {
        self.in_no_commit() && !self.writing && !self.data
    }

    /// Whether no contents of the block wait for a commit or for the write home.
    pub fn in_no_commit(&self) -> bool {
        self.joined.is_none()
            && self.draining.is_none()
            && self.committing.is_none()
            && self.committed.is_none()
    }

    /// The newest contents that are in memory.
    pub fn in_memory(&self) -> Option<&BlockRef> {
        let waiting = || self.committing.as_ref().or(self.committed.as_ref().map(|c| &c.1));
        let draining = || self.draining.as_ref().map(|draining| &draining.contents);
        self.newest.as_ref().or_else(draining).or_else(waiting)
    }

    /// The newest contents, which are read from the device if they are not in memory.
    pub fn load(&mut self, block: BlockNr, source: &dyn BlockSource) -> Result<&mut BlockRef> {
        if self.newest.is_none() {
            self.newest = Some(match self.in_memory() {
                Some(contents) => contents.clone(),
                None => source.read_block(block)?,
            });
        }
        Ok(self.newest.as_mut().expect("was just loaded"))
    }

    /// Leader: takes `commit`'s version of the block, if the commit after it has changed the block.
    /// `last_touch` may change that version.
    pub fn take_draining(
        &mut self,
        commit: CommitId,
        last_touch: impl FnOnce(&mut BlockRef),
    ) -> Option<DrainingBlock> {
        let mut draining = self.draining.take_if(|draining| draining.commit <= commit)?;
        if draining.commit < commit || !draining.joined {
            return None;
        }
        last_touch(&mut draining.contents);
        // The record and the base of the later commit start from the last contents of this one.
        if self.base.is_some() {
            self.base = Some(draining.contents.clone());
        }
        if matches!(self.record, Record::On(_)) {
            self.record = Record::On(draining.contents.clone());
        }
        Some(draining)
    }
}
