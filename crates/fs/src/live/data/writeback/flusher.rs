//! Write-back of old pages by the flusher thread, and by the writers while too much is dirty.
//! `flusher_thread` has the times at which the thread wakes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use xact_types::{Ino, Result};

use super::WritebackRequest;
use crate::live::LiveFs;

/// The longest time that data stays in the cache, however long the commit interval is.
const DIRTY_AGE_MAX: Duration = Duration::from_secs(5);
/// The longest time between rounds.
const ROUND_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The age at which the flusher writes dirty data back, and the time between its rounds. Data that
/// was written to the cache is in a commit after the sum of both, and that commit is durable a
/// commit interval after the write (`LiveFs::settle`): the interval bounds what a crash loses.
fn times(commit_interval: Duration) -> (Duration, Duration) {
    (DIRTY_AGE_MAX.min(commit_interval / 2), ROUND_INTERVAL_MAX.min(commit_interval / 4))
}

impl LiveFs {
    /// Starts the flusher thread. It holds only a weak reference between its rounds, so dropping
    /// the file system without `close` (a test's crash) ends it.
    pub(in crate::live) fn start_flusher(self: &Arc<Self>) -> Result<()> {
        let weak = Arc::downgrade(self);
        self.writeback.flusher().start(move || weak.upgrade().is_some_and(|fs| fs.flush_round()))
    }

    /// Slows a writer down while too much is dirty, by letting it write back pages of its file.
    pub(in crate::live) fn throttle(&self, ino: Ino) -> Result<()> {
        if self.page_cache.wants_flush() {
            self.writeback.flusher().wake();
        }
        if self.page_cache.may_throttle() {
            let cached = self.cached_inode(ino)?;
            if self.writeback.parts.holds(ino) {
                // The caller is about to write the next part, for which the write-back would wait.
                return Ok(());
            }
            let own = cached.pages.lock().dirty as u64;
            if !self.page_cache.must_throttle(own) {
                return Ok(());
            }
            // The inode's times go along: no change of an inode stays in memory after its data has
            // left the cache (DIU-3).
            self.write_back(&cached, WritebackRequest::INODE)?;
        }
        Ok(())
    }

    /// One round of the flusher; false when the thread has to end.
    fn flush_round(&self) -> bool {
        let (age, round) = times(self.engine.commit_interval());
        let Some(woken) = self.writeback.flusher().wait(round) else { return false };
        let before = Instant::now().checked_sub(age);
        let before = if woken { None } else { Some(before.unwrap_or_else(Instant::now)) };
        let written = self.write_back_emptied().and_then(|()| self.write_back_all(before));
        let written = written.and_then(|()| self.restore_idle_journal());
        self.record_damage(None);
        self.mvcc.prune_skipped(&self.inodes);
        if let Err(error) = written {
            // A write error has poisoned the engine. After a read error (an extent block that
            // cannot be read) the data stays in memory for the next round.
            if self.engine.health().is_err() {
                return false;
            }
            self.writeback.flusher().log_failure(&error.to_string());
        }
        true
    }

    /// Writes back files that were truncated to zero and written again since the last round: the
    /// truncation is in the next commit, and the new data should be too. That is `auto_da_alloc` of
    /// ext4, which does it at the close; a close does not reach us.
    fn write_back_emptied(&self) -> Result<()> {
        for ino in self.page_cache.take_emptied() {
            if let Some(cached) = self.inodes.peek(ino) {
                self.write_back(&cached, WritebackRequest::INODE)?;
            }
        }
        Ok(())
    }
}
