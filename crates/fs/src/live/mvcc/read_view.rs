//! Read views: opening, expiry when old versions use too much memory, and the clean-up at the end.

use std::sync::Arc;

use xact_types::Result;

use super::Contended;
use crate::live::LiveFs;
use crate::versioned_fs::read_as_of::Stamp;

/// Keeps the volume readable as of one instant, until it is dropped.
pub struct ReadView {
    fs: Arc<LiveFs>,
    stamp: Stamp,
}

impl ReadView {
    pub(super) fn open(fs: &Arc<LiveFs>) -> ReadView {
        ReadView { fs: fs.clone(), stamp: fs.mvcc.stamps().open() }
    }

    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    pub fn fs(&self) -> &Arc<LiveFs> {
        &self.fs
    }
}

impl Drop for ReadView {
    fn drop(&mut self) {
        // An expired view has no versions, and views of the same stamp need the same ones.
        if self.fs.mvcc.stamps().close(self.stamp) {
            self.fs.mvcc.prune(&self.fs.inodes, Contended::Skip, Some(self.stamp));
        }
        // A failure poisons the volume, and its next caller gets the error; a drop cannot return
        // one.
        let _ = self.fs.reap_unlinked();
    }
}

impl LiveFs {
    /// Brings old versions within their share of memory: writes them to the volume, or else expires
    /// the oldest views. The caller holds no inode lock.
    pub(in crate::live) fn limit_versions(&self) {
        if !self.mvcc.is_over_limit() {
            return;
        }
        let _limiting = self.mvcc.limiting.lock();
        if !self.mvcc.is_over_limit() {
            return;
        }
        // Versions of inodes that were locked when their view was closed.
        self.mvcc.prune(&self.inodes, Contended::Skip, None);
        self.spill_versions();
        let mut any = false;
        // Some memory must be free then: the steps above look at all versions.
        while self.mvcc.version_bytes() > self.mvcc.limit_bytes / 8 * 7
            && self.mvcc.stamps().expire_oldest(None)
        {
            self.mvcc.prune(&self.inodes, Contended::Skip, None);
            any = true;
        }
        if any {
            // Errors: as when a view is dropped.
            let _ = self.reap_unlinked();
        }
    }

    /// Expires the oldest views until some block or inode that they held becomes free; with
    /// `below`, only views with older stamps. False if no view expired and nothing became free. The
    /// caller holds no inode lock.
    pub(in crate::live) fn expire_some_views(&self, below: Option<Stamp>) -> Result<bool> {
        let held = || (self.allocator.pending_blocks() + self.spilled_versions(), self.mvcc.unlinked_count());
        let before = held();
        // Versions of views that expired earlier may be left.
        self.mvcc.prune(&self.inodes, Contended::Wait, None);
        self.reap_unlinked()?;
        let mut any = false;
        loop {
            let now = held();
            if now.1 < before.1 || now.0 < before.0 {
                return Ok(true);
            }
            if !self.mvcc.stamps().expire_oldest(below) {
                return Ok(any);
            }
            any = true;
            self.mvcc.prune(&self.inodes, Contended::Wait, None);
            self.reap_unlinked()?;
        }
    }

    /// Deletes the inodes without a name that only closed views had kept.
    pub(in crate::live) fn reap_unlinked(&self) -> Result<()> {
        for ino in self.mvcc.reapable() {
            self.delete_if_unused(ino)?;
        }
        Ok(())
    }
}
