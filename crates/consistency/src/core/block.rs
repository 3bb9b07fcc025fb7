//! A block: its contents, the versions of it, and what is known of it in memory.

use std::ops::Range;
use std::sync::Arc;

use xact_layout::jbd2::differences;
use xact_types::{BlockNr, CommitId, Result};

/// The contents of a metadata block at one moment; later changes make new ones.
pub type BlockRef = Arc<[u8]>;

/// New contents of a block of file data, for the log.
pub struct NewData {
    pub contents: BlockRef,
    /// Where they differ from what the block holds; none where that is of no interest.
    pub changed: Option<Range<usize>>,
}

/// Which contents of a block a change is run on; see [`crate::Engine::update_shared`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// The newest.
    Newest,
    /// Those of the commit that the change is part of, where the one after it has others already.
    Draining,
}

/// The results of a change, by version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerVersion<R> {
    pub newest: R,
    /// None where there is but one.
    pub draining: Option<R>,
}

impl<R> PerVersion<R> {
    /// What goes with a version of another block that the same operation changes.
    pub fn of(&self, version: Version) -> &R {
        match (version, &self.draining) {
            (Version::Draining, Some(draining)) => draining,
            _ => &self.newest,
        }
    }
}

impl<R> PerVersion<Result<R>> {
    /// The newest, if neither is an error.
    pub fn both(self) -> Result<R> {
        self.draining.transpose()?;
        self.newest
    }
}

/// Where the contents of metadata blocks are read that are not in memory.
pub(crate) trait BlockSource: Send + Sync {
    fn read_block(&self, block: BlockNr) -> Result<BlockRef>;
}

/// What a draining commit has of a block that the one after it has changed since.
pub(crate) struct DrainingBlock {
    pub commit: CommitId,
    pub contents: BlockRef,
    /// The commit has changed the block; else it may still do so.
    pub joined: bool,
    /// With sub-block records: how the commit can record it.
    pub record: Record,
    pub data: bool,
}

/// What a commit says of a block's new contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Record {
    /// All of them.
    #[default]
    Copy,
    /// What is not zero.
    OnZeros,
    /// Where they differ from these, which the commit before left.
    On(BlockRef),
    /// This range; the rest is as in the block's own place.
    OnPlace(Range<usize>),
}

impl Record {
    /// The ranges of `contents` that the log must have; `None` where it should rather have a copy.
    /// With `OnZeros` there is at least one, which says so.
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

/// What is known of a block; see `journal/mod.rs` for the life of a change.
#[derive(Default)]
pub(crate) struct SlotState {
    /// Newest contents; `None` until they are read or after the block was freed.
    pub newest: Option<BlockRef>,
    /// The commit that the newest contents are part of, unless they were part of an earlier one as
    /// they are: the running one, or one that is drained.
    pub joined: Option<CommitId>,
    /// What the commit that is drained has, if `joined` is the one behind it.
    pub draining: Option<DrainingBlock>,
    /// Contents in the commit that is being written.
    pub committing: Option<BlockRef>,
    /// Contents of the newest durable commit that have not been written home.
    pub committed: Option<(CommitId, BlockRef)>,
    /// A checkpoint is writing `committed` home now.
    pub writing: bool,
    /// A block of file data of which the live log, or a commit on its way there, has a copy. Its
    /// contents are here until they are home, and never after that: others write them there.
    pub data: bool,
    /// With sub-block records: how the contents in the running commit can be recorded.
    pub record: Record,
    /// The newest commit whose record of the block needs no older one. Of a block of which the log
    /// has a copy in each commit, the newest of these.
    pub whole: Option<CommitId>,
    /// Freed since its last contents: what the log has of it is nothing to build on.
    pub was_freed: bool,
    /// The slot has left the cache: see `cache` 1.
    pub evicted: bool,
}

impl SlotState {
    /// Whether nothing is lost if the block leaves memory.
    pub fn is_clean(&self) -> bool {
        self.in_no_commit() && !self.writing && !self.data
    }

    /// Whether nothing of the block waits to be committed, or to go home.
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

    /// The newest contents, read from the device where they are not in memory.
    pub fn load(&mut self, block: BlockNr, source: &dyn BlockSource) -> Result<&mut BlockRef> {
        if self.newest.is_none() {
            self.newest = Some(match self.in_memory() {
                Some(contents) => contents.clone(),
                None => source.read_block(block)?,
            });
        }
        Ok(self.newest.as_mut().expect("was just loaded"))
    }

    /// Leader: takes what `commit` has of the block, if the one after it has others. `last_touch`
    /// may change it.
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
        // The record of the later commit starts from the last contents of this one.
        if matches!(self.record, Record::On(_)) {
            self.record = Record::On(draining.contents.clone());
        }
        Some(draining)
    }
}
