//! The seam between the engine and the decision about when each block is written.
//!
//! A [`Mechanism`] is one such decision: the jbd2 journal, generations, or no order at all. It
//! shares the engine's [`Core`](crate::core::Core), and adds how a commit is written, how file data
//! goes to the volume, and how a volume is left cleanly. Features of only some mechanisms are
//! traits of their own, which a mechanism does not offer by default.

use std::io::IoSlice;
use std::sync::Arc;

use xact_device::{DeviceCounts, WriteHint};
use xact_types::{BlockNr, CommitId, Result, Run};

use crate::core::block::NewData;
use crate::options::Fsync;
use crate::snapshots::Snapshots;

/// Statistics of a running engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Commits that became durable.
    pub commits: u64,
    /// Blocks in those commits.
    pub committed_blocks: u64,
    /// The blocks of file data among those.
    pub journaled_data_blocks: u64,
    /// Blocks that checkpoints wrote to their own place.
    pub checkpoint_writes: u64,
    /// Blocks that never went to their place, since a later commit changed or freed them (JOJ-6).
    pub checkpoint_writes_saved: u64,
    /// Lookups of metadata blocks: those found in memory, and those read.
    pub metadata_hits: u64,
    pub metadata_misses: u64,
    pub device: DeviceCounts,
}

/// The share of the remaining space for commits that an operation may use. Only a mechanism whose
/// commits can use up their space at run time treats the classes differently: generations, whose
/// pool is kept full by snapshots.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReserveClass {
    /// The space that any operation may use.
    #[default]
    Any,
    /// The space reserved so that files can be deleted on a full volume.
    Removal,
    /// The last of the space: for the rest of operations that have begun, for reserved data
    /// ([`crate::Engine::reserve_space`]), and for unmounting.
    Upkeep,
}

/// The file data that may go through the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataInLog {
    None,
    /// Data that a caller waits for, a little at a time.
    Synced,
    /// Any data, as much as fits, and data that must be all there with its commit or not at all.
    All,
}

/// How file data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataWrite {
    pub hint: WriteHint,
    pub class: ReserveClass,
}

/// Decides when each block is written. Each call is documented at the method of [`crate::Engine`]
/// with the same name, if there is one. The engine has checked ranges, and that the volume may be
/// written.
pub(crate) trait Mechanism: Send + Sync {
    fn start(&self, credits: u32, class: ReserveClass) -> Result<CommitId>;

    fn commit(&self, commit: CommitId) -> Result<()>;

    /// As `commit`, but without a shorter way that the mechanism may have for callers that wait.
    fn commit_wholly(&self, commit: CommitId) -> Result<()> {
        self.commit(commit)
    }

    fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()>;

    fn write_data(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()>;

    fn write_unread(&self, start: BlockNr, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write_data(start, bufs, DataWrite::default())
    }

    /// See [`crate::Engine::may_defer`].
    fn may_defer(&self, _start: BlockNr, _blocks: u64) -> Result<bool> {
        Ok(true)
    }

    fn flush_data(&self) -> Result<()>;

    /// Whether no snapshot has data in blocks that are free now.
    fn may_discard(&self) -> bool {
        true
    }

    /// Starts the threads that it needs in addition to the one that commits due commits.
    fn start_threads(self: Arc<Self>) -> Result<()> {
        Ok(())
    }

    /// Asks them to end soon. The engine waits for them.
    fn stop_threads(&self) {}

    /// Leader, when everything is durable and no thread runs any more: leaves the volume as a clean
    /// unmount does.
    fn leave_clean(&self) -> Result<()>;

    fn stats(&self) -> EngineStats;

    /// Applies the settings that the volume itself keeps, which are known when it is open.
    fn set_fsync(&self, _fsync: Fsync, _ordered_data: bool) {}

    fn data_log(&self) -> Option<&dyn DataLog> {
        None
    }

    fn ahead(&self) -> Option<&dyn CommitsAhead> {
        None
    }

    fn space(&self) -> Option<&dyn SpaceReservation> {
        None
    }

    fn journal(&self) -> Option<&dyn ResizableJournal> {
        None
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }
}

/// A log that takes file data too. Documented at the methods of [`crate::Engine`].
pub(crate) trait DataLog {
    fn data_in_log(&self) -> DataInLog;

    fn journal_data(&self, commit: CommitId, block: BlockNr, new: NewData) -> Result<bool>;

    fn holds_data(&self, start: BlockNr, blocks: u64) -> bool;

    fn forget_data(&self, commit: CommitId, start: BlockNr, blocks: u64) -> Result<()>;
}

/// Operations that become durable ahead of their commit. Documented at the methods of
/// [`crate::Engine`].
pub(crate) trait CommitsAhead {
    fn goes_ahead_now(&self) -> bool;

    fn start_ahead(&self, credits: u32, class: ReserveClass, waits: bool) -> Result<(CommitId, Option<u64>)>;

    fn commit_ahead(&self, commit: CommitId, batch: u64) -> Result<()>;
}

/// Space for commits that can be used up, and so is reserved for data that is accepted now and
/// committed later. Documented at the methods of [`crate::Engine`].
pub(crate) trait SpaceReservation {
    fn reserve(&self, blocks: u64) -> Result<()>;

    fn release(&self, blocks: u64);

    fn reserved(&self) -> u64;
}

/// Lengths of a journal, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSize {
    pub blocks: u32,
    /// The length that it was made with, if it is longer now or was until a crash.
    pub made_with: Option<u32>,
}

/// A journal whose length can change; the steps and their order are in `journal/resize.rs`.
pub trait ResizableJournal: Send + Sync {
    fn size(&self) -> JournalSize;

    /// The journal length at which one handle may have `credits`. `TooLarge` if no journal could be
    /// that long.
    fn blocks_for(&self, credits: u32) -> Result<u32>;

    /// Notes on the volume, durably, the length that the journal was made with, before its inode
    /// gets longer.
    fn note_size(&self) -> Result<()>;

    /// Extends the log to all of these blocks, which a durable commit has given to the journal's
    /// inode.
    fn lengthen(&self, runs: &[Run]) -> Result<()>;

    /// Shortens the log to the length that the journal was made with; its inode keeps the blocks
    /// for now.
    fn shorten(&self) -> Result<()>;

    /// The journal's inode is at home with its original length: nothing is left to do after a
    /// crash.
    fn forget_size(&self) -> Result<()>;

    /// Writes everything committed home and empties the log.
    fn checkpoint(&self) -> Result<()>;
}
