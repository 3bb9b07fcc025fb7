//! Read views: opened, expired where the past takes too much, and what goes when one ends.

use std::sync::Arc;

use xact_types::Result;

use super::Busy;
use crate::live::LiveFs;
use crate::versioned_fs::read_as_of::Stamp;

/// Keeps the volume readable as of one instant until it is dropped.
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
        self.fs.mvcc.stamps().close(self.stamp);
        self.fs.mvcc.prune(&self.fs.inodes, Busy::Skipped);
        // A failure poisons the volume, and its next user gets the error; a drop cannot return one.
        let _ = self.fs.reap_unlinked();
    }
}

impl LiveFs {
    /// Expires the oldest views until old versions take no more than their share of memory. The
    /// caller holds no lock of an inode.
    pub(in crate::live) fn limit_versions(&self) {
        let mut any = false;
        while self.mvcc.is_over_limit() && self.mvcc.stamps().expire_oldest(None) {
            self.mvcc.prune(&self.inodes, Busy::Skipped);
            any = true;
        }
        if any {
            // As when a view is dropped.
            let _ = self.reap_unlinked();
        }
    }

    /// Expires the oldest views, as many as it takes until something that they held can be used
    /// again; of those from before `below` alone, if that is given. False where there were none.
    /// The caller holds no lock of an inode.
    pub(in crate::live) fn expire_some_views(&self, below: Option<Stamp>) -> Result<bool> {
        let held = || (self.allocator.pending_blocks(), self.mvcc.unlinked_count());
        let before = held();
        // What an expired view has left.
        self.mvcc.prune(&self.inodes, Busy::Awaited);
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
            self.mvcc.prune(&self.inodes, Busy::Awaited);
            self.reap_unlinked()?;
        }
    }

    /// Deletes the inodes without a name that were kept only for views that are closed.
    pub(in crate::live) fn reap_unlinked(&self) -> Result<()> {
        for ino in self.mvcc.reapable() {
            self.delete_if_unused(ino)?;
        }
        Ok(())
    }
}
