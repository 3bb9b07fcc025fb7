//! The pattern in which a file is written, learned from its syncs; mode `adaptive` chooses by it
//! (JOJ-8).
//!
//! Two kinds of files are synced often and need opposite treatment. A *log* file grows, and its
//! data stays. If this data went through the volume's journal, it would be written twice: there,
//! and later home. A *journal* file, such as a database's rollback journal, is truncated, deleted,
//! or restarted at its start by each of the program's transactions. Its copies in the volume's
//! journal are overwritten or freed before any checkpoint. So its data is written only once, to the
//! volume's journal, in one sequential write, however large it is (JOJ-6).
//!
//! The history is kept in memory, by inode number: a file that is deleted and created again keeps
//! its history if it gets the same number. Only speed depends on it.

use std::ops::Range;

/// Restarts after which a file counts as a journal.
const JOURNAL_RESTARTS: u8 = 2;
/// Appending syncs in a row after which a file counts as a log.
const LOG_SYNCS: u8 = 8;

/// The history of a file's syncs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::live) struct WriteHistory {
    /// The file block after the last one written since the file was begun.
    reached: u32,
    /// Syncs in a row that each continued where the previous one had ended.
    appends: u8,
    /// Times that the file was truncated, deleted, or restarted.
    restarts: u8,
}

/// The kind of file that a history suggests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::live) enum WritePattern {
    Unknown,
    /// Its data stays.
    Log,
    /// Its data is soon overwritten or freed.
    Journal,
}

impl WriteHistory {
    /// A sync writes these file blocks; `whole`: they are one run without a gap.
    pub fn synced(&mut self, blocks: Range<u32>, whole: bool) {
        // The last block of the previous sync may have been filled up.
        let at_the_end = blocks.start <= self.reached && blocks.start + 1 >= self.reached;
        if whole && at_the_end && blocks.end >= self.reached && self.reached > 0 {
            self.appends = self.appends.saturating_add(1);
            self.reached = blocks.end;
        } else if whole && blocks.start == 0 && self.reached > 1 {
            // The first block alone is an updated header.
            if blocks.end > 1 {
                self.restarts = self.restarts.saturating_add(1);
                self.appends = 0;
                self.reached = blocks.end;
            }
        } else {
            self.appends = 0;
            self.reached = self.reached.max(blocks.end);
        }
        if self.appends >= LOG_SYNCS {
            self.restarts = 0;
        }
    }

    /// The file was truncated or deleted.
    pub fn truncated(&mut self) {
        if self.reached > 0 {
            *self = WriteHistory { restarts: self.restarts.saturating_add(1), ..WriteHistory::default() };
        }
    }

    /// Whether it knows of a sync.
    pub fn has_syncs(&self) -> bool {
        self.reached > 0 || self.restarts > 0
    }

    pub fn pattern(&self) -> WritePattern {
        match () {
            () if self.appends >= LOG_SYNCS => WritePattern::Log,
            () if self.restarts >= JOURNAL_RESTARTS => WritePattern::Journal,
            () => WritePattern::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grows_is_a_log() {
        let mut pattern = WriteHistory::default();
        for at in 0..10u32 {
            assert_eq!(pattern.pattern() == WritePattern::Log, at > 8);
            // Each fills up the last block and begins the next.
            pattern.synced(at..at + 2, true);
        }
        pattern.synced(0..5, true);
        assert_eq!(pattern.pattern(), WritePattern::Unknown);
    }

    #[test]
    fn a_file_that_is_truncated_or_restarted_is_a_journal() {
        let mut pattern = WriteHistory::default();
        for _ in 0..2 {
            assert_eq!(pattern.pattern(), WritePattern::Unknown);
            pattern.synced(0..7, true);
            pattern.truncated();
        }
        assert_eq!(pattern.pattern(), WritePattern::Journal);
        let mut pattern = WriteHistory::default();
        for _ in 0..3 {
            // The first block is written again, with the number of records.
            pattern.synced(0..7, true);
            pattern.synced(0..1, true);
            pattern.synced(7..9, true);
        }
        assert_eq!(pattern.pattern(), WritePattern::Journal);
        // It counts as a log again after many appends.
        (8..20).for_each(|at| pattern.synced(at..at + 1, true));
        assert_eq!(pattern.pattern(), WritePattern::Log);
    }

    #[test]
    fn scattered_writes_are_neither_log_nor_journal() {
        let mut pattern = WriteHistory::default();
        for at in [5, 90, 3, 17, 4, 60, 8, 2, 30, 31, 40] {
            pattern.synced(at..at + 3, false);
            assert_eq!(pattern.pattern(), WritePattern::Unknown);
        }
    }
}
