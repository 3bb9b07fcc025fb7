//! Write-back of many inodes: writes their data in as few writes as possible, and past the host's
//! page cache.
//!
//! The dirty pages of a thousand files are scattered in memory, but mostly adjacent on the device,
//! because new blocks are taken near each other. So the data of several inodes is written together,
//! sorted by block, and then each inode is linked. No metadata refers to the data while it is being
//! written, so the crash argument of [`super`] holds for each inode.
//!
//! *Cost.* Data in the host's page cache would be written by the next flush, and so delay an fsync
//! of a few bytes. So this module writes data to the device before it links the data. No caller
//! waits for these writes, and an fsync that commits the links has no data left to write. (This is
//! a rule of the paper on RFJ: metadata waits until its data is written, and does not force the
//! data out.)
//!
//! *Locks.* The locks of all inodes of a group are held, upgradable, while their data is written.
//! They are taken in rising order, as everywhere. They are made exclusive and released in falling
//! order. A reader of an inode prevents the upgrade of its lock, and may itself wait for the lock
//! of another inode. That inode has a higher number, so this group has already released its lock.
//! A group leaves out an inode that another thread has locked, or of which a write has not ended.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;
use xact_types::{Error, Result};

use super::WritebackRequest;
use super::collect::WritebackBatch;
use crate::live::LiveFs;
use crate::live::inode::cached::CachedInode;

impl LiveFs {
    /// Writes back all dirty inodes; with `before`, only those that have been dirty since then.
    ///
    /// An error that concerns one inode (its extents are damaged) does not stop the others; the
    /// first such error is returned at the end.
    pub(in crate::live) fn write_back_all(&self, before: Option<Instant>) -> Result<()> {
        let mut inodes = Vec::new();
        for ino in self.page_cache.dirty_inodes(before) {
            match self.inodes.peek(ino) {
                Some(cached) => inodes.push(cached),
                None => {
                    self.page_cache.unmark_dirty_inode(ino);
                }
            }
        }
        let mut rest = &inodes[..];
        // Inodes that another thread has locked or is writing in parts, or with more pages than
        // fit in a group.
        let mut alone = Vec::new();
        let mut failed = None;
        while !rest.is_empty() {
            let (group, met) = self.collect_group(rest, &mut alone, &mut failed);
            rest = &rest[met..];
            self.write_batches(&group, false)?;
            for batch in group.into_iter().rev() {
                let cached = batch.cached.clone();
                if self.link(batch)? {
                    alone.push(cached);
                } else {
                    self.settle(&cached);
                }
            }
        }
        for cached in alone {
            if let Err(error) = self.write_back(&cached, WritebackRequest::INODE) {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Collects a group of batches from the first of these inodes; returns it with the number of
    /// inodes visited. An inode with an error is left out, and stays dirty.
    fn collect_group(
        &self,
        inodes: &[Arc<CachedInode>],
        alone: &mut Vec<Arc<CachedInode>>,
        failed: &mut Option<Error>,
    ) -> (Vec<WritebackBatch>, usize) {
        let (mut group, mut pages) = (Vec::new(), 0);
        let (mut met, most) = (0, self.options.steps);
        for cached in inodes {
            if group.len() >= most.group_inodes || pages >= most.group_pages {
                break;
            }
            met += 1;
            let Some(guard) = RwLock::try_upgradable_read_arc(&cached.state) else {
                alone.push(cached.clone());
                continue;
            };
            if self.writeback.parts.holds(cached.ino) {
                alone.push(cached.clone());
                continue;
            }
            let collected = match guard.live {
                true => self.collect(cached, guard, WritebackRequest::INODE),
                false => Ok(None),
            };
            match collected {
                Ok(Some(batch)) => {
                    pages += batch.pages();
                    group.push(batch);
                }
                Ok(None) => self.settle(cached),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        (group, met)
    }
}
