//! Which file data goes through the journal, and which to its place (ext4's `data=` modes, RFJ's
//! journal mode selector, and per-file journaling).
//!
//! The choice is made for each batch of dirty pages, by block. It is safe to choose either way at
//! any time but for one rule, which [`Engine::holds_data`](xact_consistency::Engine::holds_data)
//! states: while the log has a copy of a block, its new contents go through the log too. So modes,
//! flags and patterns may change whenever they like (JOJ-4, JOJ-8), with no commit in between.

use xact_layout::inode::{Inode, flag};

use crate::live::data::writeback::write_pattern::WritePattern;
use crate::modes::DataMode;

/// What a sync writes, at most, to travel in the commit that its caller waits for (`adaptive`):
/// that saves a write and a flush, and costs writing it once more later. So it is what a device
/// writes in about the time of a flush.
const SMALL_SYNC_BYTES: u64 = 128 << 10;
/// The same for a log, all of whose data is written once more: where that is still well ahead.
const LOG_SYNC_BYTES: u64 = 64 << 10;
/// The same for a file whose data is gone before that.
const JOURNAL_SYNC_BYTES: u64 = 4 << 20;

/// Where the blocks of some dirty pages are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::live) enum Placement {
    /// Linked already, holds data.
    Written,
    /// Linked already, reads as zeros until it is marked written.
    Unwritten,
    /// Taken in memory for this batch.
    Fresh,
}

/// What the choice for a batch depends on, in addition to the place of each block.
#[derive(Clone, Copy)]
pub(in crate::live) struct BatchFacts {
    /// A caller waits for it (fsync, fdatasync).
    pub synced: bool,
    pub bytes: u64,
    /// How the file is written.
    pub pattern: WritePattern,
    /// What the log takes at once without filling up, in bytes.
    pub log_takes: u64,
    /// There will be a commit in any case.
    pub commits: bool,
}

impl BatchFacts {
    fn is_little(&self) -> bool {
        let most = match self.pattern {
            WritePattern::Unknown => SMALL_SYNC_BYTES,
            WritePattern::Log => LOG_SYNC_BYTES,
            WritePattern::Journal => JOURNAL_SYNC_BYTES,
        };
        self.bytes <= most.min(self.log_takes)
    }
}

impl DataMode {
    /// Whether the whole file goes through the journal.
    pub(in crate::live) fn journals_all(self, inode: &Inode) -> bool {
        self == DataMode::Journal || inode.flags() & flag::JOURNAL_DATA != 0
    }

    /// Whether pages of that place go through the journal in batches of any size.
    fn journals_any(self, inode: &Inode, placement: Placement) -> bool {
        self.journals_all(inode) || (self == DataMode::Selective && placement == Placement::Written)
    }

    /// Whether many pages of that place may go through the journal in one batch.
    pub(in crate::live) fn may_journal_many(
        self,
        inode: &Inode,
        placement: Placement,
        pattern: WritePattern,
    ) -> bool {
        self.journals_any(inode, placement)
            || (self == DataMode::Adaptive && pattern == WritePattern::Journal)
    }

    /// Whether a transaction's contents, of `bytes` bytes in all its files, go through the journal
    /// in its commit. Nothing but the log's room speaks against it: they never come out of order.
    pub(in crate::live) fn journals_staged(self, bytes: u64, replaced_soon: bool, log_takes: u64) -> bool {
        let most = match self {
            DataMode::Adaptive if replaced_soon => JOURNAL_SYNC_BYTES,
            DataMode::Adaptive => SMALL_SYNC_BYTES,
            DataMode::Journal => u64::MAX,
            DataMode::Writeback | DataMode::Ordered | DataMode::Selective => return false,
        };
        bytes <= most.min(log_takes)
    }

    /// Whether the data of a segment goes through the journal.
    pub(in crate::live) fn journals(self, inode: &Inode, placement: Placement, batch: BatchFacts) -> bool {
        self.journals_any(inode, placement) || self.takes_along(batch)
    }

    /// Whether a sync takes its data along in the commit that it waits for.
    pub(in crate::live) fn takes_along(self, batch: BatchFacts) -> bool {
        self == DataMode::Adaptive && batch.synced && batch.commits && batch.is_little()
    }
}
