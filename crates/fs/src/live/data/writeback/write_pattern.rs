//! How a file is written, as its syncs show: what `adaptive` chooses by (JOJ-8).
//!
//! Two kinds of files are synced often and want opposite ways. A *log* grows: what is appended
//! stays, so through the journal it is written twice. A *journal* in the sense of databases
//! (rollback journals and the like) is cut off, deleted, or restarted from its start at each of
//! its transactions: its copies in the log are overwritten or freed before any checkpoint, so
//! through the log it is written once, in one sequential write, however much it is (JOJ-6).
//!
//! The history is kept with the inode number, in memory: a file that is deleted and made again is
//! known again as far as it gets its old number. Nothing depends on it but speed.

use std::ops::Range;

/// From here on a way of writing counts as a pattern.
const HABIT: u8 = 2;
/// From here on syncs in a row are a log.
const LOG_SYNCS: u8 = 8;

/// What is known of a file that is synced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::live) struct WriteHistory {
    /// The file block behind the last that was written since the file was begun.
    reached: u32,
    /// Syncs in a row that each went on where the one before had ended.
    appends: u8,
    /// Times that the file was cut off, deleted, or restarted.
    restarts: u8,
}

/// What a file is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::live) enum WritePattern {
    Unknown,
    /// What it writes stays.
    Log,
    /// What it writes is soon gone.
    Journal,
}

impl WriteHistory {
    /// A sync writes these file blocks; `whole` where they are one run without a gap.
    pub fn synced(&mut self, blocks: Range<u32>, whole: bool) {
        // The last block of the sync before may have been filled up.
        let at_the_end = blocks.start <= self.reached && blocks.start + 1 >= self.reached;
        if whole && at_the_end && blocks.end >= self.reached && self.reached > 0 {
            self.appends = self.appends.saturating_add(1);
            self.reached = blocks.end;
        } else if whole && blocks.start == 0 && self.reached > 1 {
            // The first block alone is a header that is brought up to date.
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

    /// Data was cut off, or all of the file was deleted.
    pub fn cut(&mut self) {
        if self.reached > 0 {
            *self = WriteHistory { restarts: self.restarts.saturating_add(1), ..WriteHistory::default() };
        }
    }

    pub fn pattern(&self) -> WritePattern {
        match () {
            () if self.appends >= LOG_SYNCS => WritePattern::Log,
            () if self.restarts >= HABIT => WritePattern::Journal,
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
    fn a_file_that_is_cut_or_begun_anew_is_a_journal() {
        let mut pattern = WriteHistory::default();
        for _ in 0..2 {
            assert_eq!(pattern.pattern(), WritePattern::Unknown);
            pattern.synced(0..7, true);
            pattern.cut();
        }
        assert_eq!(pattern.pattern(), WritePattern::Journal);
        let mut pattern = WriteHistory::default();
        for _ in 0..3 {
            // Its first block is written once more: how many records there are.
            pattern.synced(0..7, true);
            pattern.synced(0..1, true);
            pattern.synced(7..9, true);
        }
        assert_eq!(pattern.pattern(), WritePattern::Journal);
        // Until it grows for long.
        (8..20).for_each(|at| pattern.synced(at..at + 1, true));
        assert_eq!(pattern.pattern(), WritePattern::Log);
    }

    #[test]
    fn scattered_writes_are_neither() {
        let mut pattern = WriteHistory::default();
        for at in [5, 90, 3, 17, 4, 60, 8, 2, 30, 31, 40] {
            pattern.synced(at..at + 3, false);
            assert_eq!(pattern.pattern(), WritePattern::Unknown);
        }
    }
}
