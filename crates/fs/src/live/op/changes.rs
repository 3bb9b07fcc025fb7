//! The start of a change within an operation, and its bookkeeping.

use std::sync::Arc;

use xact_consistency::Handle;
use xact_types::{Ino, Result};

use super::Operation;
use crate::alloc::Purpose;
use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState};
use crate::live::mvcc::stamps::Change;

impl<'a> Operation<'a> {
    /// Prepares the first change: checks health and quota, reserves space, takes the stamp. All
    /// locks are held by then, as `mvcc::stamps` demands, except those of inodes that the operation
    /// itself creates later.
    fn begin_change(&mut self) -> Result<()> {
        if self.has_stamp {
            return Ok(());
        }
        self.fs.health.check_writable()?;
        self.fs.engine.health()?;
        self.fs.allocator.read_groups()?;
        if !self.budget.privileges.beyond_quota {
            self.fs.quotas.check(&self.wanted, &self.moving)?;
        }
        for wanted in self.wanted.drain(..) {
            self.fs.quotas.add_entries(&wanted.more.payer)?;
        }
        if self.budget.growth > 0 {
            let purpose = Purpose::Data { privileged: self.budget.privileges.reserve };
            self.reservation = Some(self.fs.allocator.reserve(self.budget.growth, purpose)?);
        }
        self.moving.iter().for_each(|charge| self.fs.quotas.release(charge));
        self.moved = true;
        self.change = self.fs.mvcc.stamps().next_change(self.transaction);
        self.has_stamp = true;
        Ok(())
    }

    /// Call before a change in memory only (file data, times of a write).
    pub(in crate::live) fn begin_memory_change(&mut self) -> Result<()> {
        self.begin_change()
    }

    /// Call before a change of metadata blocks: begins the handle if it has not begun.
    pub(in crate::live) fn begin_block_change(&mut self) -> Result<()> {
        self.begin_change()?;
        if self.handle.is_none() {
            self.read_ahead();
            let handle = Handle::begin_for(&self.fs.engine, self.budget.credits, self.budget.class)?;
            self.commit = Some(handle.commit_id());
            self.handle = Some(handle);
        }
        Ok(())
    }

    /// Whether views are open that need old versions.
    pub(super) fn keeps_versions(&self) -> bool {
        self.change.is_some()
    }

    /// The change under which to keep old versions of an inode; `None` if no open view sees it.
    pub(in crate::live) fn seen_change(&self, ino: Ino) -> Option<Change> {
        self.fs.mvcc.seen(ino, self.change)
    }

    /// Marks the inode to be stored in the inode table at the end of the operation.
    pub(in crate::live) fn touch(&mut self, ino: Ino) {
        self.touched.insert(ino);
        self.only_times.remove(&ino);
        self.changed = true;
    }

    /// As [`Self::touch`], for a change of times only.
    pub(in crate::live) fn touch_times(&mut self, ino: Ino) {
        if self.touched.insert(ino) {
            self.only_times.insert(ino);
        }
        self.changed = true;
    }

    /// Ensures that the handle can change `credits` more blocks in addition to the inodes to be
    /// stored; false if the commit is too full.
    pub(in crate::live) fn ensure(&mut self, credits: u32) -> Result<bool> {
        let inodes = (self.touched.len() as u32 + 2) * self.fs.credits_inode();
        self.handle.as_mut().expect("within a block change").ensure(credits + inodes)
    }

    /// Stores the touched inodes and renews the handle, perhaps in a later commit. For operations
    /// that may be split (`fallocate`).
    pub(in crate::live) fn next_commit(&mut self, credits: u32) -> Result<()> {
        self.store_touched()?;
        let inodes = self.touched.len() as u32 * self.fs.credits_inode();
        self.handle.as_mut().expect("within a block change").renew(credits + inodes)?;
        self.store_touched()
    }

    /// The separate borrows that a change of an inode's blocks needs together.
    pub(in crate::live) fn parts(
        &mut self,
        ino: Ino,
    ) -> (&'a LiveFs, &mut Handle, &Arc<CachedInode>, &mut InodeState) {
        let locked = self.locked.get_mut(&ino).expect("changed inodes are locked");
        let handle = self.handle.as_mut().expect("within a block change");
        (self.fs, handle, &locked.cached, &mut locked.state)
    }

    /// Whether anything was changed, in memory or in a block. A later failure leaves the operation
    /// half done.
    pub(super) fn has_changed(&self) -> bool {
        self.changed || self.handle.as_ref().is_some_and(Handle::has_changed)
    }
}
