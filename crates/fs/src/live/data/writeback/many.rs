//! Write-back of many inodes: their data in as few writes as it takes, and past the page cache
//! below.
//!
//! What is dirty in a thousand files lies in a thousand places of memory, and on the device mostly
//! side by side: new blocks are taken near each other. So the data of several inodes is written
//! together, sorted by place, and then each is linked. As long as it is on its way nothing refers
//! to it, so the argument of [`super`] holds for each.
//!
//! *Whose time it takes.* What goes into the page cache is written by the next flush, and that is
//! an fsync of a few bytes (the paper on RFJ: metadata waits for its data, instead of forcing it
//! out). No caller waits for what is written here. So it is on the device when it is linked: an
//! fsync that commits it along has nothing left to write.
//!
//! *Locks.* Those of all inodes of a group are held, upgradable, while their data is written: in
//! rising order, as everywhere. They are made exclusive and released from the last to the first: a
//! reader of one of them, which keeps it from being made exclusive, may wait for a later one, never
//! for an earlier one. A group leaves out an inode that another thread has locked.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::RwLock;
use xact_types::{Error, Result};

use super::WritebackRequest;
use super::collect::WritebackBatch;
use crate::live::LiveFs;
use crate::live::inode::cached::CachedInode;

/// Inodes and pages that are written together at the most: how long a writer to one of them may
/// have to wait.
const INODES_MAX: usize = 256;
const PAGES_MAX: usize = 256;

impl LiveFs {
    /// Writes back what is dirty; with `before`, only inodes that have been dirty since then.
    ///
    /// Errors: the first one that an inode met by itself (its extents are damaged); all others are
    /// written all the same.
    pub(in crate::live) fn write_back_all(&self, before: Option<Instant>) -> Result<()> {
        let mut inodes = Vec::new();
        for ino in self.page_cache.dirty_inodes(before) {
            match self.inodes.peek(ino) {
                Some(cached) => inodes.push(cached),
                None => self.page_cache.unmark_dirty_inode(ino),
            }
        }
        let mut rest = &inodes[..];
        // Those that another thread has locked, or that have more than a group takes.
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

    /// What there is to write back of the first of these inodes, as much as makes a group, and how
    /// many of them that were. One that meets an error is left out, and stays dirty.
    fn collect_group(
        &self,
        inodes: &[Arc<CachedInode>],
        alone: &mut Vec<Arc<CachedInode>>,
        failed: &mut Option<Error>,
    ) -> (Vec<WritebackBatch>, usize) {
        let (mut group, mut pages) = (Vec::new(), 0);
        let mut met = 0;
        for cached in inodes {
            if group.len() == INODES_MAX || pages >= PAGES_MAX {
                break;
            }
            met += 1;
            let Some(guard) = RwLock::try_upgradable_read_arc(&cached.state) else {
                alone.push(cached.clone());
                continue;
            };
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
