//! The seam between the engine and what decides when which block is written.
//!
//! A [`Mechanism`] is one such decision: the jbd2 journal, generations, or no order at all. It has
//! the [`Core`](crate::core::Core) that the engine has, and adds to it what a commit writes, how
//! file data goes to the volume, and how a volume is left cleanly. What only some mechanisms can do
//! they offer as a trait of its own, none by default.

use std::io::IoSlice;
use std::sync::Arc;

use xact_device::{DeviceCounts, WriteHint};
use xact_types::{BlockNr, CommitId, Result, Run};

use crate::core::block::NewData;
use crate::options::Fsync;
use crate::snapshots::Snapshots;

/// Figures of a running engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Commits that became durable.
    pub commits: u64,
    /// Blocks in those commits.
    pub committed_blocks: u64,
    /// Of those, blocks of file data.
    pub journaled_data_blocks: u64,
    /// Blocks that checkpoints wrote to their own place.
    pub checkpoint_writes: u64,
    /// Blocks that never went to their place, since a later commit changed or freed them (JOJ-6).
    pub checkpoint_writes_saved: u64,
    /// Metadata blocks that were looked for: found in memory, and read.
    pub metadata_hits: u64,
    pub metadata_misses: u64,
    pub device: DeviceCounts,
}

/// What an operation may use of the space that is left for commits. Only a mechanism whose commits
/// can use up their space for as long as it runs tells the classes apart: generations, whose pool
/// snapshots keep full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReserveClass {
    /// What any operation may use.
    #[default]
    Any,
    /// What is kept so that files can be deleted on a full volume.
    Removal,
    /// The last of it: for the rest of what has begun, for what was reserved
    /// ([`crate::Engine::reserve_space`]), and for unmounting.
    Upkeep,
}

/// What file data may go through the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataInLog {
    None,
    /// What a caller waits for, a little at a time.
    Synced,
    /// Any, as much as fits; and what has to be there with its commit or not at all.
    All,
}

/// How file data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataWrite {
    pub hint: WriteHint,
    pub class: ReserveClass,
}

/// What decides when which block is written. Each call is documented at the method of
/// [`crate::Engine`] with the same name, if there is one. The engine has checked ranges, and that
/// the volume may be written.
pub(crate) trait Mechanism: Send + Sync {
    fn start(&self, credits: u32, class: ReserveClass) -> Result<CommitId>;

    fn commit(&self, commit: CommitId) -> Result<()>;

    /// As `commit`, not only for the callers that wait for it: without a shorter way that it may
    /// have for them.
    fn commit_wholly(&self, commit: CommitId) -> Result<()> {
        self.commit(commit)
    }

    fn read_data(&self, start: BlockNr, buf: &mut [u8]) -> Result<()>;

    fn write_data(&self, start: BlockNr, bufs: &[IoSlice<'_>], write: DataWrite) -> Result<()>;

    fn write_unread(&self, start: BlockNr, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.write_data(start, bufs, DataWrite::default())
    }

    fn flush_data(&self) -> Result<()>;

    /// Whether no snapshot has anything in blocks that are free now.
    fn may_discard(&self) -> bool {
        true
    }

    /// Starts the threads that it needs beside the one that commits what is due.
    fn start_threads(self: Arc<Self>) -> Result<()> {
        Ok(())
    }

    /// Has them end soon. The engine waits for them.
    fn stop_threads(&self) {}

    /// Leader, when all is durable and no thread runs any more: leaves the volume as a clean
    /// unmount does.
    fn leave_clean(&self) -> Result<()>;

    fn stats(&self) -> EngineStats;

    /// The settings that the volume itself keeps are known when it is open.
    fn set_fsync(&self, _fsync: Fsync, _ordered_data: bool) {}

    fn data_log(&self) -> Option<&dyn DataLog> {
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

/// Space for commits that can be used up, and so is reserved for what is accepted now and committed
/// later. Documented at the methods of [`crate::Engine`].
pub(crate) trait SpaceReservation {
    fn reserve(&self, blocks: u64) -> Result<()>;

    fn release(&self, blocks: u64);

    fn reserved(&self) -> u64;
}

/// Lengths of a journal, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSize {
    pub blocks: u32,
    /// What it was made with, where it is longer than that or was until a crash.
    pub made_with: Option<u32>,
}

/// A journal whose length can change; the steps and their order are in `journal/resize.rs`.
pub trait ResizableJournal: Send + Sync {
    fn size(&self) -> JournalSize;

    /// Blocks of a journal in which one handle may have `credits`. `TooLarge` where none could be
    /// as long.
    fn blocks_for(&self, credits: u32) -> Result<u32>;

    /// Notes on the volume, durably, what the journal was made with: before its inode gets longer.
    fn note_size(&self) -> Result<()>;

    /// Lets the log have all of these blocks, which the journal's inode has by a durable commit.
    fn lengthen(&self, runs: &[Run]) -> Result<()>;

    /// Takes the log back to what the journal was made with; its inode keeps the blocks for now.
    fn shorten(&self) -> Result<()>;

    /// The journal's inode is at home as it was made: nothing is left to be done after a crash.
    fn forget_size(&self) -> Result<()>;

    /// Writes everything committed home and empties the log.
    fn checkpoint(&self) -> Result<()>;
}
