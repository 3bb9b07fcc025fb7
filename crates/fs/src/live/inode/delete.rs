//! Deletion of inodes without a name.
//!
//! The commit that removes the last name also sets the link count to 0 and puts the inode on the
//! orphan list: from then on the file is deleted, whatever follows. Its blocks are removed as in
//! `data::remove`, in several commits if they are many. The last commit frees the inode and takes
//! it off the list.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::RwLock;
use xact_consistency::{Handle, ReserveClass};
use xact_types::{FileBlock, Ino, Result, unix_seconds};

use super::cached::{CachedInode, InodeState};
use crate::alloc::Allocator;
use crate::live::LiveFs;
use crate::live::op::UnfinishedRemoval;
use crate::orphan::Orphans;
use crate::quota::Charge;
use crate::xattr::Xattrs;

impl LiveFs {
    /// Deletes an inode without a name, unless it is held or a view may still read it.
    pub(in crate::live) fn delete_if_unused(&self, ino: Ino) -> Result<()> {
        let cached = self.cached_inode(ino)?;
        let mut state = RwLock::write_arc(&cached.state);
        if !state.live || state.inode.links_count() > 0 || cached.holds.load(SeqCst) > 0 {
            // Views no longer keep it; its last holder calls this again.
            self.mvcc.forget_unlinked(ino);
            if state.live && state.inode.links_count() == 0 {
                self.space.held_deletions.add(ino);
            }
            return Ok(());
        }
        if self.mvcc.keeps_unlinked(ino) {
            return Ok(());
        }
        self.delete(&cached, &mut state)
    }

    /// Deletes an inode without a name: data, attribute block, inode.
    pub(in crate::live) fn delete(&self, cached: &Arc<CachedInode>, state: &mut InodeState) -> Result<()> {
        self.drop_pages(cached, state, 0, u32::MAX);
        self.writeback.files.forget(cached.ino);
        cached.pages.lock().reservation = None;
        let result = self.delete_blocks(cached, state);
        if let Err(error) = &result {
            self.engine.poison(&format!("deleting {} failed half-way: {error}", cached.ino));
        }
        self.writeback.release(&mut cached.pages.lock(), 0, false);
        self.page_cache.unmark_dirty_inode(cached.ino);
        result
    }

    fn delete_blocks(&self, cached: &Arc<CachedInode>, state: &mut InodeState) -> Result<()> {
        state.size = 0;
        let has_blocks = self.has_block_map(state);
        if has_blocks {
            state.inode.set_size(0);
            let all = UnfinishedRemoval {
                ino: cached.ino,
                first: FileBlock(0),
                past: FileBlock(u32::MAX),
                hold: None,
            };
            self.finish_removal_inner(cached, state, &all)?;
        }
        let credits = self.credits_inode() + Xattrs::DROP_CREDITS + Orphans::REMOVE_CREDITS;
        let credits = credits + Allocator::FREE_INODE_CREDITS;
        self.read_ahead_deletion(cached.ino, state);
        let mut handle = Handle::begin_for(&self.engine, credits, ReserveClass::Upkeep)?;
        let is_dir = state.inode.is_directory();
        self.xattrs(cached.ino).drop_all(&mut handle, &mut state.inode)?;
        self.orphans.remove(&mut handle, cached.ino)?;
        state.inode.set_size(0);
        self.store_inode(&mut handle, cached, state)?;
        let dtime = unix_seconds() as u32;
        self.table.update(&mut handle, cached.ino, |inode| inode.set_dtime(dtime))?;
        self.allocator.free_inode(&mut handle, cached.ino, is_dir)?;
        if state.born == handle.commit_id() {
            self.table.restore_place(&mut handle, cached.ino)?;
        }
        self.quotas.transfer(&mut handle, &std::mem::take(&mut state.charged), &Charge::default())?;
        state.live = false;
        state.dirty = false;
        self.mvcc.note_deleted(cached.ino, state);
        Ok(())
    }
}
