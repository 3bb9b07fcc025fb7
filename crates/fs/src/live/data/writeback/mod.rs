//! Write-back: writes dirty pages to the device, then the metadata that refers to them.
//!
//! The steps of the crash argument below are in four files. `collect` chooses the pages, `place`
//! finds or allocates their blocks (steps 1 and 2), `write` writes the data (steps 1 and 2), and
//! `link` links the blocks (step 3). This file writes the batches of one inode one after the other;
//! `many` writes the batches of many inodes together.
//! - `space_reservation`: space that the engine reserves for dirty data
//! - `sync`: fsync and fdatasync; `catch_up`: their way past other files' changes;
//!   `flusher`: write-back by age, and when memory is short;
//!   `flusher_thread`: the thread for it
//! - `write_pattern`: the pattern in which a file is written, from which `collect` chooses what
//!   goes through the journal
//! - `write_parts`: writes of which more may follow, for which write-back waits
//! - `file_writes`: written blocks by file
//! - `state`: counters and the flusher, for the whole volume
//!
//! Crash argument, for one batch of dirty pages of one inode:
//! 1. Pages that have a written block are overwritten in place, unless 5 applies; a crash leaves
//!    each sector old or new, as POSIX allows before fsync.
//! 2. Pages without a block get one that is allocated in memory only, and are written there. Until
//!    step 3 commits, no metadata on disk refers to these blocks: a crash loses the pages and
//!    nothing else.
//! 3. One handle links the blocks (bitmap, extents) and then moves the size on disk up to the end
//!    of the written pages. The engine flushes the device before the commit record. This flush
//!    covers step 2, so the metadata never reaches the disk before the data (ordered mode, and
//!    DIU-1).
//! 4. Batches go from the start of the file to its end. So when step 3 moves the size, each page
//!    before the new size has been written (or goes through the journal, see 5), unless it became
//!    dirty after the batch was collected.
//! 5. A segment that goes through the journal (`data::data_mode`) is not written in steps 1 and 2:
//!    its pages join the handle of step 3, or that of an earlier commit. So they are durable with
//!    or before the metadata that refers to them, and the pages of one commit survive together or
//!    not at all.
//! 6. A block with a copy in the log always goes through the journal: if it were written in place,
//!    a replay would overwrite it with the older copy.
//! 7. On a volume with a journal, a batch that fits one commit is in one commit: its handle begins
//!    with the credits for all of it (`link`). With `data=adaptive`, the overwritten blocks of a
//!    small sync are journaled (`data_mode::BatchFacts::overwrites_little`), and its new blocks
//!    are linked by the same commit. So a crash leaves all of it or nothing.
//!
//! Space in the engine was reserved when the data was accepted (`space_reservation`), so no step
//! fails for lack of it.
//!
//! The inode's lock is held upgradable throughout: readers continue during the I/O, but writers and
//! truncation wait. So no page and no mapping changes. The lock is made exclusive before the handle
//! begins (lock order: inode, then handle).

mod catch_up;
mod collect;
pub(in crate::live) mod file_writes;
mod flusher;
mod flusher_thread;
mod link;
mod many;
mod place;
mod space_reservation;
pub(in crate::live) mod state;
mod sync;
#[cfg(test)]
mod tests;
mod write;
pub(in crate::live) mod write_parts;
pub(in crate::live) mod write_pattern;

use std::sync::Arc;

use parking_lot::RwLock;
use xact_types::{CommitId, Result};

use crate::live::LiveFs;
use crate::live::inode::cached::{CachedInode, InodeState, UpgradableGuard};
use write_parts::Patience;

/// The part of an inode that is written back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::live) enum Scope {
    /// The data, and the metadata needed to find it: times may wait.
    Data,
    /// Data and the whole inode.
    Inode,
}

/// One request to write an inode back.
#[derive(Clone, Copy)]
pub(in crate::live) struct WritebackRequest {
    pub scope: Scope,
    /// A caller waits for it to be durable.
    pub synced: bool,
}

impl WritebackRequest {
    pub const DATA: WritebackRequest = WritebackRequest { scope: Scope::Data, synced: false };
    pub const INODE: WritebackRequest = WritebackRequest { scope: Scope::Inode, synced: false };

    fn data_only(self) -> bool {
        self.scope == Scope::Data
    }

    /// The commit that makes the requested part durable, as far as commits carry it.
    fn awaited(self, state: &InodeState) -> CommitId {
        if self.data_only() { state.last_data_commit } else { state.last_commit }
    }
}

impl LiveFs {
    /// Writes the inode's dirty data and then the inode. With [`Scope::Data`], an inode with
    /// changes of times only stays dirty in memory.
    pub(in crate::live) fn write_back(&self, cached: &Arc<CachedInode>, how: WritebackRequest) -> Result<()> {
        let mut patience = Patience::new(&self.writeback.parts);
        loop {
            let guard = RwLock::upgradable_read_arc(&cached.state);
            if guard.live && patience.is_needed(cached.ino) {
                drop(guard);
                patience.wait(cached.ino);
                continue;
            }
            if !guard.live || !self.write_batch(cached, guard, how)? {
                break;
            }
        }
        self.settle(cached);
        Ok(())
    }

    /// Writes one batch; true if dirty pages are left.
    fn write_batch(
        &self,
        cached: &Arc<CachedInode>,
        guard: UpgradableGuard,
        how: WritebackRequest,
    ) -> Result<bool> {
        let Some(batch) = self.collect(cached, guard, how)? else { return Ok(false) };
        let batches = [batch];
        self.write_batches(&batches, how.synced)?;
        let [batch] = batches;
        self.link(batch)
    }

    /// Takes an inode off the dirty list if it is clean. The commit that has its size counts from
    /// the time at which the data was written to the cache, so that the commit interval bounds the
    /// sum of both delays.
    pub(in crate::live) fn settle(&self, cached: &CachedInode) {
        let state = cached.state.read();
        let mut pages = cached.pages.lock();
        self.writeback.release(&mut pages, 0, state.live && state.dirty);
        if !state.live || (!state.dirty && pages.dirty == 0) {
            let since = self.page_cache.unmark_dirty_inode(cached.ino);
            drop(pages);
            if let Some(since) = since {
                self.engine.age_from(since);
            }
        }
    }
}
