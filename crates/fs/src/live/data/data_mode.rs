//! The choice between journaled and direct writes of file data (ext4's `data=` modes, RFJ's journal
//! mode selector, and per-file journaling).
//!
//! The choice is made for each batch of dirty pages, by block. Either choice is safe at any time,
//! with one exception, which [`Engine::holds_data`](xact_consistency::Engine::holds_data) states:
//! while the log has a copy of a block, its new contents go through the log too. So modes, flags
//! and patterns may change at any time, without a commit in between (JOJ-4, JOJ-8).

use crate::journal_modes::DataMode;
use crate::live::data::writeback::write_pattern::WritePattern;

/// Maximum data of a sync that goes into the commit that the sync waits for (`adaptive`). That
/// saves a write and a flush, and costs a second write of the data later. So this is the amount
/// that a device writes in about the time of a flush. It is also the limit up to which a sync's
/// overwritten blocks survive all together or not at all (`BatchFacts::overwrites_little`).
const SMALL_SYNC_BYTES: u64 = 128 << 10;
/// The limit for a log. All of its data is written twice, so the limit is lower.
const LOG_SYNC_BYTES: u64 = 64 << 10;
/// The limit for a journal, whose data is overwritten or freed before the second write.
const JOURNAL_SYNC_BYTES: u64 = 4 << 20;

/// The state of the blocks under some dirty pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::live) enum Placement {
    /// Linked, holds data.
    Written,
    /// Linked, reads as zeros until it is marked written.
    Unwritten,
    /// Taken in memory for this batch.
    Fresh,
}

/// The inputs of the choice for a batch, in addition to the placement of each block.
#[derive(Clone, Copy)]
pub(in crate::live) struct BatchFacts {
    /// A caller waits for it (fsync, fdatasync).
    pub synced: bool,
    /// A caller waits for it, or has waited for an earlier one of this file.
    pub of_synced_file: bool,
    pub bytes: u64,
    /// Bytes of the blocks in it that hold data already.
    pub overwritten: u64,
    /// All that it changes is within one sector, which a crash leaves old or new.
    pub one_sector: bool,
    pub pattern: WritePattern,
    /// Bytes that the log accepts at once without filling up.
    pub log_takes: u64,
    /// The batch needs a commit in any case.
    pub commits: bool,
}

impl BatchFacts {
    fn is_small(&self) -> bool {
        let most = match self.pattern {
            WritePattern::Unknown => SMALL_SYNC_BYTES,
            WritePattern::Log => LOG_SYNC_BYTES,
            WritePattern::Journal => JOURNAL_SYNC_BYTES,
        };
        self.bytes <= most.min(self.log_takes)
    }

    /// Whether `adaptive` puts the overwritten blocks into a commit, whatever else the batch does.
    /// Written in place, some sectors of them could survive a crash and others not. The other
    /// blocks of the batch are invisible before the commit that links them, so this makes the whole
    /// batch survive or not. The background's batches of a file that is synced now and then are
    /// included: the next sync finds none of its data half-written by an earlier crash.
    fn overwrites_little(&self) -> bool {
        let atomic_in_place = self.one_sector && !self.commits;
        self.of_synced_file && !atomic_in_place && self.overwritten <= SMALL_SYNC_BYTES.min(self.log_takes)
    }
}

impl DataMode {
    /// Whether pages with this placement go through the journal in batches of any size.
    fn journals_any(self, placement: Placement) -> bool {
        self == DataMode::Journal || (self == DataMode::Selective && placement == Placement::Written)
    }

    /// Whether many pages with this placement may go through the journal in one batch.
    pub(in crate::live) fn may_journal_many(self, placement: Placement, pattern: WritePattern) -> bool {
        self.journals_any(placement) || (self == DataMode::Adaptive && pattern == WritePattern::Journal)
    }

    /// Whether a transaction's contents, `bytes` bytes in all its files, go through the journal in
    /// its commit. Only the log's size limits that, because they are never written out of order.
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
    pub(in crate::live) fn journals(self, placement: Placement, batch: BatchFacts) -> bool {
        let whole = self == DataMode::Adaptive && placement == Placement::Written;
        self.journals_any(placement) || self.journals_sync(batch) || (whole && batch.overwrites_little())
    }

    /// Whether a sync's data goes into the commit that the sync waits for.
    pub(in crate::live) fn journals_sync(self, batch: BatchFacts) -> bool {
        self == DataMode::Adaptive && batch.synced && batch.commits && batch.is_small()
    }
}
